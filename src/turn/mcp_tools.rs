//! The tools in a list of an MCP server that a model can be offered.

use std::collections::BTreeSet;

use crate::{
    base::{
        limit::{MCP_SKIPPED_MAX, MCP_TOOLS_MAX, MODEL_REASON_BYTES_MAX, NAME_BYTES_MAX},
        text,
    },
    domain::mcp::{McpSkipped, McpTool},
    tool,
};

/// Returns the tools that a model can be offered, and the others with the reason.
pub(super) async fn usable(tools: Vec<McpTool>) -> (Vec<McpTool>, Vec<McpSkipped>) {
    let (mut named, mut skipped, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for tool in tools {
        let reason = if tool.tool.is_empty() || tool.tool.len() > NAME_BYTES_MAX {
            Some(format!("has a name that is empty or longer than {NAME_BYTES_MAX} bytes"))
        } else if !names.insert(tool.name.clone()) {
            Some("is listed twice".to_owned())
        } else if named.len() >= MCP_TOOLS_MAX {
            Some(format!("is beyond the first {MCP_TOOLS_MAX}"))
        } else {
            None
        };
        match reason {
            Some(reason) => skipped.push(McpSkipped { tool: tool.tool, reason }),
            None => named.push(tool),
        }
    }
    let schemas = named.iter().map(|tool: &McpTool| tool.input_schema.clone()).collect();
    let problems = tool::check_schemas(schemas).await;
    let mut usable = Vec::new();
    for (tool, problem) in named.into_iter().zip(problems) {
        match problem {
            Some(problem) => {
                skipped.push(McpSkipped { tool: tool.tool, reason: format!("`inputSchema` {problem}") });
            }
            None => usable.push(tool),
        }
    }
    if skipped.len() > MCP_SKIPPED_MAX {
        skipped.truncate(MCP_SKIPPED_MAX);
        skipped.push(McpSkipped { tool: String::new(), reason: "and others".to_owned() });
    }
    for one in &mut skipped {
        one.tool = text::truncate(&one.tool, NAME_BYTES_MAX).to_owned();
        one.reason = text::truncate(&one.reason, MODEL_REASON_BYTES_MAX).to_owned();
    }
    (usable, skipped)
}
