//! A server that is a program in the sandbox of a session: finds its process, or starts one.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio_util::task::TaskTracker;

use super::{
    Failure,
    exec::ServerExec,
    lines::Lines,
    process::Process,
    process_output::ProcessOutput,
    transcript::{SentCall, Transcript},
};
use crate::{
    base::limit::{EXEC_OUTPUT_BYTES_MAX, MCP_PROCESS_BYTES_MAX, MCP_PROCESSES_MAX},
    sandbox::{Fault, Sandbox, SandboxFence},
};

/// Processes that have ended whose calls are looked for. A call that must not be made again runs alone, so it was sent to
/// the last one.
const ENDED_MAX: usize = 2;
/// Messages of a process that are read. One that has sent more is replaced.
const MESSAGES_MAX: usize = 100_000;

/// A server that runs in a sandbox.
#[derive(Clone)]
pub struct Program {
    pub sandbox: Arc<dyn Sandbox>,
    pub fence: SandboxFence,
    /// `[A-Za-z0-9_-]`; names the server in its sandbox.
    pub name: String,
    pub argv: Vec<String>,
    /// Directory in which it starts; the default one if it is empty.
    pub cwd: String,
    pub env: Vec<(String, String)>,
    /// Whether it is started if it does not run.
    pub may_start: bool,
}

/// The stored part of a process: its input and output.
struct Stored {
    transcript: Transcript,
    /// Bytes of its input.
    input_bytes: u64,
    /// Bytes of the complete lines of its output.
    output_bytes: u64,
    /// Whether its input ends within a line.
    is_cut: bool,
    /// Whether nothing more of its output can be read.
    is_full: bool,
}

impl Stored {
    /// Whether the process can serve another connection.
    fn is_usable(&self) -> bool {
        let is_small = self.input_bytes + self.output_bytes < MCP_PROCESS_BYTES_MAX;
        !self.is_full && !self.transcript.is_refused() && (is_small || self.transcript.has_open_call())
    }
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
        let mut ended = VecDeque::new();
        for number in 0..MCP_PROCESSES_MAX {
            let id = format!("mcp-{}-{number}", self.name);
            let exec = ServerExec { sandbox: Arc::clone(&self.sandbox), fence: self.fence, id };
            match exec.write(0, "").await {
                Ok(()) => {
                    let stored = read(&exec).await.map_err(unreachable)?;
                    if stored.is_usable() {
                        let calls = calls_of(&ended).await.map_err(unreachable)?;
                        return connected(exec, stored, calls, tasks).await;
                    }
                }
                Err(Fault::Refused(_)) => {}
                Err(Fault::NotFound(_)) if !self.may_start => {
                    return Err(Failure::Unreachable("it does not run".to_owned()));
                }
                Err(Fault::NotFound(_)) => {
                    let calls = calls_of(&ended).await.map_err(unreachable)?;
                    exec.start(&self.argv, &self.cwd, &self.env).await.map_err(unreachable)?;
                    let process = Process::new(exec, tasks, Transcript::new(calls), (0, 0));
                    return Ok((Arc::clone(&process), ProcessOutput::new(process, 0)));
                }
                Err(fault) => return Err(unreachable(fault)),
            }
            ended.push_back(exec);
            if ended.len() > ENDED_MAX {
                ended.pop_front();
            }
        }
        Err(Failure::Unreachable(format!("it was started {MCP_PROCESSES_MAX} times in this sandbox")))
    }
}

/// Ends what is left of processes. Returns their calls.
async fn calls_of(processes: &VecDeque<ServerExec>) -> Result<HashMap<String, SentCall>, Fault> {
    let mut calls = HashMap::new();
    for exec in processes {
        exec.kill().await?;
        calls.extend(read(exec).await?.transcript.calls_at_end());
    }
    Ok(calls)
}

/// Goes on with a process that runs.
async fn connected(
    exec: ServerExec,
    stored: Stored,
    calls: HashMap<String, SentCall>,
    tasks: TaskTracker,
) -> Result<(Arc<Process>, ProcessOutput), Failure> {
    let Stored { mut transcript, input_bytes, output_bytes, is_cut, .. } = stored;
    transcript.take_earlier(calls);
    let process = Process::new(exec, tasks, transcript, (input_bytes, output_bytes));
    if is_cut {
        // An earlier worker did not send the end of it.
        let written = Arc::clone(&process).write("\n".to_owned()).await;
        written.map_err(|error| Failure::Unreachable(error.to_string()))?;
    }
    Ok((Arc::clone(&process), ProcessOutput::new(process, output_bytes)))
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
    // It only lacks the end of its line, which the next connection sends.
    sent.message().iter().for_each(|message| transcript.take_sent(message));
    let (mut read_bytes, mut received, mut messages) = (0, Lines::default(), 0);
    while messages < MESSAGES_MAX {
        let bytes = exec.written(read_bytes).await?;
        if bytes.is_empty() {
            break;
        }
        read_bytes += bytes.len() as u64;
        let complete = received.take(&bytes);
        messages += complete.len();
        complete.into_iter().for_each(|message| transcript.take_received(message));
    }
    Ok(Stored {
        transcript,
        input_bytes,
        output_bytes: read_bytes - received.open_bytes(),
        is_cut: sent.open_bytes() > 0,
        is_full: messages >= MESSAGES_MAX || received.is_too_long() || read_bytes >= EXEC_OUTPUT_BYTES_MAX,
    })
}
