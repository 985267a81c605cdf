//! One process of a server in its sandbox: its stored input and output. Every call may be repeated, and is while the
//! sandbox is not available.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    base::limit::{EXEC_OUTPUT_BYTES_MAX, MCP_PROCESS_ATTEMPTS_MAX, MCP_PROCESS_POLL},
    sandbox::{Exec, Exit, Fault, OutputRange, OutputStream, Sandbox, SandboxFence},
};

/// Bytes of one read of input or output.
const READ_BYTES: usize = 256 << 10;
/// Bytes of the end of its error output that are told when it has ended.
const STDERR_BYTES: u64 = 400;

/// A command of a sandbox that takes input.
#[derive(Clone)]
pub(super) struct ServerExec {
    pub sandbox: Arc<dyn Sandbox>,
    pub fence: SandboxFence,
    pub id: String,
}

impl ServerExec {
    /// Starts it, unless it was started before.
    pub(super) async fn start(
        &self,
        argv: &[String],
        cwd: &str,
        env: &[(String, String)],
    ) -> Result<(), Fault> {
        let exec = Exec {
            id: self.id.clone(),
            argv: argv.to_vec(),
            cwd: cwd.to_owned(),
            env: env.to_vec(),
            timeout: Duration::MAX,
            output_bytes_max: EXEC_OUTPUT_BYTES_MAX,
            is_service: true,
        };
        repeated(|| self.sandbox.start(self.fence, &exec)).await
    }

    /// Appends to its input. See [`Sandbox::write_input`].
    pub(super) async fn write(&self, offset: u64, text: &str) -> Result<(), Fault> {
        repeated(|| self.sandbox.write_input(self.fence, &self.id, offset, text)).await
    }

    /// Reads what it was sent; nothing at the end, or when that is no longer stored.
    pub(super) async fn sent(&self, offset: u64) -> Result<Vec<u8>, Fault> {
        stored(repeated(|| self.sandbox.read_input(self.fence, &self.id, offset, READ_BYTES)).await)
    }

    /// Reads what it has written; nothing at the end, or when that is no longer stored.
    pub(super) async fn written(&self, offset: u64) -> Result<Vec<u8>, Fault> {
        let range = OutputRange { stream: OutputStream::Stdout, offset, bytes_max: READ_BYTES };
        stored(repeated(|| self.sandbox.output(self.fence, &self.id, range)).await)
    }

    /// Waits for its end.
    pub(super) async fn wait(&self) -> Result<Exit, Fault> {
        repeated(|| self.sandbox.wait(self.fence, &self.id)).await
    }

    /// Ends it.
    pub(super) async fn kill(&self) -> Result<(), Fault> {
        repeated(|| self.sandbox.kill(self.fence, &self.id)).await
    }

    /// Says how it ended.
    pub(super) async fn last_words(&self, exit: &Exit) -> String {
        let stored = exit.stderr_bytes.min(EXEC_OUTPUT_BYTES_MAX);
        let offset = stored.saturating_sub(STDERR_BYTES);
        let range = OutputRange { stream: OutputStream::Stderr, offset, bytes_max: STDERR_BYTES as usize };
        let said = self.sandbox.output(self.fence, &self.id, range).await.unwrap_or_default();
        let words =
            format!("it ended with exit code {}: {}", exit.code, String::from_utf8_lossy(&said).trim());
        words.trim_end_matches([' ', ':']).to_owned()
    }
}

/// Returns nothing for what is no longer stored.
fn stored(read: Result<Vec<u8>, Fault>) -> Result<Vec<u8>, Fault> {
    match read {
        Err(Fault::NotFound(_)) => Ok(Vec::new()),
        read => read,
    }
}

async fn repeated<T, F: Future<Output = Result<T, Fault>>>(call: impl Fn() -> F) -> Result<T, Fault> {
    let mut attempts_left = MCP_PROCESS_ATTEMPTS_MAX;
    let mut pause = MCP_PROCESS_POLL.1;
    loop {
        attempts_left -= 1;
        match call().await {
            Err(Fault::Unavailable(_)) if attempts_left > 0 => sleep(pause).await,
            answered => return answered,
        }
        pause *= 2;
    }
}
