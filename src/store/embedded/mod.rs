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

mod account;
mod binaries;
mod cluster;
mod place;
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
use self::{account::Account, binaries::Binaries, place::Place, postmaster::Postmaster};

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
    place: Place,
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
        let data_dir = place::make_data_dir(data_dir)?;
        let account = Account::for_cluster(&place::cluster_of(&data_dir), progress).await?;
        let place = Place::open(&data_dir, &account, origin)?;
        let transition = lock_transition(&place, origin, progress).await?;
        let users = open_lock(&place.users_lock())?;
        users.lock_shared().map_err(Error::io("could not lock the cluster of the database"))?;
        if let Err(error) = ensure_running(&place, &account, origin, progress).await {
            place.remove_sockets();
            return Err(error);
        }
        roles::ensure(&place).await?;
        drop(transition);
        Ok(Self { place, users, origin: origin.clone() })
    }

    /// Where to connect.
    pub fn urls(&self) -> Urls {
        let url = |role| self.place.url(role, roles::DATABASE);
        Urls { owner: url(roles::OWNER), app: url(roles::APP), system: url(roles::SYSTEM) }
    }

    /// Where the server writes its log.
    pub fn log_dir(&self) -> PathBuf {
        self.place.log_dir()
    }

    /// Leaves the server, and stops it when nobody else uses it: a fast
    /// shutdown, so close every connection first. `true` when it was stopped.
    ///
    /// # Errors
    /// `Refused` when it did not stop in time; it is then left as it is.
    pub async fn stop(self) -> Result<bool, Error> {
        let _transition = lock_transition(&self.place, &self.origin, &|_| {}).await?;
        // Not atomic: the shared lock goes before the exclusive one is tried. It
        // need not be, for nobody joins while the transition is locked.
        if self.users.try_lock().is_err() {
            return Ok(false);
        }
        let Some(postmaster) = Postmaster::find(&self.place)? else { return Ok(false) };
        postmaster.stop().await?;
        self.place.remove_sockets();
        Ok(true)
    }
}

async fn ensure_running(
    place: &Place,
    account: &Account,
    origin: &Origin,
    progress: Progress<'_>,
) -> Result<(), Error> {
    place.keep_sockets(account)?;
    // Also under a server that runs already: a newer service may bring other
    // rules, and whoever starts it now may be another user than last time.
    cluster::write_settings(place, account)?;
    if let Some(postmaster) = Postmaster::find(place)? {
        progress("the embedded database is still running: adopting it");
        postmaster.reload()?;
        if postmaster.ready(place, origin, progress).await? {
            return Ok(());
        }
        // It was on its way out; the next one may start now.
    }
    let binaries = Binaries::find(place, account).await?;
    cluster::ensure(place, account, &binaries, progress).await?;
    progress("starting the embedded database");
    let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };
    for attempt in 1.. {
        let postmaster = Postmaster::launch(place, account, &binaries)?;
        if postmaster.ready(place, origin, progress).await? {
            break;
        }
        let ended = postmaster::why_it_ended(place);
        if attempt == limit::EMBEDDED_LAUNCHES_MAX || !ended.is_passing() {
            return Err(Error::Refused(ended.to_string()));
        }
        tokio::time::sleep(backoff.delay(attempt, origin)).await;
    }
    Ok(())
}

/// Nobody else starts or stops this cluster while the lock is held.
async fn lock_transition(place: &Place, origin: &Origin, progress: Progress<'_>) -> Result<File, Error> {
    let lock = open_lock(&place.transition_lock())?;
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
            place.home().display(),
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
