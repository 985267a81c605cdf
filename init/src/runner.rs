//! The runner: parent process of one command.
//!
//! A fork of init made by `execs` for a command and its directory. It copies the output to files there, and
//! writes to its standard output one line of JSON when the command has ended and `gone` when no descendant is
//! left. A byte on its standard input requests the end of the command with a reason, or a signal. It is the
//! subreaper of all processes that the command starts and outlives them.

use std::{
    fs,
    io::{self, PipeReader, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            fs::PermissionsExt,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{self, WaitOptions, getpid, set_child_subreaper, wait},
};
use sojourn_init::protocol::{
    COMMAND_UID, Cause, ExecSpec, JOIN_OUTPUTS, OOM_COUNTER, Outcome, Signal, Stream,
};

use crate::{feed::Feed, kill, privilege, pump::Pump, usage};

/// Last line of the report: no descendant is left.
pub(crate) const GONE_LINE: &str = "gone";
/// Bytes from the server to a runner: end the command on request, or because the disk limit is exceeded.
pub(crate) const KILL: &[u8; 1] = b"k";
pub(crate) const DISK_FULL: &[u8; 1] = b"d";
/// Byte from the server to a runner: there is more input.
pub(crate) const INPUT: &[u8; 1] = b"i";
/// Interval of scans between SIGKILL and the end of the last process.
const KILL_INTERVAL: Duration = Duration::from_millis(10);
/// OOM score adjustment of the command: it is killed before init.
const OOM_SCORE_ADJ: &str = "500";

/// Runs a command and its descendants to their end. Output goes to `directory`.
#[expect(clippy::disallowed_methods, reason = "the reaper of one command ends with its process")]
pub(crate) fn run(directory: &Path, spec: &ExecSpec) -> io::Result<()> {
    privilege::pass_nothing_on()?;
    set_child_subreaper(Some(getpid()))?;
    let stdout = Pump::new(&directory.join(Stream::Stdout.file_name()), spec.output_bytes_max)?;
    let stderr = Pump::new(&directory.join(Stream::Stderr.file_name()), spec.output_bytes_max)?;
    let (ended, reaper) = io::pipe()?;
    let (go, started) = mpsc::channel();
    // Start the thread before the command: later there might be no free process slot.
    thread::Builder::new().stack_size(64 << 10).spawn(move || reap(&started, reaper))?;
    let stdin =
        spec.is_service.then(|| Feed::open(&directory.join(Stream::Stdin.file_name()))).transpose()?;
    let mut runner = Runner::new(spec, stdin, (stdout, stderr), ended);
    match runner.start(spec) {
        Ok(pid) => {
            // The thread ends only after the last child, so it receives this.
            let _ = go.send(pid);
            runner.serve_command()
        }
        Err(error) => runner.report_failed_start(spec, &error),
    }
}

/// Reaps until no child is left. Writes 4 bytes of status for the command itself, then closes the pipe.
fn reap(started: &mpsc::Receiver<u32>, mut ended: impl Write) {
    let Ok(command) = started.recv() else {
        return;
    };
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                if pid.as_raw_nonzero().get().cast_unsigned() == command {
                    let _ = ended.write_all(&status.as_raw().to_ne_bytes());
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // No child left: for a subreaper, that means no descendant either.
            Err(_) => return,
        }
    }
}

/// Progress of ending a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// SIGTERM was sent; SIGKILL follows at this time.
    Terminating(Instant),
    Killing,
}

struct Runner {
    stdin: Option<Feed>,
    stdout: Pump,
    stderr: Pump,
    ended: PipeReader,
    began: Instant,
    deadline: Option<Instant>,
    grace: Duration,
    ooms_before: u64,
    /// Reason of the requested end, if any.
    asked: Option<Cause>,
    /// Last signal that a caller sent.
    sent: Option<process::Signal>,
    timed_out: bool,
    ending: Ending,
    reported: bool,
}

impl Runner {
    fn new(spec: &ExecSpec, stdin: Option<Feed>, (stdout, stderr): (Pump, Pump), ended: PipeReader) -> Self {
        let began = Instant::now();
        Self {
            stdin,
            stdout,
            stderr,
            ended,
            began,
            // A time beyond the clock's range means no limit.
            deadline: began.checked_add(Duration::from_millis(spec.timeout_ms)),
            grace: Duration::from_millis(spec.grace_ms),
            ooms_before: oom_kills(),
            asked: None,
            sent: None,
            timed_out: false,
            ending: Ending::No,
            reported: false,
        }
    }

