//! Lifecycle hooks: scripts that prepare a sandbox before its first command.
//!
//! Called by `leased_sandbox` when a sandbox is first used under a lease, and by `source` after the
//! clones. A hook is a command like any other: it outlives its worker, and the sandbox knows its id, so
//! it runs once in each sandbox.

use crate::{
    base::{
        limit::{EXEC_SUMMARY_BYTES_MAX, LIFECYCLE_HOOK_OUTPUT_BYTES_MAX, LIFECYCLE_HOOK_TIMEOUT},
        text,
    },
    sandbox::{Cause, Exec, Exit, Fault, OutputRange, OutputStream, Sandbox, SandboxFence},
};

/// Runs the lifecycle hook `name`, or waits for the one that runs. Returns the reason if it failed.
pub(crate) async fn run(
    sandbox: &dyn Sandbox,
    sandbox_fence: SandboxFence,
    name: &str,
    script: &str,
) -> Result<Option<String>, Fault> {
    let id = format!("hook-{name}");
    let exec = Exec {
        id: id.clone(),
        argv: ["bash", "-c", script].map(str::to_owned).to_vec(),
        cwd: String::new(),
        env: Vec::new(),
        timeout: LIFECYCLE_HOOK_TIMEOUT,
        output_bytes_max: LIFECYCLE_HOOK_OUTPUT_BYTES_MAX,
        is_service: false,
    };
    sandbox.start(sandbox_fence, &exec).await?;
    let exit = sandbox.wait(sandbox_fence, &id).await?;
    if exit.code == 0 && exit.cause == Cause::Exited {
        return Ok(None);
    }
    let mut said = String::new();
    for (stream, bytes) in
        [(OutputStream::Stdout, exit.stdout_bytes), (OutputStream::Stderr, exit.stderr_bytes)]
    {
        // Output beyond the limit was not stored.
        let kept = bytes.min(LIFECYCLE_HOOK_OUTPUT_BYTES_MAX);
        let offset = kept.saturating_sub(EXEC_SUMMARY_BYTES_MAX as u64);
        let range = OutputRange { stream, offset, bytes_max: EXEC_SUMMARY_BYTES_MAX };
        let end = sandbox.output(sandbox_fence, &id, range).await.unwrap_or_default();
        said.push_str(&text::printable(&end));
    }
    Ok(Some(format!("{name} {}: {}", ended(&exit), text::truncate(said.trim(), EXEC_SUMMARY_BYTES_MAX))))
}

fn ended(exit: &Exit) -> String {
    match exit.cause {
        Cause::Exited => format!("ended with {}", exit.code),
        Cause::Timeout => format!("did not end within {} s", LIFECYCLE_HOOK_TIMEOUT.as_secs()),
        Cause::Oom => "ran out of memory".to_owned(),
        Cause::DiskFull => "filled the disk".to_owned(),
        Cause::Killed => "was killed".to_owned(),
    }
}
