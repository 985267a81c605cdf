//! The commands of the sandbox and their outcomes.
//!
//! Called by the server, which polls the runners' reports; starts runners. An id runs at most once per
//! sandbox: the table stores every id and exists as long as the sandbox.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::{self, File, OpenOptions},
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use sojourn_init::protocol::{
    Answer, Cause, ExecSpec, FaultKind, OUTPUT_DIR, Outcome, Signal, Stream, is_exec_id,
};

use crate::{
    fork, kill,
    runner::{self, DISK_FULL, GONE_LINE, INPUT, KILL},
};

/// Maximum number of commands that run or have left processes.
const EXECS_MAX: usize = 64;
/// Maximum number of ids of one sandbox: each may run only once, so none can be removed.
const EXECS_SEEN_MAX: usize = 100_000;
/// Maximum stored output of finished commands in bytes; beyond it, the oldest is removed first.
const FINISHED_BYTES_MAX: u64 = 512 << 20;
/// Maximum bytes of the input of a command.
const INPUT_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of finished commands with stored output: each takes a directory and two files.
const FINISHED_MAX: usize = 512;
/// A runner reports two short lines.
const REPORT_BYTES_MAX: usize = 4 << 10;

/// Every command that this sandbox has seen.
#[derive(Default)]
pub(crate) struct Execs {
    all: BTreeMap<String, Exec>,
    /// Ids of finished commands with stored output, oldest first.
    finished: VecDeque<String>,
    finished_bytes: u64,
}

struct Exec {
    /// The runner; `None` once no descendant of the command is left.
    runner: Option<Runner>,
    outcome: Option<Outcome>,
}

struct Runner {
    pid: u32,
    is_service: bool,
    control: PipeWriter,
    report: PipeReader,
    inbox: Vec<u8>,
}

impl Execs {
    /// Number of commands that run or have left processes, with services.
    pub(crate) fn running(&self) -> usize {
        self.all.values().filter(|exec| exec.runner.is_some()).count()
    }

    /// Number of commands, without services, that run or have left processes, and of those that have not ended.
    pub(crate) fn busy(&self) -> (u64, u64) {
        let running = |exec: &&Exec| exec.runner.as_ref().is_some_and(|runner| !runner.is_service);
        let running: Vec<_> = self.all.values().filter(running).collect();
        let unfinished = running.iter().filter(|exec| exec.outcome.is_none()).count();
        (running.len() as u64, unfinished as u64)
    }

    /// Pids of the runners.
    pub(crate) fn runner_pids(&self) -> BTreeSet<u32> {
        self.all.values().filter_map(|exec| Some(exec.runner.as_ref()?.pid)).collect()
    }

    /// Report pipe of each runner, for poll.
    pub(crate) fn reports(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.all.iter().filter_map(|(id, exec)| Some((id.as_str(), exec.runner.as_ref()?.report.as_fd())))
    }

    /// Starts a command, unless the id is known.
    pub(crate) fn start(&mut self, spec: &ExecSpec) -> Answer {
        if !is_exec_id(&spec.id) || spec.argv.is_empty() {
            return Answer::fault(FaultKind::Refused, "a command needs an id of [A-Za-z0-9_-] and a program");
        }
        if self.all.contains_key(&spec.id) {
            return Answer::Done {};
        }
        if self.running() >= EXECS_MAX {
            let text = format!("{EXECS_MAX} commands are running in this sandbox: end one first");
            return Answer::fault(FaultKind::Refused, text);
        }
        if self.all.len() >= EXECS_SEEN_MAX {
            let text = format!("this sandbox has run {EXECS_SEEN_MAX} commands: it must be replaced");
            return Answer::fault(FaultKind::Refused, text);
        }
        let directory = directory(&spec.id);
        match spawn_runner(&directory, spec) {
            Ok(runner) => {
                self.all.insert(spec.id.clone(), Exec { runner: Some(runner), outcome: None });
                Answer::Done {}
            }
            Err(error) => {
                // A partial directory would make a retry fail.
                let _ = fs::remove_dir_all(&directory);
                Answer::fault(FaultKind::Unavailable, format!("the command could not be started: {error}"))
            }
        }
    }

