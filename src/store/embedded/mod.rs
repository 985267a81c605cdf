//! Embedded Postgres for installations without their own: create, start, adopt, stop.
//!
//! Called by `app` when no `DATABASE_URL` is set, and by the tests; calls the system's `initdb` and
//! `postgres`. The cluster listens only on a unix socket, in a directory that only its own user
//! (and root) can enter, and the kernel authenticates the peer. The server outlives the service: a
//! killed service leaves it running, and the next start adopts it.
//!
//! Several processes may use one data directory (`serve`, `admin`). Each holds a shared lock while
//! it runs, and the last one stops the server.
//!
//! Files are read and written synchronously: this happens at start-up, and they are small.

mod binaries;
mod cluster;
mod error;
mod location;
mod os_user;
mod postmaster;
mod roles;

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use super::Urls;
use crate::base::{Origin, backoff::Backoff, limit};

pub use self::binaries::newest;
pub use self::error::{Error, Progress};
pub use self::os_user::Account;
use self::{binaries::Binaries, location::Location, os_user::OsUser, postmaster::Postmaster};

/// A running server and this process's use of it.
#[derive(Debug)]
pub struct Embedded {
    location: Location,
    // Locked while this process uses the server; the kernel releases it however the process ends.
    users: File,
    origin: Origin,
}

impl Embedded {
    /// Starts or adopts the server of the cluster.
    ///
    /// Creates the cluster, its roles and its database if missing.
    ///
    /// `data_dir` need not exist. The cluster is in `<data_dir>/postgres`, or, if the user that
    /// runs it has no access there, behind a link of that name.
    ///
    /// # Errors
    /// `Refused` when something is missing, too old, or in the way. If it is canceled half way, the
    /// next start completes the work.
    pub async fn start(data_dir: &Path, origin: &Origin, progress: Progress<'_>) -> Result<Self, Error> {
        let data_dir = location::make_data_dir(data_dir)?;
        let os_user = OsUser::for_cluster(&location::cluster_of(&data_dir), progress).await?;
        let location = Location::open(&data_dir, &os_user, origin)?;
        let transition = lock_transition(&location, origin, progress).await?;
        let users = open_lock(&location.users_lock())?;
        users.lock_shared().map_err(Error::io("could not lock the cluster of the database"))?;
        if let Err(error) = ensure_running(&location, &os_user, origin, progress).await {
            location.remove_sockets();
            return Err(error);
        }
        roles::ensure(&location).await?;
        drop(transition);
        Ok(Self { location, users, origin: origin.clone() })
    }

    /// Returns the connection URLs.
    pub fn urls(&self) -> Urls {
        let url = |role| self.location.url(role, roles::DATABASE);
        Urls { owner: url(roles::OWNER), app: url(roles::APP), system: url(roles::SYSTEM) }
    }

    /// Returns the directory of the server's log.
    pub fn log_dir(&self) -> PathBuf {
        self.location.log_dir()
    }

    /// Stops using the server, and stops it when no other process uses it.
    ///
    /// This is a fast shutdown, so close every connection first. Returns `true` when it was
    /// stopped.
    ///
    /// # Errors
    /// `Refused` when it did not stop in time; it is then left running.
    pub async fn stop(self) -> Result<bool, Error> {
        let _transition = lock_transition(&self.location, &self.origin, &|_| {}).await?;
        // Not atomic: the shared lock is released before the exclusive one is tried. This is safe,
        // because no process joins while the transition lock is held.
        if self.users.try_lock().is_err() {
            return Ok(false);
        }
        let Some(postmaster) = Postmaster::find(&self.location)? else { return Ok(false) };
        postmaster.stop().await?;
        self.location.remove_sockets();
        Ok(true)
    }
}

async fn ensure_running(
    location: &Location,
    os_user: &OsUser,
    origin: &Origin,
    progress: Progress<'_>,
) -> Result<(), Error> {
    location.recreate_sockets(os_user)?;
    // Also for a server that already runs: a newer service may have other rules, and the user that
    // starts it may differ from last time.
    cluster::write_settings(location, os_user)?;
    if let Some(postmaster) = Postmaster::find(location)? {
        progress("the embedded database is still running: adopting it");
        postmaster.reload()?;
        if postmaster.ready(location, origin, progress).await? {
            return Ok(());
        }
        // It was shutting down; the next one may start now.
    }
    let binaries = Binaries::find(location, os_user).await?;
    cluster::ensure(location, os_user, &binaries, progress).await?;
    progress("starting the embedded database");
    let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };
    for attempt in 1.. {
        let postmaster = Postmaster::launch(location, os_user, &binaries)?;
        if postmaster.ready(location, origin, progress).await? {
            break;
        }
        let ended = postmaster::end_reason(location);
        if attempt == limit::EMBEDDED_LAUNCHES_MAX || !ended.is_transient() {
            return Err(Error::Refused(ended.to_string()));
        }
        tokio::time::sleep(backoff.delay(attempt, origin)).await;
    }
    Ok(())
}

/// Takes the lock under which this cluster is started or stopped.
async fn lock_transition(
    location: &Location,
    origin: &Origin,
    progress: Progress<'_>,
) -> Result<File, Error> {
    let lock = open_lock(&location.transition_lock())?;
    let backoff = Backoff { first: Duration::from_millis(20), longest: Duration::from_millis(500) };
    let wait = async {
        for attempt in 1.. {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if attempt == 1 {
                progress("another process is starting or stopping the embedded database: waiting for it");
            }
            tokio::time::sleep(backoff.delay(attempt, origin)).await;
        }
        Ok(())
    };
    match tokio::time::timeout(limit::EMBEDDED_START_TIMEOUT, wait).await {
        Ok(locked) => locked.map(|()| lock).map_err(Error::io("could not lock the cluster of the database")),
        Err(_) => Err(Error::Refused(format!(
            "another process has been starting or stopping the database in {} for {} s: stop it, then try again",
            location.home().display(),
            limit::EMBEDDED_START_TIMEOUT.as_secs(),
        ))),
    }
}

fn open_lock(path: &Path) -> Result<File, Error> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(Error::io(format!("could not open {}", path.display())))
}
