//! `bash`: a command in the sandbox. Unsafe: it runs at most once.
//!
//! Called by the catalog; calls `exec`. Stdout and stderr are merged, in the order in which they
//! were written, as on a terminal.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::{Done, ExecSummary, Recovered, SandboxHandle, Stop, exec, output};
use crate::{
    base::{limit, text},
    domain::tool::{Replay, ToolCall, ToolSpec},
    sandbox::{Cause, Exit, JOIN_OUTPUTS, OutputStream},
};

#[derive(Deserialize)]
pub(super) struct Args {
    command: String,
    timeout_seconds: Option<u64>,
}

pub(super) fn spec() -> ToolSpec {
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

/// Returns the timeout of the command.
pub(super) fn longest(args: &Args) -> Duration {
    let asked = args.timeout_seconds.map_or(limit::TOOL_TIMEOUT_DEFAULT, Duration::from_secs);
    asked.min(limit::TOOL_TIMEOUT_MAX)
}

pub(super) async fn run(call: &ToolCall, args: Args, handle: &SandboxHandle) -> Result<Done, Stop> {
    let timeout = longest(&args);
    let argv = ["bash", "-c", JOIN_OUTPUTS, &args.command].map(str::to_owned).to_vec();
    let id = exec::id(call);
    let exit = exec::run(handle, &id, argv, timeout).await?;
    done(handle, &id, args, exit).await
}

/// Recovers a call: the command continues without its worker; waits for its end.
pub(super) async fn recover(call: &ToolCall, args: Args, handle: &SandboxHandle) -> Result<Recovered, Stop> {
    let id = exec::id(call);
    match exec::found(handle, &id).await? {
        Some(exit) => done(handle, &id, args, exit).await.map(Recovered::Done),
        None => Ok(Recovered::NeverRan),
    }
}

/// Returns how a killed command ended; `None` if it never started.
pub(super) async fn stopped(call: &ToolCall, handle: &SandboxHandle) -> Option<ExecSummary> {
    let exit = exec::found(handle, &exec::id(call)).await.ok().flatten()?;
    let command = call.input.get("command").and_then(serde_json::Value::as_str).unwrap_or_default();
    Some(ExecSummary {
        command: command.to_owned(),
        exit_code: exit.code,
        summary: String::new(),
        bytes: exit.stdout_bytes + exit.stderr_bytes,
        cause: exit.cause.word(),
        duration: exit.duration,
    })
}

async fn done(handle: &SandboxHandle, id: &str, args: Args, exit: Exit) -> Result<Done, Stop> {
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
    let exec = ExecSummary {
        command: args.command,
        exit_code: exit.code,
        summary,
        bytes: exit.stdout_bytes + exit.stderr_bytes,
        cause: exit.cause.word(),
        duration: exit.duration,
    };
    let is_error = exit.code != 0 || exit.cause != Cause::Exited;
    Ok(Done { output: words, is_error, exec: Some(exec) })
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
