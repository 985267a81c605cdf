//! The loop of PID 1: connections, runners, orphans, and its own end.
//!
//! Started by `main`; calls `execs` and starts file helpers. One thread and poll,
//! because a sandbox whose processes are used up must still be able to answer and to
//! kill. Nothing that a command started ends because a connection does.

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

use crate::{
    connection::{Arrived, Connection, Pending},
    execs::Execs,
    files::PART_BYTES_MAX,
    kill, privilege,
    usage::Usage,
};

/// Connections at the same time; one call each.
const CONNECTIONS_MAX: usize = 256;
/// File helpers at the same time.
const HELPERS_MAX: usize = 16;
/// Longest sleep: orphans of a dead runner make no event.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Between two looks at what the files take, where the disk has no size of its own.
const USAGE_INTERVAL: Duration = Duration::from_secs(2);

/// Serves until the sandbox is ended from outside, or is an orphan: nobody called for
/// `orphan_after`. With `disk_bytes` it ends commands whose files take more than that.
pub fn serve(orphan_after: Option<Duration>, disk_bytes: Option<u64>) -> io::Result<()> {
    privilege::keep_what_init_needs()?;
    let path = Path::new(CONTROL_DIR).join(SOCKET_NAME);
    // Nobody is in its group but the root of a sandbox, or a service that is not root itself
    // and may connect from the first moment on.
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
        disk_bytes,
        usage: None,
        looked: Instant::now(),
        is_over: false,
        was_written: false,
        epoch: i64::MIN,
        last_call: Instant::now(),
    };
    loop {
        let sweep = if disk_bytes.is_some() { USAGE_INTERVAL } else { SWEEP_INTERVAL };
        server.turn(orphan_after.unwrap_or(sweep).min(sweep))?;
        server.look_at_disk();
        if orphan_after.is_some_and(|after| server.last_call.elapsed() >= after) {
            return Ok(());
        }
    }
}

/// Without a loopback there is no proxy either; the sandbox works without.
fn listen_for_proxy() -> Option<TcpListener> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT))
        .and_then(|proxy| proxy.set_nonblocking(true).map(|()| proxy));
    bound.inspect_err(|error| eprintln!("sojourn-init: no way to a proxy: {error}")).ok()
}

struct Server {
    listener: UnixListener,
    /// The port of the proxy, held from before the first command on.
    proxy: Option<TcpListener>,
    /// Who serves that port, once it was needed; also one of the helpers.
    relay: Option<u32>,
    connections: BTreeMap<u64, Connection>,
    next_token: u64,
    execs: Execs,
    helpers: BTreeSet<u32>,
    /// Said by the helper that makes an archive, when it has read all files: until then
    /// everything else stands still.
    packing: Option<PipeReader>,
    disk_bytes: Option<u64>,
    /// The helper that adds up what the files take; also one of the helpers.
    usage: Option<Usage>,
    /// When it was started last.
    looked: Instant,
    /// The files took more than they may.
    is_over: bool,
    /// Something wrote files since they were last added up.
    was_written: bool,
    epoch: i64,
    last_call: Instant,
}

/// What became ready.
#[derive(Clone)]
enum Source {
    Listener,
    Proxy,
    Packed,
    Connection(u64),
    Report(String),
}

impl Server {
    /// Waits for something, does it, answers whom it concerns.
    fn turn(&mut self, longest: Duration) -> io::Result<()> {
        let ready = self.poll(self.next_time(longest))?;
        self.reap();
        for (source, flags) in ready {
            match source {
                Source::Listener => self.accept(),
                Source::Proxy => self.start_relay(),
                Source::Packed => self.go_on(),
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
            Some(Pending::Gone { .. }) | None => None,
        });
        let now = Instant::now();
        untils.map(|until| until.saturating_duration_since(now)).fold(longest, Duration::min)
    }

