//! `glob`: paths that match a pattern. Read-only.
//!
//! Called by the catalog; calls `exec`. Bash in the sandbox expands the pattern without evaluating
//! it. Braces are expanded here, because bash does not expand them in a variable.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, ExecSummary, Fault, Invocation, SandboxHandle, Tool, exec, output, parse, tell};
use crate::{
    base::{braces::expand_braces, limit, text},
    domain::tool::{Replay, ToolSpec},
    sandbox::OutputStream,
};

#[derive(Debug, Deserialize)]
struct Args {
    pattern: String,
    path: Option<String>,
}

/// Expands each argument after the second as a pattern below the directory in the first. With an
/// empty IFS a pattern with spaces stays one word.
const EXPAND: &str = r#"cd -- "$1" || exit 2
shift
most=$1
shift
IFS=
for pattern in "$@"; do
  for found in $pattern; do
    if [ -d "$found" ]; then printf '%s/\n' "$found"
    elif [ -e "$found" ] || [ -L "$found" ]; then printf '%s\n' "$found"; fi
  done
done | head -n "$most""#;

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: "glob".to_owned(),
        description:
            "Lists the paths that match a pattern, such as `src/**/*.{ts,tsx}`. `**` matches any directories; \
            hidden paths match only if the pattern names them. Directories end with a slash."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "description": "With *, **, ?, [...] and {a,b}."},
                "path": {"type": "string", "minLength": 1, "description": "Where to start (default: the working directory)."},
            },
            "required": ["pattern"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run(&self, call_id: &str, handle: &SandboxHandle) -> Result<CallResult, Fault> {
        let Some(patterns) = expand_braces(&self.pattern) else {
            return tell(format!("The braces expand to more than {} patterns.", limit::GLOB_PATTERNS_MAX));
        };
        let begin = handle.path(self.path.as_deref().unwrap_or("."));
        let most = (limit::GLOB_PATHS_MAX + 1).to_string();
        let shell = ["bash", "-O", "globstar", "-O", "nullglob", "-c", EXPAND, "glob", &begin, &most];
        let argv = shell.map(str::to_owned).into_iter().chain(patterns).collect();
        let id = exec::id(call_id);
        let exit = exec::run(handle, &id, argv, limit::TOOL_SEARCH_TIMEOUT).await?;
        let found = text::printable(
            &exec::bytes(handle, &id, OutputStream::Stdout, 0, limit::TOOL_FILE_BYTES_MAX).await?,
        );
        if exit.code != 0 {
            let words =
                exec::bytes(handle, &id, OutputStream::Stderr, 0, limit::EXEC_SUMMARY_BYTES_MAX).await?;
            return tell(format!("glob failed below {begin}: {}", text::printable(&words).trim()));
        }
        let mut paths: Vec<&str> =
            found.lines().map(|path| path.strip_prefix("./").unwrap_or(path)).collect();
        let is_cut = paths.len() > limit::GLOB_PATHS_MAX;
        paths.truncate(limit::GLOB_PATHS_MAX);
        paths.sort_unstable();
        paths.dedup();
        if paths.is_empty() {
            return Ok(CallResult::ok(format!("No path below {begin} matches {}.", self.pattern)));
        }
        let mut list = paths.join("\n");
        if is_cut {
            list.push_str(&format!("\n[There are more than {}. Narrow the pattern.]", limit::GLOB_PATHS_MAX));
        }
        Ok(CallResult::ok(output::cap(&list, "Narrow the pattern.")))
    }

    async fn cancel(&self, call_id: &str, handle: &SandboxHandle) -> Option<ExecSummary> {
        exec::kill(call_id, handle).await;
        None
    }
}
