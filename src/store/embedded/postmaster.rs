//! The running server: find by its pid file, launch, wait for, stop.
//!
//! Signals go to a pidfd that was opened before the process was checked, so they never reach
//! another process that got the same pid later.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sqlx::Connection;
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, timeout},
};

use super::{
    Error, Progress, binaries::Binaries, cluster::SETTINGS, location::Location, os_user::OsUser, roles,
};
use crate::base::{Origin, backoff::Backoff, limit};

/// The first process of a server.
pub(super) struct Postmaster {
    pid: i32,
    // Readable once the process has ended, whichever process is its parent.
    pidfd: AsyncFd<OwnedFd>,
}

impl Postmaster {
    /// Returns the server that runs on this cluster, if any.
    ///
    /// # Errors
    /// `Refused` when the pid file names a Postgres that may not be this one: two servers on one
    /// cluster destroy it.
    pub(super) fn find(location: &Location) -> Result<Option<Self>, Error> {
        let path = location.cluster().join("postmaster.pid");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(format!("could not read {}", path.display()))(error)),
        };
        let Some(pid) = text.lines().next().and_then(|line| line.trim().parse().ok()) else {
            return Ok(None);
        };
        let Some(found) = Self::open(pid)? else { return Ok(None) };
        match Process::look(pid) {
            Process::Gone => Ok(None),
            // The pid belongs to another program now, as happens in containers. Postgres would
            // refuse to start because of it if the user is the same.
            Process::Other => fs::remove_file(&path)
                .map(|()| None)
                .map_err(Error::io(format!("could not remove the stale {}", path.display()))),
            Process::Postgres { arguments } if serves(&arguments, &location.cluster()) => Ok(Some(found)),
            Process::Postgres { .. } => Err(Error::Refused(format!(
                "{} names process {pid}, a Postgres that was not started on this path: stop it first (or remove the file, if it serves another cluster)",
                path.display(),
            ))),
        }
    }

    /// Starts the server. It is not ready yet.
    pub(super) fn launch(location: &Location, os_user: &OsUser, binaries: &Binaries) -> Result<Self, Error> {
        let log = location.startup_log();
        let opened = File::create(&log).and_then(|file| {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            Ok((file.try_clone()?, file))
        });
        let (out, err) = opened.map_err(Error::io(format!("could not write {}", log.display())))?;
        let mut command = os_user.command(&binaries.postgres(), location.home());
        command.arg("-D").arg(location.cluster());
        command.arg("-c").arg(format!("config_file={}", location.settings(SETTINGS).display()));
        let child = command.stdout(out).stderr(err).spawn().map_err(Error::io("could not start postgres"))?;
        // Dropped without a wait: the runtime reaps it. This module identifies the server only by
        // its pid file, whether it is our child or was adopted.
        let pid = child.id().expect("a child that was never waited for has an id");
        let launched = Self::open(pid as i32)?;
        launched.ok_or_else(|| Error::Refused(end_reason(location).to_string()))
    }

    /// Waits until the server accepts connections; `false` when it ended instead.
    ///
    /// # Errors
    /// `Refused` when it takes too long. It is left running, because it may be in recovery, and the
    /// next start adopts it.
    pub(super) async fn ready(
        &self,
        location: &Location,
        origin: &Origin,
        progress: Progress<'_>,
    ) -> Result<bool, Error> {
        let backoff = Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(500) };
        let begun = Instant::now();
        let mut is_reported = false;
        for attempt in 1.. {
            let tried = timeout(limit::EMBEDDED_CONNECT_TIMEOUT, roles::connect(location)).await;
            let reason = match tried {
                Ok(Ok(connection)) => {
                    // The server may stop again at once; the next caller then gets the error.
                    let _closed = connection.close().await;
                    return Ok(true);
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "connection timed out".to_owned(),
            };
            if timeout(backoff.delay(attempt, origin), self.ended()).await.is_ok() {
                return Ok(false);
            }
            if begun.elapsed() > limit::EMBEDDED_START_TIMEOUT {
                return Err(Error::Refused(format!(
                    "the embedded database is not ready after {} s ({reason}): see {}, then try again",
                    limit::EMBEDDED_START_TIMEOUT.as_secs(),
                    location.log_dir().display(),
                )));
            }
            if !is_reported && begun.elapsed() > Duration::from_secs(3) {
                progress("waiting for the embedded database (after a crash it replays its log first)");
                is_reported = true;
            }
        }
        unreachable!("the loop ends by its deadline")
    }

    /// Makes the server reload its settings.
    pub(super) fn reload(&self) -> Result<(), Error> {
        self.signal(Signal::HUP)
    }

    /// Stops the server: closes connections, rolls back open transactions, writes memory to disk.
    pub(super) async fn stop(self) -> Result<(), Error> {
        self.signal(Signal::INT)?;
        if timeout(limit::EMBEDDED_STOP_TIMEOUT, self.ended()).await.is_ok() {
            return Ok(());
        }
        // Without the last checkpoint; the next start replays the log instead.
        self.signal(Signal::QUIT)?;
        timeout(limit::EMBEDDED_STOP_TIMEOUT, self.ended()).await.map_err(|_| {
            Error::Refused(format!(
                "the embedded database (process {}) did not stop: is its disk overloaded?",
                self.pid
            ))
        })
    }

    fn open(pid: i32) -> Result<Option<Self>, Error> {
        let Some(number) = Pid::from_raw(pid) else { return Ok(None) };
        let what = format!("could not watch process {pid}");
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(fd) => {
                // SAFETY: an `OwnedFd` is valid and keeps its one descriptor until it is dropped,
                // and only the `AsyncFd` owns it.
                let pidfd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
                let pidfd = pidfd.map_err(|failed| Error::io(what)(failed.into()))?;
                Ok(Some(Self { pid, pidfd }))
            }
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(Error::io(what)(error.into())),
        }
    }

    async fn ended(&self) {
        self.pidfd.readable().await.map(|_| ()).expect("the runtime outlives the tasks that it runs");
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        match pidfd_send_signal(&self.pidfd, signal) {
            // It has already ended, which is the goal of a stop.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::io(format!(
                "could not signal the embedded database (process {})",
                self.pid
            ))(error.into())),
        }
    }
}