    fn start(&mut self, spec: &ExecSpec) -> io::Result<u32> {
        let (program, arguments, joins) = match spec.argv.as_slice() {
            [bash, c, join, line] if bash == "bash" && c == "-c" && join == JOIN_OUTPUTS => {
                (bash, ["-c", "--", line.as_str()].map(str::to_owned).to_vec(), true)
            }
            [program, arguments @ ..] => (program, arguments.to_vec(), false),
            [] => return Err(io::Error::other("the command is empty")),
        };
        let (stdout, stderr) = if joins {
            let (pipe, writer) = io::pipe()?;
            self.stdout.connect(pipe)?;
            (Stdio::from(writer.try_clone()?), Stdio::from(writer))
        } else {
            (Stdio::piped(), Stdio::piped())
        };
        // The child inherits the score; the runner may lower its own again after raising it.
        let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .env("PWD", &spec.cwd)
            .current_dir(&spec.cwd)
            .stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0)
            .uid(COMMAND_UID)
            .gid(COMMAND_UID);
        let child = match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && opened(&spec.cwd) => {
                command.spawn()
            }
            result => result,
        };
        let _ = fs::write("/proc/self/oom_score_adj", "0");
        let mut child = child?;
        if let Some((feed, pipe)) = self.stdin.as_mut().zip(child.stdin.take()) {
            feed.connect(pipe)?;
        }
        if let Some(pipe) = child.stdout.take() {
            self.stdout.connect(pipe)?;
        }
        if let Some(pipe) = child.stderr.take() {
            self.stderr.connect(pipe)?;
        }
        Ok(child.id())
    }

    /// Reports a shell's exit codes: 127 not found, 126 found but not executable.
    fn report_failed_start(&mut self, spec: &ExecSpec, error: &io::Error) -> io::Result<()> {
        let program = spec.argv.first().map_or("", String::as_str);
        let text = if Path::new(&spec.cwd).is_dir() {
            format!("cannot run {program}: {error}\n")
        } else {
            format!("cannot run {program}: no such directory: {}\n", spec.cwd)
        };
        self.stderr.store(text.as_bytes());
        self.report(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }, Cause::Exited)?;
        println!("{GONE_LINE}");
        Ok(())
    }

    /// Copies output, waits, and ends the command if needed, until no descendant is left.
    fn serve_command(&mut self) -> io::Result<()> {
        loop {
            let ready = self.poll()?;
            if ready.stdout {
                self.stdout.take_chunk();
            }
            if ready.stderr {
                self.stderr.take_chunk();
            }
            if ready.stdin
                && let Some(feed) = &mut self.stdin
            {
                feed.give();
            }
            if ready.ended && !self.read_end()? {
                self.stdout.drain();
                self.stderr.drain();
                println!("{GONE_LINE}");
                return Ok(());
            }
            if ready.asked {
                self.handle_request(read_request());
            }
            self.check_timeouts();
        }
    }

    fn poll(&self) -> io::Result<Ready> {
        let stdin = io::stdin();
        let asking = self.asked.is_none().then(|| stdin.as_fd());
        let sources = [
            (Some(self.ended.as_fd()), PollFlags::IN),
            (asking, PollFlags::IN),
            (self.stdout.pipe(), PollFlags::IN),
            (self.stderr.pipe(), PollFlags::IN),
            (self.stdin.as_ref().and_then(Feed::pipe), PollFlags::OUT),
        ];
        // Unused slots get a descriptor with an empty event set.
        let mut slots = sources.map(|(source, flags)| match source {
            Some(fd) => PollFd::from_borrowed_fd(fd, flags),
            None => PollFd::from_borrowed_fd(self.ended.as_fd(), PollFlags::empty()),
        });
        let timeout = self.next_time().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|wait| Timespec::try_from(wait).ok());
        match poll(&mut slots, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |index: usize| sources[index].0.is_some() && !slots[index].revents().is_empty();
        Ok(Ready { ended: ready(0), asked: ready(1), stdout: ready(2), stderr: ready(3), stdin: ready(4) })
    }

    /// Time of the next action without an event.
    fn next_time(&self) -> Option<Instant> {
        match self.ending {
            Ending::No => self.deadline.filter(|_| !self.reported),
            Ending::Terminating(kill_at) => Some(kill_at),
            Ending::Killing => Some(Instant::now() + KILL_INTERVAL),
        }
    }

    fn check_timeouts(&mut self) {
        let now = Instant::now();
        match self.ending {
            Ending::No => {
                if !self.reported && self.deadline.is_some_and(|deadline| now >= deadline) {
                    self.timed_out = true;
                    self.begin_ending();
                }
            }
            Ending::Terminating(kill_at) => {
                if now >= kill_at {
                    self.ending = Ending::Killing;
                    kill::kill_descendants(std::process::id());
                }
            }
            Ending::Killing => kill::kill_descendants(std::process::id()),
        }
    }

    fn handle_request(&mut self, asked: ServerRequest) {
        match asked {
            ServerRequest::End(cause) => {
                self.asked = Some(cause);
                self.begin_ending();
            }
            ServerRequest::Kill => {
                self.asked = Some(Cause::Killed);
                self.ending = Ending::Killing;
            }
            ServerRequest::Input => {
                if let Some(feed) = &mut self.stdin {
                    feed.look();
                }
            }
            ServerRequest::Send(signal) => {
                self.sent = Some(signal);
                kill::signal_descendants(std::process::id(), signal);
            }
        }
    }

    fn begin_ending(&mut self) {
        if self.ending == Ending::No {
            kill::signal_descendants(std::process::id(), process::Signal::TERM);
            self.ending = Ending::Terminating(Instant::now() + self.grace);
        }
    }

    /// Reads from the reaper; returns whether processes are left.
    fn read_end(&mut self) -> io::Result<bool> {
        let mut status = [0; 4];
        if self.ended.read(&mut status)? < status.len() {
            return Ok(false);
        }
        self.stdout.drain();
        self.stderr.drain();
        let status = ExitStatus::from_raw(i32::from_ne_bytes(status));
        let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1);
        let cause = if self.timed_out {
            Cause::Timeout
        } else if let Some(cause) = self.asked {
            cause
        } else if self.sent.is_some_and(|sent| status.signal() == Some(sent.as_raw())) {
            // The signal that a caller sent ended it.
            Cause::Killed
        } else if code != 0 && oom_kills() > self.ooms_before {
            // Exit code 137 alone is ambiguous, and a shell or a build returns another code when its child
            // was killed.
            Cause::Oom
        } else if code != 0 && usage::is_full() {
            Cause::DiskFull
        } else {
            Cause::Exited
        };
        self.report(code, cause)?;
        Ok(true)
    }

    fn report(&mut self, code: i32, cause: Cause) -> io::Result<()> {
        self.reported = true;
        let outcome = Outcome {
            code,
            cause,
            stdout_bytes: self.stdout.seen_bytes(),
            stderr_bytes: self.stderr.seen_bytes(),
            duration_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        println!("{}", serde_json::to_string(&outcome)?);
        Ok(())
    }
}

