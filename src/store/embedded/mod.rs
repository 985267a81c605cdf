//! A private Postgres for those who bring none: made, started, adopted, stopped.
//!
//! Called by `app` when no `DATABASE_URL` is set, and by the tests; calls the
//! `initdb` and `postgres` of the system. The cluster listens on a unix socket
//! only, in a directory that only its own user (and root) may enter, and the
//! kernel says who is at the other end. It is a child in no more than name: a
//! service that is killed leaves it running, and the next start adopts it.
//!
//! Several processes may use one data directory (`serve`, `admin`): each holds a
//! shared lock while it lives, and the last one to leave stops the server.
//!
//! Files are read and written without yielding: this is start-up, and they are
//! small.

mod binaries;
mod cluster;
mod location;
mod os_user;
mod postmaster;
mod roles;

use std::{
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::Urls;
use crate::base::{Origin, backoff::Backoff, limit};

pub use self::binaries::newest;
use self::{binaries::Binaries, location::Location, os_user::OsUser, postmaster::Postmaster};

/// Why there is no embedded database. Every message is one line that says what
/// to do; none is worth a retry without it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operator has to change something first; the text says what.
    #[error("{0}")]
    Refused(String),
    /// A file or a process of the cluster could not be handled.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The server runs and refused what the service needs of it.
    #[error("{what}: {source}")]
    Database {
        /// What was tried.
        what: &'static str,
        /// What the server said.
        source: sqlx::Error,
    },
}

impl Error {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }
}

/// What to tell the person at the terminal while they wait.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// A running server and this process's share in it.
#[derive(Debug)]
pub struct Embedded {
    location: Location,
    // Held for as long as this process uses the server; the kernel drops it
    // however the process ends.
    users: File,
    origin: Origin,
}

impl Embedded {
    /// Makes the cluster if there is none, starts or adopts its server, and
    /// makes its roles and its database.
    ///
    /// `data_dir` need not exist. The cluster lies in `<data_dir>/postgres`, or,
    /// where the user that runs it cannot get there, behind a link of that name.
    ///
    /// # Errors
    /// `Refused` when something is missing, too old, or in the way. Cancelled
    /// half way it leaves what the next start completes.
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

    /// Where to connect.
    pub fn urls(&self) -> Urls {
        let url = |role| self.location.url(role, roles::DATABASE);
        Urls { owner: url(roles::OWNER), app: url(roles::APP), system: url(roles::SYSTEM) }
    }

    /// Where the server writes its log.
    pub fn log_dir(&self) -> PathBuf {
        self.location.log_dir()
    }

    /// Leaves the server, and stops it when nobody else uses it: a fast
    /// shutdown, so close every connection first. `true` when it was stopped.
    ///
    /// # Errors
    /// `Refused` when it did not stop in time; it is then left as it is.
    pub async fn stop(self) -> Result<bool, Error> {
        let _transition = lock_transition(&self.location, &self.origin, &|_| {}).await?;
        // Not atomic: the shared lock goes before the exclusive one is tried. It
        // need not be, for nobody joins while the transition is locked.
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
    location.keep_sockets(os_user)?;
    // Also under a server that runs already: a newer service may bring other
    // rules, and whoever starts it now may be another user than last time.
    cluster::write_settings(location, os_user)?;
    if let Some(postmaster) = Postmaster::find(location)? {
        progress("the embedded database is still running: adopting it");
        postmaster.reload()?;
        if postmaster.ready(location, origin, progress).await? {
            return Ok(());
        }
        // It was on its way out; the next one may start now.
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
        let ended = postmaster::why_it_ended(location);
        if attempt == limit::EMBEDDED_LAUNCHES_MAX || !ended.is_passing() {
            return Err(Error::Refused(ended.to_string()));
        }
        tokio::time::sleep(backoff.delay(attempt, origin)).await;
    }
    Ok(())
}

/// Nobody else starts or stops this cluster while the lock is held.
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
                progress("another process starts or stops the embedded database: waiting for it");
            }
            tokio::time::sleep(backoff.delay(attempt, origin)).await;
        }
        Ok(())
    };
    match tokio::time::timeout(limit::EMBEDDED_START_TIMEOUT, wait).await {
        Ok(locked) => locked.map(|()| lock).map_err(Error::io("could not lock the cluster of the database")),
        Err(_) => Err(Error::Refused(format!(
            "another process has been starting or stopping the database in {} for {} s: end it, then try again",
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
