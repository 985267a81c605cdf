//! Event loop of PID 1: connections, runners, orphans, and its own end.
//!
//! Started by `main`; calls `execs` and starts file helpers. One thread with poll, because a sandbox whose
//! processes are used up must still respond and kill. The end of a connection never ends a command.

mod disk;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, PipeReader},
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixListener},
    },
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::Mode,
    process::{WaitOptions, umask, wait},
};
use sojourn_init::protocol::{Answer, CONTROL_DIR, Call, FaultKind, PROGRAM, PROXY_PORT, SOCKET_NAME};

use self::disk::{USAGE_INTERVAL, busy_packing};
use crate::{
    connection::{Arrived, Connection, Pending},
    execs::Execs,
    files::PART_BYTES_MAX,
    privilege,
    usage::Usage,
};

/// Maximum concurrent connections; one call each.
const CONNECTIONS_MAX: usize = 256;
/// Maximum concurrent file helpers.
const HELPERS_MAX: usize = 16;
/// Maximum poll timeout: orphans of a dead runner cause no event.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Serves until the sandbox is ended or received no call for `orphan_after`. With `disk_bytes`, ends all
/// commands when the files exceed that size.
pub(crate) fn serve(orphan_after: Option<Duration>, disk_bytes: Option<u64>) -> io::Result<()> {
    privilege::keep_what_init_needs()?;
    let path = Path::new(CONTROL_DIR).join(SOCKET_NAME);
    // Mode 0660 from the start. Only the sandbox's root is in the group, or a service without root, which may
    // connect at once.
    let before = umask(Mode::from_raw_mode(0o117));
    let listener = UnixListener::bind(&path)?;
    umask(before);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660))?;
    listener.set_nonblocking(true)?;
    let mut server = Server {
        listener,
        proxy: listen_for_proxy(),
        relay: None,
        connections: BTreeMap::new(),
        next_token: 0,
        execs: Execs::default(),
        helpers: BTreeSet::new(),
        packing: None,
        is_quiesced: false,
        disk_bytes,
        usage: None,
        last_measured: Instant::now(),
        is_over: false,
        was_written: false,
        epoch: i64::MIN,
        last_call: Instant::now(),
    };
    loop {
        let sweep = if disk_bytes.is_some() { USAGE_INTERVAL } else { SWEEP_INTERVAL };
        server.turn(orphan_after.unwrap_or(sweep).min(sweep))?;
        server.measure_disk();
        if orphan_after.is_some_and(|after| server.last_call.elapsed() >= after) {
            return Ok(());
        }
    }
}

/// Listens on the proxy port. Without a loopback device there is no proxy; the sandbox works without it.
fn listen_for_proxy() -> Option<TcpListener> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT))
        .and_then(|proxy| proxy.set_nonblocking(true).map(|()| proxy));
    bound.inspect_err(|error| eprintln!("sojourn-init: no egress proxy port: {error}")).ok()
}

struct Server {
    listener: UnixListener,
    /// The proxy port, bound before the first command starts.
    proxy: Option<TcpListener>,
    /// Pid of the relay once it was started; also in `helpers`.
    relay: Option<u32>,
    connections: BTreeMap<u64, Connection>,
    next_token: u64,
    execs: Execs,
    helpers: BTreeSet<u32>,
    /// Pipe on which the helper that packs an archive reports that it has read all files; until then, all
    /// other processes are stopped.
    packing: Option<PipeReader>,
    /// Whether all processes stay stopped also when no archive is made.
    is_quiesced: bool,
    disk_bytes: Option<u64>,
    /// The running disk usage helper.
    usage: Option<Usage>,
    /// Time of the last disk usage measurement.
    last_measured: Instant,
    /// Whether the files exceed `disk_bytes`.
    is_over: bool,
    /// Whether a call wrote files since the last measurement.
    was_written: bool,
    epoch: i64,
    last_call: Instant,
}

/// Source of a poll event.
#[derive(Clone)]
enum Source {
    Listener,
    Proxy,
    Packed,
    Measured,
    Connection(u64),
    Report(String),
}

