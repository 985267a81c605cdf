//! The commands of the sandbox: which there are, which run, how they ended.
//!
//! Called by the server, which polls the runners' reports; starts runners. An id
//! runs at most once in the life of a sandbox: the table remembers every id, and it
//! lives exactly as long as the sandbox.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::{self, File},
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{DirBuilderExt, FileExt},
    },
    path::{Path, PathBuf},
};

use sojourn_init::protocol::{
    Answer, Cause, ExecSpec, FaultKind, OUTPUT_DIR, Outcome, Signal, Stream, is_exec_id,
};

use crate::{
    fork, kill,
    runner::{self, DISK_FULL, GONE_LINE, KILL},
};

/// Commands that run or left processes behind, at the same time.
const EXECS_MAX: usize = 64;
/// Ids that one sandbox remembers: each may run once, so none can be forgotten.
const EXECS_SEEN_MAX: usize = 100_000;
/// Output of finished commands that is kept, all together, in bytes; beyond it
/// the oldest goes first.
const FINISHED_BYTES_MAX: u64 = 512 << 20;
/// Finished commands whose output is kept: each takes a directory and two files.
const FINISHED_MAX: usize = 512;
/// A runner reports one short line, then another.
const REPORT_BYTES_MAX: usize = 4 << 10;

/// Every command that this sandbox has seen.
#[derive(Default)]
pub struct Execs {
    all: BTreeMap<String, Exec>,
    /// Ids of finished commands whose output is still there, oldest first.
    finished: VecDeque<String>,
    finished_bytes: u64,
}

struct Exec {
    /// The runner, until no descendant of the command is left.
    runner: Option<Runner>,
    outcome: Option<Outcome>,
}

struct Runner {
    pid: u32,
    control: PipeWriter,
    report: PipeReader,
    inbox: Vec<u8>,
}

impl Execs {
    /// Commands that run or left processes behind.
    pub fn running(&self) -> usize {
        self.all.values().filter(|exec| exec.runner.is_some()).count()
    }

    /// Commands that are not over.
    pub fn unfinished(&self) -> usize {
        self.all.values().filter(|exec| exec.runner.is_some() && exec.outcome.is_none()).count()
    }

    /// Pids of the runners.
    pub fn runner_pids(&self) -> BTreeSet<u32> {
        self.all.values().filter_map(|exec| Some(exec.runner.as_ref()?.pid)).collect()
    }

    /// What to poll: the report of each runner.
    pub fn reports(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.all.iter().filter_map(|(id, exec)| Some((id.as_str(), exec.runner.as_ref()?.report.as_fd())))
    }

    /// Starts a command, unless the id is known.
    pub fn start(&mut self, spec: &ExecSpec) -> Answer {
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
                // Half a directory would refuse the next try.
                let _ = fs::remove_dir_all(&directory);
                Answer::fault(FaultKind::Unavailable, format!("the command could not be started: {error}"))
            }
        }
    }

    /// How a command ended, `Running` if it did not, or that there is none.
    pub fn outcome(&self, exec_id: &str) -> Answer {
        match self.all.get(exec_id) {
            None => unknown(exec_id),
            Some(Exec { outcome: Some(outcome), .. }) => Answer::Exit(outcome.clone()),
            Some(Exec { outcome: None, .. }) => Answer::Running {},
        }
    }

    /// Asks the runner to end the command. `Done` when nothing of it is left,
    /// `Running` until then.
    pub fn kill(&mut self, exec_id: &str) -> Answer {
        match self.all.get_mut(exec_id) {
            None => unknown(exec_id),
            Some(Exec { runner: None, .. }) => Answer::Done {},
            Some(Exec { runner: Some(runner), .. }) => {
                // A runner that is just going has closed its end: that is the wish.
                let _ = runner.control.write_all(KILL);
                Answer::Running {}
            }
        }
    }

    /// Asks the runner to send a signal to the command. One that is over gets none.
    pub fn signal(&mut self, exec_id: &str, signal: Signal) -> Answer {
        match self.all.get_mut(exec_id) {
            None => unknown(exec_id),
            Some(Exec { runner: None, .. }) => Answer::Done {},
            Some(Exec { runner: Some(runner), .. }) => {
                let _ = runner.control.write_all(&[runner::signal_byte(signal)]);
                Answer::Done {}
            }
        }
    }

    /// Asks every runner to end its command: the files take more than they may.
    pub fn end_for_disk(&mut self) {
        for runner in self.all.values_mut().filter_map(|exec| exec.runner.as_mut()) {
            let _ = runner.control.write_all(DISK_FULL);
        }
    }

    /// Whether anything of a command is left.
    pub fn is_gone(&self, exec_id: &str) -> bool {
        self.all.get(exec_id).is_none_or(|exec| exec.runner.is_none())
    }

    /// Kept bytes of a command's output.
    pub fn output(
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
                // The runner is about to make it, or the oldest output made room.
                return match self.is_gone(exec_id) {
                    true => Err(Answer::fault(FaultKind::NotFound, "this output is no longer kept")),
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

    /// Reads what a runner reports.
    pub fn read_report(&mut self, exec_id: &str, helpers: &BTreeSet<u32>) {
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
            kill::kill_strangers(&own);
        }
    }

    /// Counts the output of a command that is over and makes room.
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

/// Starts the process above a command. Its directory is new, so the id is.
fn spawn_runner(directory: &Path, spec: &ExecSpec) -> io::Result<Runner> {
    fs::DirBuilder::new().mode(0o700).create(directory)?;
    let ((asked, control), (report, said)) = (io::pipe()?, io::pipe()?);
    let pid = fork::apart(asked, said, || runner::run(directory, spec))?;
    Ok(Runner { pid, control, report, inbox: Vec::new() })
}

fn directory(exec_id: &str) -> PathBuf {
    Path::new(OUTPUT_DIR).join(exec_id)
}

fn kept_bytes(directory: &Path) -> u64 {
    let length =
        |stream: Stream| fs::metadata(directory.join(stream.file_name())).map_or(0, |meta| meta.len());
    length(Stream::Stdout) + length(Stream::Stderr)
}

/// The outcome of a command whose runner died without a word: something killed it.
fn lost() -> Outcome {
    Outcome { code: 137, cause: Cause::Killed, stdout_bytes: 0, stderr_bytes: 0, duration_ms: 0 }
}

fn unknown(exec_id: &str) -> Answer {
    Answer::fault(FaultKind::NotFound, format!("this sandbox has seen no command {exec_id}"))
}
