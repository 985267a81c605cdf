//! `grep`: lines of files that match a regular expression. Read-only.
//!
//! Called by the catalog; calls `exec`. Uses the grep of the sandbox, with Perl syntax if it is
//! supported.

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
    glob: Option<String>,
}

/// Some builds of grep do not support Perl syntax. When the reader has enough lines, it closes the
/// pipe and SIGPIPE ends grep; that is not a failure.
const SEARCH: &str = r#"kind=E
printf x | grep -qP x 2>/dev/null && kind=P
most=$1 width=$2
shift 2
grep -rnHI"$kind" --color=never --exclude-dir=.git --exclude-dir=node_modules "$@" | cut -b "1-$width" | head -n "$most"
code=${PIPESTATUS[0]}
if [ "$code" = 141 ]; then exit 0; fi
exit "$code""#;

/// grep's exit code if nothing matches.
const EXIT_NOTHING: i32 = 1;

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: "grep".to_owned(),
        description:
            "Searches text files for lines that match a regular expression (Perl syntax; (?i) ignores case) \
            and lists them as path:line:text. Skips .git and node_modules."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "description": "The regular expression."},
                "path": {"type": "string", "minLength": 1, "description": "File or directory (default: the working directory)."},
                "glob": {"type": "string", "minLength": 1, "description": "Only file names that match, as in *.{ts,tsx}."},
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
        // grep matches the file name only, so the last part of a pattern with directories is used.
        let name = self.glob.as_deref().map(|glob| glob.rsplit('/').next().unwrap_or(glob));
        let Some(names) = name.map_or(Some(Vec::new()), expand_braces) else {
            return tell(format!("The braces expand to more than {} patterns.", limit::GLOB_PATTERNS_MAX));
        };
        let path = self.path.as_deref().unwrap_or(".");
        let (most, width) = ((limit::GREP_LINES_MAX + 1).to_string(), limit::LINE_BYTES_MAX.to_string());
        let mut argv = ["bash", "-c", SEARCH, "grep", &most, &width].map(str::to_owned).to_vec();
        argv.extend(names.iter().map(|name| format!("--include={name}")));
        argv.extend(["-e", &self.pattern, "--", path].map(str::to_owned));
        let id = exec::id(call_id);
        let exit = exec::run(handle, &id, argv, limit::TOOL_SEARCH_TIMEOUT).await?;
        let found = text::printable(
            &exec::bytes(handle, &id, OutputStream::Stdout, 0, limit::TOOL_FILE_BYTES_MAX).await?,
        );
        if found.is_empty() && exit.code == EXIT_NOTHING {
            return Ok(CallResult::ok(format!("No line of {path} matches.")));
        }
        if found.is_empty() && exit.code != 0 {
            let words =
                exec::bytes(handle, &id, OutputStream::Stderr, 0, limit::EXEC_SUMMARY_BYTES_MAX).await?;
            return tell(format!("grep failed: {}", text::printable(&words).trim()));
        }
        let mut lines: Vec<&str> =
            found.lines().map(|line| line.strip_prefix("./").unwrap_or(line)).collect();
        let is_cut = lines.len() > limit::GREP_LINES_MAX;
        lines.truncate(limit::GREP_LINES_MAX);
        let mut list = lines.join("\n");
        if is_cut {
            list.push_str(&format!(
                "\n[There are more than {} lines. Narrow the search.]",
                limit::GREP_LINES_MAX
            ));
        }
        Ok(CallResult::ok(output::cap(&list, "Narrow the search.")))
    }

    async fn cancel(&self, call_id: &str, handle: &SandboxHandle) -> Option<ExecSummary> {
        exec::kill(call_id, handle).await;
        None
    }
}
