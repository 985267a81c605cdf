//! Commands of tools: start under the call's own id, wait, read output.
//!
//! Called by `bash`, `glob` and `grep`; calls the port `Sandbox`. The id is derived from the call,
//! so that a second start, by this worker or the next, attaches to the first.

use std::time::Duration;

use super::{
    Fault, SandboxHandle,
    output::{self, END_BYTES},
};
use crate::{
    base::{
        limit, seal,
        text::{self, hex},
    },
    sandbox::{self, Exec, Exit, OutputRange, OutputStream},
};

/// Directory for complete outputs of truncated results; temporary, in the sandbox.
const SPILL_DIR: &str = "/tmp/tool-output";
/// Max length of a call id that is used verbatim.
const PLAIN_ID_BYTES_MAX: usize = 100;

/// Returns the id of a call's command in the sandbox.
pub(super) fn id(call_id: &str) -> String {
    let id = call_id;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !id.is_empty() && id.len() <= PLAIN_ID_BYTES_MAX && id.bytes().all(plain) {
        return format!("t-{id}");
    }
    // A different prefix, so that no verbatim id can equal a digest.
    format!("h-{}", hex(&seal::sha256(id.as_bytes())))
}

/// Starts a program and waits until it exits.
pub(super) async fn run(
    handle: &SandboxHandle,
    id: &str,
    argv: Vec<String>,
    timeout: Duration,
) -> Result<Exit, Fault> {
    let exec = Exec {
        id: id.to_owned(),
        argv,
        cwd: handle.cwd().to_owned(),
        env: handle.env.clone(),
        timeout,
        output_bytes_max: limit::EXEC_OUTPUT_BYTES_MAX,
        is_service: false,
    };
    handle.sandbox.start(handle.fence, &exec).await?;
    found(handle, id).await?.ok_or_else(|| {
        Fault::SandboxUnreachable("it does not know a command that it has just started".to_owned())
    })
}

/// Waits for a command that was started before; `None` if it was never started.
pub(super) async fn found(handle: &SandboxHandle, id: &str) -> Result<Option<Exit>, Fault> {
    match handle.sandbox.wait(handle.fence, id).await {
        Ok(exit) => Ok(Some(exit)),
        Err(sandbox::Fault::NotFound(_)) => Ok(None),
        Err(fault) => Err(fault.into()),
    }
}

/// Ends the command of a call with all its descendants. Returns whether none is left; else the command's own
/// time limit, or the end of the sandbox, ends it.
pub(super) async fn kill(call_id: &str, handle: &SandboxHandle) -> bool {
    match handle.sandbox.kill(handle.fence, &id(call_id)).await {
        Ok(()) => true,
        Err(fault @ (sandbox::Fault::Unavailable(_) | sandbox::Fault::Stale)) => {
            tracing::warn!(call.id = call_id, error = %fault, "the command of a canceled call could not be killed");
            false
        }
        Err(_) => false,
    }
}

/// Reads at most `bytes_max` bytes of a stream from `offset`, in as many parts as needed.
pub(super) async fn bytes(
    handle: &SandboxHandle,
    id: &str,
    stream: OutputStream,
    offset: u64,
    bytes_max: usize,
) -> Result<Vec<u8>, Fault> {
    let mut all = Vec::new();
    while all.len() < bytes_max {
        let range =
            OutputRange { stream, offset: offset + all.len() as u64, bytes_max: bytes_max - all.len() };
        let part = handle.sandbox.output(handle.fence, id, range).await?;
        if part.is_empty() {
            break;
        }
        all.extend(part);
    }
    all.truncate(bytes_max);
    Ok(all)
}

/// Returns a command's output: whole, or its two ends and the path of the rest.
pub(super) async fn written(handle: &SandboxHandle, id: &str, exit: &Exit) -> Result<String, Fault> {
    let total = exit.stdout_bytes;
    if total <= 2 * END_BYTES as u64 {
        // Requests no more bytes than exist.
        let all = bytes(handle, id, OutputStream::Stdout, 0, total as usize).await?;
        return Ok(text::printable(&all));
    }
    let kept = total.min(limit::EXEC_OUTPUT_BYTES_MAX);
    let head = bytes(handle, id, OutputStream::Stdout, 0, END_BYTES).await?;
    let tail = bytes(handle, id, OutputStream::Stdout, kept - END_BYTES as u64, END_BYTES).await?;
    let advice = spill(handle, id, kept).await?;
    Ok(output::join(&text::printable(&head), &text::printable(&tail), total, &advice))
}

/// Saves the output to a file for the model and returns a sentence with its path.
async fn spill(handle: &SandboxHandle, id: &str, kept: u64) -> Result<String, Fault> {
    let whole = bytes(handle, id, OutputStream::Stdout, 0, limit::TOOL_FILE_BYTES_MAX).await?;
    let path = format!("{SPILL_DIR}/{id}.txt");
    match handle.sandbox.write_file(handle.fence, &path, &whole).await {
        Ok(()) if whole.len() as u64 == kept => {
            Ok(format!("The whole output is in {path}: use `read` or `grep` on it."))
        }
        Ok(()) => Ok(format!("Its first {} bytes are in {path}: use `read` or `grep` on it.", whole.len())),
        Err(fault @ (sandbox::Fault::Gone | sandbox::Fault::Stale)) => Err(fault.into()),
        // There is no space for the file; the two ends are still useful.
        Err(sandbox::Fault::NotFound(_) | sandbox::Fault::Refused(_) | sandbox::Fault::Unavailable(_)) => {
            Ok("Run a command with less output, or redirect its output to a file.".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_command_is_that_of_its_call_and_never_another_s() {
        assert_eq!(id("toolu_01-A"), "t-toolu_01-A");
        let digests = [id(""), id("a.b"), id("a:b"), id(&"x".repeat(101))];
        for (at, digest) in digests.iter().enumerate() {
            assert!(digest.starts_with("h-") && digest.len() <= 128, "{digest}");
            assert!(!digests[..at].contains(digest));
        }
    }
}