    /// Outcome of a command: `Exit`, `Running`, or a fault if the id is unknown.
    pub(crate) fn outcome(&self, exec_id: &str) -> Answer {
        match self.all.get(exec_id) {
            None => unknown(exec_id),
            Some(Exec { outcome: Some(outcome), .. }) => Answer::Exit(outcome.clone()),
            Some(Exec { outcome: None, .. }) => Answer::Running {},
        }
    }

    /// Requests the runner to end the command. Returns `Done` when no process of it is left, `Running` until
    /// then.
    pub(crate) fn kill(&mut self, exec_id: &str) -> Answer {
        match self.all.get_mut(exec_id) {
            None => unknown(exec_id),
            Some(Exec { runner: None, .. }) => Answer::Done {},
            Some(Exec { runner: Some(runner), .. }) => {
                // The write fails if the runner is just exiting, which is the desired result.
                let _ = runner.control.write_all(KILL);
                Answer::Running {}
            }
        }
    }

    /// Requests the runner to send a signal to the command. No effect on a command that has ended.
    pub(crate) fn signal(&mut self, exec_id: &str, signal: Signal) -> Answer {
        match self.all.get_mut(exec_id) {
            None => unknown(exec_id),
            Some(Exec { runner: None, .. }) => Answer::Done {},
            Some(Exec { runner: Some(runner), .. }) => {
                let _ = runner.control.write_all(&[runner::signal_byte(signal)]);
                Answer::Done {}
            }
        }
    }

    /// Appends text to the input of a command.
    pub(crate) fn input(&mut self, exec_id: &str, offset: u64, text: &str) -> Answer {
        let runner = match self.all.get_mut(exec_id) {
            None => return unknown(exec_id),
            Some(Exec { runner: Some(runner), outcome: None }) if runner.is_service => runner,
            Some(_) => {
                return Answer::fault(FaultKind::Refused, "this command has ended, or takes no input");
            }
        };
        match append(&directory(exec_id).join(Stream::Stdin.file_name()), offset, text.as_bytes()) {
            Ok(Ok(())) => {
                // The write fails if the runner is just exiting; then its outcome tells.
                let _ = runner.control.write_all(INPUT);
                Answer::Done {}
            }
            Ok(Err(refused)) => Answer::fault(FaultKind::Refused, refused),
            Err(error) => Answer::fault(FaultKind::Unavailable, error.to_string()),
        }
    }

    /// Requests every runner to end its command, because the disk limit is exceeded.
    pub(crate) fn end_for_disk(&mut self) {
        for runner in self.all.values_mut().filter_map(|exec| exec.runner.as_mut()) {
            let _ = runner.control.write_all(DISK_FULL);
        }
    }

    /// Whether no process of a command is left.
    pub(crate) fn is_gone(&self, exec_id: &str) -> bool {
        self.all.get(exec_id).is_none_or(|exec| exec.runner.is_none())
    }