impl Server {
    /// Waits for events, handles them, and sends responses that are due.
    fn turn(&mut self, longest: Duration) -> io::Result<()> {
        let ready = self.poll(self.next_time(longest))?;
        self.reap();
        for (source, flags) in ready {
            match source {
                Source::Listener => self.accept(),
                Source::Proxy => self.start_relay(),
                Source::Packed => self.end_packing(),
                Source::Measured => self.read_usage(),
                Source::Report(exec_id) => self.execs.read_report(&exec_id, &self.helpers),
                Source::Connection(token) => {
                    if self.progress(token, flags).is_err() {
                        self.connections.remove(&token);
                    }
                }
            }
        }
        self.settle();
        Ok(())
    }

    fn next_time(&self, longest: Duration) -> Duration {
        let untils = self.connections.values().filter_map(|connection| match &connection.pending {
            Some(Pending::Exit { until, .. }) => *until,
            Some(Pending::Gone { .. } | Pending::Pack { .. } | Pending::Scan { .. }) | None => None,
        });
        let now = Instant::now();
        untils.map(|until| until.saturating_duration_since(now)).fold(longest, Duration::min)
    }

    fn poll(&self, timeout: Duration) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Listener];
        // At the limit, new callers wait in the socket's backlog.
        let listens = self.connections.len() < CONNECTIONS_MAX;
        let listening = if listens { PollFlags::IN } else { PollFlags::empty() };
        let mut slots = vec![PollFd::from_borrowed_fd(self.listener.as_fd(), listening)];
        if let Some(proxy) = self.proxy.as_ref().filter(|_| self.relay.is_none()) {
            sources.push(Source::Proxy);
            slots.push(PollFd::from_borrowed_fd(proxy.as_fd(), PollFlags::IN));
        }
        if let Some(packing) = &self.packing {
            sources.push(Source::Packed);
            slots.push(PollFd::from_borrowed_fd(packing.as_fd(), PollFlags::IN));
        }
        if let Some(usage) = &self.usage {
            sources.push(Source::Measured);
            // Reports only the end.
            slots.push(PollFd::from_borrowed_fd(usage.printed.as_fd(), PollFlags::empty()));
        }
        for (&token, connection) in &self.connections {
            let (fd, flags) = connection.interest();
            sources.push(Source::Connection(token));
            slots.push(PollFd::from_borrowed_fd(fd, flags));
        }
        for (exec_id, fd) in self.execs.reports() {
            sources.push(Source::Report(exec_id.to_owned()));
            slots.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match poll(&mut slots, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = slots.iter().map(PollFd::revents);
        Ok(sources.into_iter().zip(flags).filter(|(_, flags)| !flags.is_empty()).collect())
    }

    /// Reaps runners, helpers and orphans.
    fn reap(&mut self) {
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get().cast_unsigned();
            self.helpers.remove(&pid);
            self.relay.take_if(|relay| *relay == pid);
        }
    }

    /// Passes the proxy port to a new relay. If no process can be started, drops the pending connection,
    /// because it would otherwise wake the loop continuously.
    fn start_relay(&mut self) {
        let Some(proxy) = &self.proxy else { return };
        let relay =
            |port| Command::new(PROGRAM).arg("relay").stdin(Stdio::from(port)).stdout(Stdio::null()).spawn();
        match proxy.as_fd().try_clone_to_owned().and_then(relay) {
            Ok(child) => {
                self.helpers.insert(child.id());
                self.relay = Some(child.id());
            }
            Err(_) => drop(proxy.accept()),
        }
    }

    fn accept(&mut self) {
        while self.connections.len() < CONNECTIONS_MAX {
            let Ok((stream, _)) = self.listener.accept() else {
                return;
            };
            // A sandbox that was frozen for long receives calls before it can read them.
            self.last_call = Instant::now();
            if let Ok(connection) = Connection::new(stream) {
                self.connections.insert(self.next_token, connection);
                self.next_token += 1;
            }
        }
    }

    /// # Errors
    /// The connection is finished, successfully or not.
    fn progress(&mut self, token: u64, flags: PollFlags) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        if connection.pending.is_some() {
            // A waiting connection polls for nothing, so this is a hang-up of the caller.
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if connection.is_answering() {
            return finish(connection);
        }
        if !flags.intersects(PollFlags::IN) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match connection.read_call()? {
            Some(arrived) => self.dispatch(token, arrived),
            None => Ok(()),
        }
    }

    fn dispatch(&mut self, token: u64, (call, payload_bytes): Arrived) -> io::Result<()> {
        self.last_call = Instant::now();
        let answer = match call {
            Call::Hello { epoch } => self.resume_for(epoch).err().unwrap_or_else(|| self.status()),
            Call::Status {} => self.status(),
            Call::Start { epoch, exec } => match self.resume_for(epoch) {
                Ok(()) if self.is_packing() => busy_packing(),
                Ok(()) => self.execs.start(&exec),
                Err(stale) => stale,
            },
            Call::Wait { exec_id, timeout_ms } => {
                let until = Instant::now().checked_add(Duration::from_millis(timeout_ms));
                return self.wait_for(token, Pending::Exit { exec_id, until });
            }
            Call::Kill { epoch, exec_id } => match self.resume_for(epoch) {
                Ok(()) => match self.execs.kill(&exec_id) {
                    Answer::Running {} => return self.wait_for(token, Pending::Gone { exec_id }),
                    settled => settled,
                },
                Err(stale) => stale,
            },
            Call::Signal { epoch, exec_id, signal } => match self.resume_for(epoch) {
                Ok(()) => self.execs.signal(&exec_id, signal),
                Err(stale) => stale,
            },
            Call::Input { epoch, exec_id, offset, text } => match self.resume_for(epoch) {
                Ok(()) if self.is_over && !text.is_empty() => full(),
                Ok(()) => self.execs.input(&exec_id, offset, &text),
                Err(stale) => stale,
            },
            Call::Output { exec_id, stream, offset, bytes_max } => {
                let mut bytes = vec![0; bytes_max.min(PART_BYTES_MAX)];
                match self.execs.output(&exec_id, stream, offset, &mut bytes) {
                    Ok(length) => return self.answer(token, &Answer::Output {}, &bytes[..length]),
                    Err(fault) => fault,
                }
            }
            Call::ReadFile { path, offset, bytes_max } => {
                return self.help(token, &["read", &path, &offset.to_string(), &bytes_max.to_string()]);
            }
            Call::WriteFile { epoch, path } => {
                return self.write(token, epoch, &["write", &path, &payload_bytes.to_string()]);
            }
            Call::Quiesce { epoch } => self.fence(epoch).err().unwrap_or_else(|| self.quiesce()),
            Call::Pack { epoch } => match self.fence(epoch) {
                Ok(()) if self.is_packing() => busy_packing(),
                // A measurement changes modes for a moment.
                Ok(()) if self.usage.is_some() => {
                    return self.wait_for(token, Pending::Pack { epoch });
                }
                Ok(()) => return self.pack(token),
                Err(stale) => stale,
            },
            Call::Unpack { epoch } => match self.fence(epoch) {
                Ok(()) => {
                    self.was_written = true;
                    return self.help(token, &["unpack", &self.disk_size()]);
                }
                Err(stale) => stale,
            },
            Call::ReadTree { path } => return self.help(token, &["read-tree", &path]),
            Call::Scan { entries_max } => return self.scan(token, entries_max),
            Call::Fetch {} => return self.help(token, &["fetch", &payload_bytes.to_string()]),
            Call::WriteTree { epoch, path } => {
                return self.write(token, epoch, &["write-tree", &path, &self.disk_size()]);
            }
            Call::WriteSkills { epoch } => return self.write(token, epoch, &["write-skills"]),
        };
        self.answer(token, &answer, &[])
    }

    /// Starts a helper that writes files, unless the disk is full.
    fn write(&mut self, token: u64, epoch: i64, operation: &[&str]) -> io::Result<()> {
        let refused = match self.fence(epoch) {
            Ok(()) if self.is_over => full(),
            Ok(()) => {
                self.was_written = true;
                return self.help(token, operation);
            }
            Err(stale) => stale,
        };
        self.answer(token, &refused, &[])
    }

    /// Size of the disk as argument of a helper; 0 where the disk has a file system of its own.
    fn disk_size(&self) -> String {
        self.disk_bytes.unwrap_or(0).to_string()
    }

    /// Raises the epoch; `Stale` if it is lower than one already seen.
    fn fence(&mut self, epoch: i64) -> Result<(), Answer> {
        if epoch < self.epoch {
            return Err(Answer::fault(FaultKind::Stale, "a higher epoch has called this sandbox"));
        }
        self.epoch = epoch;
        Ok(())
    }

    /// The same, and continues the processes that were stopped by a call to quiesce.
    fn resume_for(&mut self, epoch: i64) -> Result<(), Answer> {
        self.fence(epoch).map(|()| self.resume())
    }

    fn status(&self) -> Answer {
        let (execs, running) = self.execs.busy();
        Answer::Status { epoch: self.epoch, execs, running }
    }

    fn answer(&mut self, token: u64, answer: &Answer, payload: &[u8]) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        connection.answer(answer, payload)?;
        finish(connection)
    }

    fn wait_for(&mut self, token: u64, pending: Pending) -> io::Result<()> {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.pending = Some(pending);
        }
        Ok(())
    }

    /// Passes the connection to a helper, which sends the response.
    fn help(&mut self, token: u64, operation: &[&str]) -> io::Result<()> {
        self.help_saying(token, operation, Stdio::null())
    }

    /// Same, for a helper that also writes to this process.
    fn help_saying(&mut self, token: u64, operation: &[&str], said: Stdio) -> io::Result<()> {
        if self.helpers.len() >= HELPERS_MAX + usize::from(self.relay.is_some()) {
            let text = "the sandbox is busy with other file operations";
            return self.answer(token, &Answer::fault(FaultKind::Unavailable, text), &[]);
        }
        if operation.iter().any(|argument| argument.contains('\0')) {
            let text = "a path must not contain a zero byte";
            return self.answer(token, &Answer::fault(FaultKind::Refused, text), &[]);
        }
        let Some(connection) = self.connections.get(&token) else {
            return Ok(());
        };
        let stream = OwnedFd::from(connection.hand_over()?);
        let child =
            Command::new(PROGRAM).arg("file").args(operation).stdin(Stdio::from(stream)).stdout(said).spawn();
        match child {
            Ok(child) => {
                self.helpers.insert(child.id());
                self.connections.remove(&token);
                Ok(())
            }
            Err(error) => {
                let text = format!("the sandbox has no free process: {error}");
                self.answer(token, &Answer::fault(FaultKind::Unavailable, text), &[])
            }
        }
    }

    /// Sends the responses whose condition is met.
    fn settle(&mut self) {
        let now = Instant::now();
        let settled = |(&token, connection): (&u64, &Connection)| {
            let answer = match connection.pending.as_ref()? {
                Pending::Pack { .. } | Pending::Scan { .. } => return None,
                Pending::Gone { exec_id } => self.execs.is_gone(exec_id).then_some(Answer::Done {})?,
                Pending::Exit { exec_id, until } => {
                    let outcome = self.execs.outcome(exec_id);
                    let waits_on = outcome == Answer::Running {} && until.is_none_or(|until| now < until);
                    (!waits_on).then_some(outcome)?
                }
            };
            Some((token, answer))
        };
        let due: Vec<_> = self.connections.iter().filter_map(settled).collect();
        for (token, answer) in due {
            if self.answer(token, &answer, &[]).is_err() {
                self.connections.remove(&token);
            }
        }
        if self.usage.is_none() {
            self.after_measurement();
        }
    }
}

fn full() -> Answer {
    Answer::fault(FaultKind::Refused, "the sandbox's disk is full")
}

/// Continues sending; the connection ends after a complete response.
fn finish(connection: &mut Connection) -> io::Result<()> {
    match connection.send()? {
        true => Err(io::ErrorKind::ConnectionAborted.into()),
        false => Ok(()),
    }
}
