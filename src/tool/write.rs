//! `write`: writes a whole file. Idempotent: a second write leaves the same file.
//!
//! Called by the catalog; calls the port `Sandbox`.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, Fault, Invocation, SandboxHandle, Tool, at, parse, tell};
use crate::{
    base::limit,
    domain::tool::{Replay, ToolSpec},
};

#[derive(Debug, Deserialize)]
struct Args {
    path: String,
    content: String,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: "write".to_owned(),
        description:
            "Writes a whole file. Creates missing directories and replaces an existing file. To change \
            part of a file, use `edit`."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Absolute, or relative to the working directory."},
                "content": {"type": "string", "description": "The complete new content."},
            },
            "required": ["path", "content"],
            "additionalProperties": false,
        }),
        replay: Replay::Idempotent,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run(&self, _call_id: &str, handle: &SandboxHandle) -> Result<CallResult, Fault> {
        let (path, bytes) = (handle.path(&self.path), self.content.len());
        if bytes > limit::TOOL_FILE_BYTES_MAX {
            let most = limit::TOOL_FILE_BYTES_MAX;
            return tell(format!(
                "The content has {bytes} bytes, more than {most}. Write the file in parts with `bash`."
            ));
        }
        handle.sandbox.write_file(handle.fence, &path, self.content.as_bytes()).await.map_err(at(&path))?;
        Ok(CallResult::ok(format!("Wrote {path}: {} lines, {bytes} bytes.", self.content.lines().count())))
    }
}