    fn poll(&self, timeout: Duration) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Listener];
        // A full house lets new callers wait in the socket's backlog.
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
            if let Some(bytes) = self.usage.take_if(|usage| usage.pid == pid).and_then(Usage::bytes) {
                self.is_over = self.disk_bytes.is_some_and(|most| bytes > most);
                if self.is_over {
                    self.execs.end_for_disk();
                }
            }
        }
    }

    /// Adds up what the files take, now and then while something may write them. While
    /// they are too much that goes on, until something has made room.
    fn look_at_disk(&mut self) {
        let may_grow = self.was_written || self.is_over || self.execs.running() > 0;
        if self.disk_bytes.is_none() || self.usage.is_some() || !may_grow {
            return;
        }
        if self.packing.is_some() || self.looked.elapsed() < USAGE_INTERVAL {
            return;
        }
        self.looked = Instant::now();
        // Without a process to spare it is tried again.
        if let Ok(usage) = Usage::start() {
            self.helpers.insert(usage.pid);
            self.usage = Some(usage);
            self.was_written = false;
        }
    }

    /// Gives the proxy's port to a relay. Without a process to spare, the connection
    /// that asked is dropped, or it would ask for ever.
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
            // A sandbox that was frozen for long is called before it can hear.
            self.last_call = Instant::now();
            if let Ok(connection) = Connection::new(stream) {
                self.connections.insert(self.next_token, connection);
                self.next_token += 1;
            }
        }
    }

    /// # Errors
    /// When the connection is over, served or not.
    fn progress(&mut self, token: u64, flags: PollFlags) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        if connection.pending.is_some() {
            // It waits and polls for nothing: the caller has left.
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
            Call::Hello { epoch } => match self.fence(epoch) {
                Ok(()) => self.status(),
                Err(stale) => stale,
            },
            Call::Status {} => self.status(),
            Call::Start { epoch, exec } => match self.fence(epoch) {
                Ok(()) if self.is_packing() => busy_packing(),
                Ok(()) => self.execs.start(&exec),
                Err(stale) => stale,
            },
            Call::Wait { exec_id, timeout_ms } => {
                let until = Instant::now().checked_add(Duration::from_millis(timeout_ms));
                return self.wait_for(token, Pending::Exit { exec_id, until });
            }
            Call::Kill { epoch, exec_id } => match self.fence(epoch) {
                Ok(()) => match self.execs.kill(&exec_id) {
                    Answer::Running {} => return self.wait_for(token, Pending::Gone { exec_id }),
                    settled => settled,
                },
                Err(stale) => stale,
            },
            Call::Signal { epoch, exec_id, signal } => match self.fence(epoch) {
                Ok(()) => self.execs.signal(&exec_id, signal),
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
            Call::WriteFile { epoch, path } => match self.fence(epoch) {
                Ok(()) if self.is_over => full(),
                Ok(()) => {
                    self.was_written = true;
                    return self.help(token, &["write", &path, &payload_bytes.to_string()]);
                }
                Err(stale) => stale,
            },
            Call::Pack { epoch } => match self.fence(epoch) {
                Ok(()) if self.is_packing() => busy_packing(),
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
            Call::WriteTree { epoch, path } => match self.fence(epoch) {
                Ok(()) if self.is_over => full(),
                Ok(()) => {
                    self.was_written = true;
                    return self.help(token, &["write-tree", &path, &self.disk_size()]);
                }
                Err(stale) => stale,
            },
        };
        self.answer(token, &answer, &[])
    }

    /// Bytes of the disk as a helper takes them; 0 where it has a file system of its own.
    fn disk_size(&self) -> String {
        self.disk_bytes.unwrap_or(0).to_string()
    }

    /// Raises the epoch, or says that it is lower than one already seen.
    fn fence(&mut self, epoch: i64) -> Result<(), Answer> {
        if epoch < self.epoch {
            return Err(Answer::fault(FaultKind::Stale, "a higher epoch has spoken to this sandbox"));
        }
        self.epoch = epoch;
        Ok(())
    }

    fn status(&self) -> Answer {
        let (execs, running) = (self.execs.running() as u64, self.execs.unfinished() as u64);
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

    /// Stops everything and lets a helper send the session's files.
    fn pack(&mut self, token: u64) -> io::Result<()> {
        let (packing, said) = io::pipe()?;
        kill::stop_descendants(std::process::id());
        let before = self.helpers.len();
        let helped = self.help_saying(token, &["pack"], said.into());
        self.packing = Some(packing);
        if self.helpers.len() == before {
            self.go_on();
        }
        helped
    }

    /// Lets everything go on that stood still for an archive.
    fn go_on(&mut self) {
        if self.packing.take().is_some() {
            kill::continue_descendants(std::process::id());
        }
    }

    /// Whether files are being read for an archive. Who was told that they were read is not
    /// told otherwise.
    fn is_packing(&mut self) -> bool {
        if let Some(packing) = &self.packing {
            let mut slot = [PollFd::from_borrowed_fd(packing.as_fd(), PollFlags::IN)];
            if poll(&mut slot, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                self.go_on();
            }
        }
        self.packing.is_some()
    }

    /// Gives the connection to a helper, which answers it.
    fn help(&mut self, token: u64, operation: &[&str]) -> io::Result<()> {
        self.help_saying(token, operation, Stdio::null())
    }

    /// The same for one that has something to say to this process too.
    fn help_saying(&mut self, token: u64, operation: &[&str], said: Stdio) -> io::Result<()> {
        if self.helpers.len() >= HELPERS_MAX + usize::from(self.relay.is_some()) {
            let text = "the sandbox is busy with other file operations";
            return self.answer(token, &Answer::fault(FaultKind::Unavailable, text), &[]);
        }
        if operation.iter().any(|argument| argument.contains('\0')) {
            let text = "a path holds no zero byte";
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
                let text = format!("the sandbox has no process to spare: {error}");
                self.answer(token, &Answer::fault(FaultKind::Unavailable, text), &[])
            }
        }
    }

    /// Answers the calls whose command has come far enough.
    fn settle(&mut self) {
        let now = Instant::now();
        let settled = |(&token, connection): (&u64, &Connection)| {
            let answer = match connection.pending.as_ref()? {
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
    }
}

fn full() -> Answer {
    Answer::fault(FaultKind::Refused, "the sandbox's disk is full")
}

fn busy_packing() -> Answer {
    Answer::fault(FaultKind::Unavailable, "its files are being saved; try again in a moment")
}

/// Sends on; an answer that is sent ends its connection.
fn finish(connection: &mut Connection) -> io::Result<()> {
    match connection.send()? {
        true => Err(io::ErrorKind::ConnectionAborted.into()),
        false => Ok(()),
    }
}
