//! A server that is a program in the sandbox of a session: finds its process, or starts one.

use std::{collections::HashMap, sync::Arc};

use tokio_util::task::TaskTracker;

use super::{
    Failure, exec::ServerExec, lines::Lines, process::Process, process_output::ProcessOutput,
    transcript::Transcript,
};
use crate::{
    base::limit::{MCP_PROCESS_BYTES_MAX, MCP_PROCESSES_MAX},
    sandbox::{Fault, Sandbox, SandboxFence},
};

/// A server that runs in a sandbox.
#[derive(Clone)]
pub struct Program {
    pub sandbox: Arc<dyn Sandbox>,
    pub fence: SandboxFence,
    /// `[A-Za-z0-9]`; names the server in its sandbox.
    pub name: String,
    pub argv: Vec<String>,
    /// Directory in which it starts; the default one if it is empty.
    pub cwd: String,
    pub env: Vec<(String, String)>,
}

/// What is stored of a process.
struct Stored {
    transcript: Transcript,
    /// Bytes of its input.
    input_bytes: u64,
    /// Bytes of the complete lines of its output.
    output_bytes: u64,
    /// Whether its input ends within a line.
    is_cut: bool,
}

impl Program {
    /// Returns the process of the server: the one that runs, or a new one.
    ///
    /// The processes of a server in a sandbox are numbered, because a command runs once under its id.
    ///
    /// # Errors
    /// `Unreachable`: nothing was sent.
    pub(super) async fn process(&self, tasks: TaskTracker) -> Result<(Arc<Process>, ProcessOutput), Failure> {
        let unreachable = |fault: Fault| Failure::Unreachable(fault.to_string());
        let mut calls = HashMap::new();
        for number in 0..MCP_PROCESSES_MAX {
            let id = format!("mcp-{}-{number}", self.name);
            let exec = ServerExec { sandbox: Arc::clone(&self.sandbox), fence: self.fence, id };
            let runs = match exec.write(0, "").await {
                Ok(()) => true,
                Err(Fault::Refused(_)) => false,
                Err(Fault::NotFound(_)) => {
                    exec.start(&self.argv, &self.cwd, &self.env).await.map_err(unreachable)?;
                    let process = Process::new(exec, tasks, Transcript::new(calls), 0);
                    return Ok((Arc::clone(&process), ProcessOutput::new(process, 0)));
                }
                Err(fault) => return Err(unreachable(fault)),
            };
            let Stored { mut transcript, input_bytes, output_bytes, is_cut } =
                read(&exec).await.map_err(unreachable)?;
            if runs && (transcript.has_open_call() || input_bytes + output_bytes < MCP_PROCESS_BYTES_MAX) {
                transcript.take_earlier(calls);
                let process = Process::new(exec, tasks, transcript, input_bytes);
                if is_cut {
                    // What an earlier worker began to send is no message: the call in it was not made.
                    let ended = process.write("\n".to_owned()).await;
                    ended.map_err(|error| Failure::Unreachable(error.to_string()))?;
                }
                return Ok((Arc::clone(&process), ProcessOutput::new(process, output_bytes)));
            }
            if runs {
                exec.kill().await.map_err(unreachable)?;
            }
            calls.extend(transcript.calls_at_end());
        }
        Err(Failure::Unreachable(format!("it was started {MCP_PROCESSES_MAX} times in this sandbox")))
    }
}

/// Reads what a process was sent and what it answered.
async fn read(exec: &ServerExec) -> Result<Stored, Fault> {
    let mut transcript = Transcript::default();
    let (mut input_bytes, mut sent) = (0, Lines::default());
    loop {
        let bytes = exec.sent(input_bytes).await?;
        if bytes.is_empty() {
            break;
        }
        input_bytes += bytes.len() as u64;
        sent.take(&bytes).iter().for_each(|message| transcript.take_sent(message));
    }
    let (mut output_bytes, mut received) = (0, Lines::default());
    loop {
        let bytes = exec.written(output_bytes).await?;
        if bytes.is_empty() {
            break;
        }
        output_bytes += bytes.len() as u64;
        received.take(&bytes).into_iter().for_each(|message| transcript.take_received(message));
    }
    let is_cut = !sent.rest.is_empty();
    Ok(Stored { transcript, input_bytes, output_bytes: output_bytes - received.rest.len() as u64, is_cut })
}