    /// Reads stored output of a command.
    pub(crate) fn output(
        &self,
        exec_id: &str,
        stream: Stream,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize, Answer> {
        if !self.all.contains_key(exec_id) {
            return Err(unknown(exec_id));
        }
        let file = match File::open(directory(exec_id).join(stream.file_name())) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The runner is about to create it, or it was removed as the oldest output.
                return match self.is_gone(exec_id) {
                    true => Err(Answer::fault(FaultKind::NotFound, "this output is no longer stored")),
                    false => Ok(0),
                };
            }
            Err(error) => return Err(Answer::fault(FaultKind::Unavailable, error.to_string())),
        };
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(error) => return Err(Answer::fault(FaultKind::Unavailable, error.to_string())),
            }
        }
        Ok(filled)
    }

    /// Reads a runner's report.
    pub(crate) fn read_report(&mut self, exec_id: &str, helpers: &BTreeSet<u32>) {
        let Some(exec) = self.all.get_mut(exec_id) else {
            return;
        };
        let Some(runner) = &mut exec.runner else {
            return;
        };
        let mut chunk = [0; 1 << 10];
        let length = runner.report.read(&mut chunk).unwrap_or(0);
        runner.inbox.extend_from_slice(&chunk[..length]);
        let over = length == 0 || runner.inbox.len() > REPORT_BYTES_MAX;
        let report = String::from_utf8_lossy(&runner.inbox);
        if exec.outcome.is_none() && report.contains('\n') {
            exec.outcome = report.lines().next().and_then(|line| serde_json::from_str(line).ok());
        }
        if !over {
            return;
        }
        let died = !report.lines().any(|line| line == GONE_LINE);
        exec.runner = None;
        exec.outcome.get_or_insert(lost());
        self.finish(exec_id);
        if died {
            let mut own = self.runner_pids();
            own.extend(helpers);
            kill::kill_orphans(&own);
        }
    }

    /// Counts the output of a finished command, and removes the oldest outputs beyond the limits.
    fn finish(&mut self, exec_id: &str) {
        self.finished_bytes += kept_bytes(&directory(exec_id));
        self.finished.push_back(exec_id.to_owned());
        while self.finished.len() > FINISHED_MAX
            || (self.finished_bytes > FINISHED_BYTES_MAX && self.finished.len() > 1)
        {
            let Some(oldest) = self.finished.pop_front() else {
                return;
            };
            let directory = directory(&oldest);
            self.finished_bytes = self.finished_bytes.saturating_sub(kept_bytes(&directory));
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Starts the runner of a command. Fails if the directory exists, because the id must be new.
fn spawn_runner(directory: &Path, spec: &ExecSpec) -> io::Result<Runner> {
    fs::DirBuilder::new().mode(0o700).create(directory)?;
    if spec.is_service {
        let stdin = directory.join(Stream::Stdin.file_name());
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(stdin)?;
    }
    let ((asked, control), (report, said)) = (io::pipe()?, io::pipe()?);
    let pid = fork::run_in_child(asked, said, || runner::run(directory, spec))?;
    Ok(Runner { pid, is_service: spec.is_service, control, report, inbox: Vec::new() })
}

/// Appends bytes to a file of input, of which those before its end must be there already. The inner error says why that
/// can never be done.
fn append(path: &Path, offset: u64, bytes: &[u8]) -> io::Result<Result<(), String>> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    let length = file.metadata()?.len();
    let Some(known) = length.checked_sub(offset) else {
        return Ok(Err(format!("the input has {length} bytes: {offset} leaves a gap")));
    };
    let (known, new) = bytes.split_at(usize::try_from(known).unwrap_or(usize::MAX).min(bytes.len()));
    let mut there = vec![0; known.len()];
    file.read_exact_at(&mut there, offset)?;
    if there != known {
        return Ok(Err(format!("the input has other bytes from {offset} on")));
    }
    if length + new.len() as u64 > INPUT_BYTES_MAX {
        return Ok(Err(format!("a command takes at most {INPUT_BYTES_MAX} bytes of input")));
    }
    // A part of it must not stay: the next call would skip as much.
    file.write_all(new).inspect_err(|_| drop(file.set_len(length)))?;
    Ok(Ok(()))
}

fn directory(exec_id: &str) -> PathBuf {
    Path::new(OUTPUT_DIR).join(exec_id)
}

fn kept_bytes(directory: &Path) -> u64 {
    let length =
        |stream: Stream| fs::metadata(directory.join(stream.file_name())).map_or(0, |meta| meta.len());
    [Stream::Stdin, Stream::Stdout, Stream::Stderr].into_iter().map(length).sum()
}

/// Outcome of a command whose runner died without a report: it was killed.
fn lost() -> Outcome {
    Outcome { code: 137, cause: Cause::Killed, stdout_bytes: 0, stderr_bytes: 0, duration_ms: 0 }
}

fn unknown(exec_id: &str) -> Answer {
    Answer::fault(FaultKind::NotFound, format!("this sandbox has no command {exec_id}"))
}