struct Ready {
    ended: bool,
    asked: bool,
    stdout: bool,
    stderr: bool,
    stdin: bool,
}

/// Request of the server.
enum ServerRequest {
    End(Cause),
    /// End without a grace period.
    Kill,
    /// Pass more input on.
    Input,
    Send(process::Signal),
}

/// Reads a request of the server. A closed pipe requests the end.
fn read_request() -> ServerRequest {
    let mut word = [0];
    match io::stdin().read(&mut word) {
        Ok(1) if word == *DISK_FULL => ServerRequest::End(Cause::DiskFull),
        Ok(1) if word == *INPUT => ServerRequest::Input,
        Ok(1) if word == [signal_byte(Signal::Kill)] => ServerRequest::Kill,
        Ok(1) => match SIGNALS.iter().find(|(named, _)| word == [signal_byte(*named)]) {
            Some((_, signal)) => ServerRequest::Send(*signal),
            None => ServerRequest::End(Cause::Killed),
        },
        _ => ServerRequest::End(Cause::Killed),
    }
}

/// Signals that are only delivered; SIGKILL is handled separately.
const SIGNALS: [(Signal, process::Signal); 6] = [
    (Signal::Hup, process::Signal::HUP),
    (Signal::Int, process::Signal::INT),
    (Signal::Quit, process::Signal::QUIT),
    (Signal::Usr1, process::Signal::USR1),
    (Signal::Usr2, process::Signal::USR2),
    (Signal::Term, process::Signal::TERM),
];

/// Byte that requests a signal; differs from the bytes that request an end with a grace period.
pub(crate) fn signal_byte(signal: Signal) -> u8 {
    match signal {
        Signal::Hup => b'H',
        Signal::Int => b'I',
        Signal::Quit => b'Q',
        Signal::Usr1 => b'1',
        Signal::Usr2 => b'2',
        Signal::Term => b'T',
        Signal::Kill => b'K',
    }
}

/// Possible paths of the counter: where the service mounts it, or where an engine that creates the cgroup
/// itself exposes it.
const OOM_COUNTERS: [&str; 3] =
    [OOM_COUNTER, "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// Number of out-of-memory kills in the sandbox: `oom_kill N` in the cgroup's counters (`memory.oom_control`
/// of v1, `memory.events` of v2).
fn oom_kills() -> u64 {
    let count = |path: &&str| {
        let counters = fs::read_to_string(path).ok()?;
        counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    };
    OOM_COUNTERS.iter().find_map(count).unwrap_or(0)
}

/// Gives its owner access to a working directory that an earlier command closed, and returns whether that changed it.
///
/// An agent has only commands that start there, so it could not do it itself. A thread of its own acts as the user of
/// commands, who may change only what is theirs.
#[expect(clippy::disallowed_methods, reason = "the thread is joined here")]
fn opened(directory: &str) -> bool {
    let directory = directory.to_owned();
    let open = move || -> io::Result<bool> {
        privilege::act_as_command_user()?;
        let mode = fs::metadata(&directory)?.permissions().mode();
        let wanted = mode | 0o700;
        if wanted != mode {
            fs::set_permissions(&directory, fs::Permissions::from_mode(wanted))?;
        }
        Ok(wanted != mode)
    };
    thread::Builder::new()
        .stack_size(64 << 10)
        .spawn(open)
        .is_ok_and(|thread| thread.join().is_ok_and(|result| result.unwrap_or(false)))
}
