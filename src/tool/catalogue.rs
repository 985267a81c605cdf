//! The tools there are, and the check that turns a model's call into a [`Call`].
//!
//! The order of the tools is fixed: it is part of the cached prefix of a prompt.

use std::sync::Arc;

use super::{
    Call, Tool, ask, bash, child_session, edit, glob, grep, read, schedule_wake, schema::Schema, web_fetch,
    write,
};
use crate::domain::tool::{ToolCall, ToolSpec};

/// Those before the tools for child sessions.
const TOOLS: [Tool; 9] = [
    bash::TOOL,
    read::TOOL,
    write::TOOL,
    edit::TOOL,
    glob::TOOL,
    grep::TOOL,
    web_fetch::TOOL,
    ask::TOOL,
    schedule_wake::TOOL,
];

fn tools() -> impl Iterator<Item = Tool> {
    TOOLS.into_iter().chain(child_session::TOOLS)
}

/// The tools with their compiled schemas. Cheap to clone.
#[derive(Clone)]
pub struct Catalog(Arc<[Entry]>);

struct Entry {
    tool: Tool,
    spec: ToolSpec,
    schema: Schema,
}

/// The name of every tool, in the order of the catalogue.
pub fn names() -> Vec<String> {
    tools().map(|tool| (tool.spec)().name).collect()
}

/// Every tool as the model sees it, in the order of the catalogue.
pub fn specs() -> Vec<ToolSpec> {
    tools().map(|tool| (tool.spec)()).collect()
}

impl Catalog {
    /// Creates the catalog of all built-in tools.
    pub fn builtin() -> Self {
        let entry = |tool: Tool| {
            let spec = (tool.spec)();
            let schema = Schema::compile(&spec.input_schema);
            Entry { tool, spec, schema }
        };
        Self(tools().map(entry).collect())
    }

    /// Returns the tools as the model sees them, in a fixed order.
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.0.iter().map(|entry| entry.spec.clone()).collect()
    }

    /// Checks a call; or words for the model: an unknown tool, arguments that are not valid.
    pub fn check(&self, call: &ToolCall) -> Result<Call, String> {
        let Some(entry) = self.0.iter().find(|entry| entry.spec.name == call.tool) else {
            return Err(format!(
                "There is no tool `{}`. Available tools: {}.",
                call.tool,
                names().join(", ")
            ));
        };
        let arguments = entry.schema.check(&call.tool, &call.input)?;
        let invocation = (entry.tool.parse)(arguments);
        Ok(Call {
            elicited: None,
            origin: call.clone(),
            replay: entry.spec.replay,
            timeout: invocation.timeout(),
            is_remote: false,
            invocation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::tool::{BUILTIN_TOOLS, SUBMIT_OUTPUT};

    #[test]
    fn the_names_of_all_tools_are_known() {
        let known: Vec<_> = BUILTIN_TOOLS.into_iter().filter(|name| *name != SUBMIT_OUTPUT).collect();
        assert_eq!(names(), known);
    }
}
