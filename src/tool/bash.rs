//! `bash`: a command in the sandbox. Unsafe: it runs at most once.
//!
//! Called by the catalog; calls `exec`. Stdout and stderr are merged, in the order in which they
//! were written, as on a terminal.

use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{
    CallResult, ExecSummary, Fault, Invocation, Recovered, SandboxHandle, Tool, exec, output, parse,
};
use crate::{
    base::{limit, text},
    domain::tool::{Replay, ToolSpec},
    sandbox::{Cause, Exit, JOIN_OUTPUTS, OutputStream},
};

#[derive(Debug, Deserialize)]
struct Args {
    command: String,
    timeout_seconds: Option<u64>,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    let (default, most) = (limit::TOOL_TIMEOUT_DEFAULT.as_secs(), limit::TOOL_TIMEOUT_MAX.as_secs());
    ToolSpec {
        name: "bash".to_owned(),
        description: "Runs a command with bash in the sandbox and returns its output and exit code. Each call is \
            a new shell in the working directory: files persist; `cd` and variables do not. Do not run programs \
            that wait for a terminal. Long output is truncated in the middle and saved to a file."
            .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "description": "The shell command."},
                "timeout_seconds": {
                    "type": "integer", "minimum": 1, "maximum": most,
                    "description": format!("Kills the command after this many seconds (default {default})."),
                },
            },
            "required": ["command"],
            "additionalProperties": false,
        }),
        replay: Replay::Unsafe,
    }
}

#[async_trait]
impl Invocation for Args {
    fn timeout(&self) -> Option<Duration> {
        let wanted = self.timeout_seconds.map_or(limit::TOOL_TIMEOUT_DEFAULT, Duration::from_secs);
        Some(wanted.min(limit::TOOL_TIMEOUT_MAX))
    }

    async fn run(&self, call_id: &str, handle: &SandboxHandle) -> Result<CallResult, Fault> {
        let timeout = self.timeout().unwrap_or(limit::TOOL_TIMEOUT_DEFAULT);
        let argv = ["bash", "-c", JOIN_OUTPUTS, &self.command].map(str::to_owned).to_vec();
        let id = exec::id(call_id);
        let exit = exec::run(handle, &id, argv, timeout).await?;
        self.result(handle, &id, exit).await
    }

    /// The command goes on without its worker: waits for its end and reads the output.
    async fn recover(&self, call_id: &str, handle: &SandboxHandle) -> Result<Recovered, Fault> {
        let id = exec::id(call_id);
        match exec::found(handle, &id).await? {
            Some(exit) => self.result(handle, &id, exit).await.map(Recovered::Done),
            None => Ok(Recovered::NeverRan),
        }
    }

    /// Returns how the killed command ended; `None` when it never began.
    async fn cancel(&self, call_id: &str, handle: &SandboxHandle) -> Option<ExecSummary> {
        if !exec::kill(call_id, handle).await {
            return None;
        }
        let exit = exec::found(handle, &exec::id(call_id)).await.ok().flatten()?;
        Some(self.summary(&exit, String::new()))
    }
}

impl Args {
    async fn result(&self, handle: &SandboxHandle, id: &str, exit: Exit) -> Result<CallResult, Fault> {
        let mut words = exec::written(handle, id, &exit).await?;
        if exit.stderr_bytes > 0 {
            // The output is not from the command: bash itself could not start.
            let most = limit::EXEC_SUMMARY_BYTES_MAX;
            words += &text::printable(&exec::bytes(handle, id, OutputStream::Stderr, 0, most).await?);
        }
        let summary = output::ending(&words, limit::EXEC_SUMMARY_BYTES_MAX).to_owned();
        if words.trim().is_empty() {
            words = "(no output)".to_owned();
        }
        if let Some(note) = note(&exit) {
            words = format!("{}\n[{note}]", words.trim_end_matches('\n'));
        }
        let exec = self.summary(&exit, summary);
        let is_error = exit.code != 0 || exit.cause != Cause::Exited;
        Ok(CallResult { is_error, exec: Some(exec), ..CallResult::ok(words) })
    }

    fn summary(&self, exit: &Exit, output: String) -> ExecSummary {
        ExecSummary {
            command: self.command.clone(),
            exit_code: exit.code,
            summary: output,
            bytes: exit.stdout_bytes + exit.stderr_bytes,
            cause: exit.cause.word(),
            duration: exit.duration,
        }
    }
}

/// Returns how the command ended, unless it exited with code 0.
fn note(exit: &Exit) -> Option<String> {
    match exit.cause {
        Cause::Exited if exit.code == 0 => None,
        Cause::Exited => Some(format!("exit code {}", exit.code)),
        Cause::Timeout => Some(format!("killed after {} s: timeout", exit.duration.as_secs())),
        Cause::Oom => Some("killed: the sandbox ran out of memory".to_owned()),
        Cause::DiskFull => Some(format!("exit code {}: the sandbox's disk is full", exit.code)),
        Cause::Killed => Some("killed on request".to_owned()),
    }
}