/// Reason why a server ended before it was ready, in one line.
#[derive(Debug)]
pub(super) enum Ended {
    /// Its last error message.
    Message(String),
    /// No message was found; the file that should contain one.
    NoMessage(PathBuf),
}

impl Ended {
    /// Returns whether a retry can succeed.
    ///
    /// The child processes of a killed server end by themselves within moments, and no new server
    /// starts before that. (`LC_ALL=C`, so the message is English.)
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Message(line) => line.contains("pre-existing shared memory block"),
            Self::NoMessage(_) => false,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(line) => write!(f, "the embedded database did not start: {line}"),
            Self::NoMessage(log) => write!(f, "the embedded database did not start: see {}", log.display()),
        }
    }
}

/// Reads the server's last error message.
pub(super) fn end_reason(location: &Location) -> Ended {
    let logs = fs::read_dir(location.log_dir()).into_iter().flatten().flatten();
    let newest = logs.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).max();
    let startup = location.startup_log();
    // The start-up log first: it stays empty once the other log is open.
    last_fatal_line(&startup)
        .or_else(|| last_fatal_line(&newest?.1))
        .map_or(Ended::NoMessage(startup), Ended::Message)
}

fn last_fatal_line(log: &Path) -> Option<String> {
    let text = fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find_map(|line| {
        let at = line.find("FATAL:").or_else(|| line.find("PANIC:"))?;
        Some(line[at..].to_owned())
    })
}

/// The process that a pid belongs to now.
enum Process {
    Gone,
    Other,
    Postgres { arguments: Vec<u8> },
}

impl Process {
    // Both files are readable whoever owns the process, unlike its directory.
    fn look(pid: i32) -> Self {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}"));
        let (Ok(stat), Ok(arguments)) = (read("stat"), read("cmdline")) else { return Self::Gone };
        let stat = String::from_utf8_lossy(&stat);
        // "pid (name) state ...", where the name may contain any character.
        let Some((name, rest)) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')) else {
            return Self::Gone;
        };
        match (name, rest.trim_start().chars().next()) {
            (_, Some('Z' | 'X') | None) => Self::Gone,
            // A process that exits has lost its memory, and with it the arguments, before it is a zombie.
            (_, Some(_)) if arguments.is_empty() => Self::Gone,
            ("postgres", Some(_)) => Self::Postgres { arguments },
            (_, Some(_)) => Self::Other,
        }
    }
}

fn serves(arguments: &[u8], cluster: &Path) -> bool {
    arguments.split(|byte| *byte == 0).any(|argument| argument == cluster.as_os_str().as_encoded_bytes())
}
