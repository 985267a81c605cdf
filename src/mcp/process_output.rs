//! Messages of a server process as they arrive: the transport of the library.

use std::{pin::Pin, sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::time::sleep;

use super::{
    lines::Lines,
    process::{Process, SendError},
    transport::not_for_sessions,
};
use crate::{
    base::limit::{EXEC_OUTPUT_BYTES_MAX, MCP_MESSAGE_BYTES_MAX, MCP_PROCESS_IDLE_POLL, MCP_PROCESS_POLL},
    sandbox::Fault,
};

/// The output of a process. Dropping it leaves the process running.
pub(super) struct ProcessOutput {
    process: Arc<Process>,
    offset: u64,
    lines: Lines,
    pause: Duration,
    /// Says how it ended.
    exit: Pin<Box<dyn Future<Output = String> + Send>>,
    has_ended: bool,
}

impl ProcessOutput {
    /// Reads from `offset` on.
    pub(super) fn new(process: Arc<Process>, offset: u64) -> Self {
        let exec = process.exec.clone();
        Self {
            process,
            offset,
            lines: Lines::default(),
            pause: MCP_PROCESS_POLL.0,
            exit: Box::pin(async move {
                match exec.wait().await {
                    Ok(exit) => exec.last_words(&exit).await,
                    Err(fault) => fault.to_string(),
                }
            }),
            has_ended: false,
        }
    }

    /// Returns the next message that was read.
    fn next(&self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            match serde_json::from_value(self.process.next()?) {
                Ok(message) => return Some(message),
                Err(error) => {
                    tracing::debug!(%error, "a message of an MCP server is not one of the protocol")
                }
            }
        }
    }

    /// Reads what the process has written. Returns whether there was anything.
    async fn read(&mut self) -> Result<bool, Fault> {
        let bytes = self.process.exec.written(self.offset).await?;
        self.offset += bytes.len() as u64;
        self.process.receive(self.lines.take(&bytes), bytes.len());
        if self.lines.is_too_long() {
            return Err(Fault::Refused(format!(
                "it sent a message of more than {MCP_MESSAGE_BYTES_MAX} bytes"
            )));
        }
        if self.offset >= EXEC_OUTPUT_BYTES_MAX {
            return Err(Fault::Refused(format!(
                "it has written {EXEC_OUTPUT_BYTES_MAX} bytes, and no more is stored"
            )));
        }
        Ok(!bytes.is_empty())
    }
}

impl Transport<RoleClient> for ProcessOutput {
    type Error = SendError;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        not_for_sessions(&mut message);
        let process = Arc::clone(&self.process);
        async move { process.send(serde_json::to_value(message)?).await }
    }

    /// Cancellation safe: what was read is kept.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some(message) = self.next() {
                return Some(message);
            }
            match self.read().await {
                Ok(true) => {
                    self.pause = MCP_PROCESS_POLL.0;
                    continue;
                }
                Ok(false) if self.has_ended || self.process.end().is_some() => return None,
                Ok(false) => {}
                Err(fault) => {
                    self.process.note_end(&fault.to_string());
                    return None;
                }
            }
            tokio::select! {
                words = &mut self.exit => {
                    self.exit = Box::pin(std::future::pending());
                    self.process.note_end(&words);
                    // What it wrote last is read first.
                    self.has_ended = true;
                }
                () = self.process.stirred.notified() => self.pause = MCP_PROCESS_POLL.0,
                () = sleep(self.pause) => {
                    let longest = if self.process.is_asked() { MCP_PROCESS_POLL.1 } else { MCP_PROCESS_IDLE_POLL };
                    self.pause = (self.pause * 2).min(longest);
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), SendError> {
        Ok(())
    }
}
