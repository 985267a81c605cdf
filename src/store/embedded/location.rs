//! Paths of the cluster, its log, its locks and its socket.
//!
//! The home of a cluster is `<data_dir>/postgres`. If the user that runs the server cannot access
//! it (the service is root, below a directory of mode 0700), `postgres` is a link to
//! `/var/lib/sojourn/<id>`. The link moves and disappears with the data directory, so an empty data
//! directory always means an empty database. Sockets have their own directory, because a socket
//! path is at most 107 bytes. The service writes its files into directories that the server's user
//! cannot write.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{Error, os_user::OsUser};
use crate::base::{Origin, text};

/// Suffix of the socket's file name; also in `postgresql.conf`.
pub(super) const PORT: u16 = 5432;

const LINK: &str = "postgres";
const CLUSTER: &str = "pgdata";
const CLUSTERS_OF_ROOT: &str = "/var/lib/sojourn";
const SOCKETS: &str = "/run/sojourn";

/// Directories of one cluster, created with the right owner and mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    home: PathBuf,
    sockets: PathBuf,
}

impl Location {
    /// Finds or creates the home of the cluster. `data_dir` is absolute and contains no links.
    pub(super) fn open(data_dir: &Path, os_user: &OsUser, origin: &Origin) -> Result<Self, Error> {
        let link = data_dir.join(LINK);
        if link.symlink_metadata().is_err() {
            make_home(data_dir, &link, os_user, origin)?;
        }
        let home = link.canonicalize().map_err(|_| {
            let target = link.read_link().unwrap_or_default();
            Error::Refused(format!(
                "the database of {} was in {}, which is missing: restore it, or remove the link {} to start with an empty one",
                data_dir.display(), target.display(), link.display(),
            ))
        })?;
        utf8(&home)?;
        if let Some(dir) = os_user
            .account
            .first_inaccessible_dir(&home)
            .map_err(Error::io("could not check the database directory"))?
        {
            return Err(Error::Refused(format!(
                "the database in {} runs as user {}, which has no access to {}: run chmod o+x on it",
                home.display(),
                os_user.account.name,
                dir.display(),
            )));
        }
        let sockets = make_sockets(&home, os_user)?;
        let location = Self { home, sockets };
        make_private(&location.log_dir(), os_user)?;
        Ok(location)
    }

    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// Path of the cluster, which Postgres calls the data directory.
    pub(super) fn cluster(&self) -> PathBuf {
        self.home.join(CLUSTER)
    }

    /// Reads the major version that created the cluster; `None` when there is no cluster.
    pub(super) fn cluster_major(&self) -> Result<Option<u32>, Error> {
        let path = self.cluster().join("PG_VERSION");
        match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map(Some).map_err(|_| {
                Error::Refused(format!("{} contains no version: is this a Postgres cluster?", path.display()))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("could not read {}", path.display()))(error)),
        }
    }

    /// Directory in which the server rotates its log.
    pub(super) fn log_dir(&self) -> PathBuf {
        self.home.join("log")
    }

    /// Output of the server before its log is open.
    pub(super) fn startup_log(&self) -> PathBuf {
        self.home.join("startup.log")
    }

    /// Path of a settings file, in a directory that the server's user cannot write.
    pub(super) fn settings(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    pub(super) fn sockets(&self) -> &Path {
        &self.sockets
    }

    /// Recreates the directory of the sockets. Call it with the transition lock held.
    ///
    /// A process that stopped the server between `open` and the lock has removed the directory.
    pub(super) fn recreate_sockets(&self, os_user: &OsUser) -> Result<(), Error> {
        make_sockets(&self.home, os_user).map(drop)
    }

    /// Removes the directory of the sockets, unless it contains a socket.
    pub(super) fn remove_sockets(&self) {
        let _left_to_the_next_start = fs::remove_dir(&self.sockets);
    }

    pub(super) fn users_lock(&self) -> PathBuf {
        self.home.join("users.lock")
    }

    pub(super) fn transition_lock(&self) -> PathBuf {
        self.home.join("transition.lock")
    }

    /// URL of a connection over the socket; ignores `PG*` variables.
    pub(super) fn url(&self, role: &str, database: &str) -> String {
        let host: String =
            url::form_urlencoded::byte_serialize(self.sockets.as_os_str().as_encoded_bytes()).collect();
        format!("postgres://{role}@localhost:{PORT}/{database}?host={host}&sslmode=disable")
    }
}

/// Creates the data directory and returns its path without links.
pub(super) fn make_data_dir(data_dir: &Path) -> Result<PathBuf, Error> {
    fs::create_dir_all(data_dir)
        .and_then(|()| data_dir.canonicalize())
        .map_err(Error::io(format!("could not create the data directory {}", data_dir.display())))
}

/// Path of the cluster of a data directory, which need not exist.
pub(super) fn cluster_of(data_dir: &Path) -> PathBuf {
    data_dir.join(LINK).join(CLUSTER)
}

/// Checks that a path fits in a settings file and in a URL.
fn utf8(path: &Path) -> Result<(), Error> {
    match path.to_str() {
        Some(text) if !text.contains(['\n', '\r']) => Ok(()),
        Some(_) | None => Err(Error::Refused(format!(
            "{} cannot contain a database: its path must be UTF-8 without line breaks",
            path.display()
        ))),
    }
}

fn make_home(data_dir: &Path, link: &Path, os_user: &OsUser, origin: &Origin) -> Result<(), Error> {
    let barred = os_user
        .account
        .first_inaccessible_dir(data_dir)
        .map_err(Error::io("could not check the data directory"))?;
    if barred.is_none() {
        return make_dir(link, 0o755);
    }
    // The name is random and not derived from the path: a data directory that was removed and
    // recreated must not find the database of the old one.
    let home = Path::new(CLUSTERS_OF_ROOT).join(text::hex(&origin.bytes::<8>()));
    make_dir(Path::new(CLUSTERS_OF_ROOT), 0o755)?;
    make_dir(&home, 0o755)?;
    match symlink(&home, link) {
        // Another process created the link first; its home is used.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(&home).map_err(Error::io(format!("could not remove {}", home.display())))
        }
        made => made.map_err(Error::io(format!("could not create the link {}", link.display()))),
    }
}

/// Creates a directory for the socket with a short path, closed to other users.
fn make_sockets(home: &Path, os_user: &OsUser) -> Result<PathBuf, Error> {
    let name = format!("pg-{}", &text::hex(&Sha256::digest(home.as_os_str().as_encoded_bytes()))[..16]);
    let me = rustix::process::geteuid().as_raw();
    let run = Path::new(SOCKETS).to_owned();
    let temp = Path::new("/tmp").join(format!("sojourn-{me}"));
    let mut refused = None;
    for parent in [run, temp] {
        let made = make_dir(&parent, 0o711).and_then(|()| check_socket_parent(&parent, me)).and_then(|()| {
            let dir = parent.join(&name);
            make_private(&dir, os_user).map(|()| dir)
        });
        match made {
            Ok(dir) => return Ok(dir),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.expect("the loop tries two directories and both failed"))
}

/// Checks that only we can create files beside our socket, and lets the server's user pass.
fn check_socket_parent(parent: &Path, me: u32) -> Result<(), Error> {
    let what = || format!("could not use {} for the database's socket", parent.display());
    let data = parent.symlink_metadata().map_err(Error::io(what()))?;
    if !data.is_dir() || data.uid() != me || data.mode() & 0o022 != 0 {
        let reason = "it belongs to someone else, or others may write there";
        return Err(Error::Refused(format!("{}: {reason}", what())));
    }
    if data.mode() & 0o011 == 0o011 {
        return Ok(());
    }
    let mode = data.mode() & 0o7777 | 0o011;
    fs::set_permissions(parent, fs::Permissions::from_mode(mode)).map_err(Error::io(what()))
}

/// Creates a directory for the server's user alone.
pub(super) fn make_private(dir: &Path, os_user: &OsUser) -> Result<(), Error> {
    make_dir(dir, 0o700)?;
    os_user.give(dir)
}

fn make_dir(dir: &Path, mode: u32) -> Result<(), Error> {
    let made = fs::DirBuilder::new().mode(mode).create(dir);
    let there = match made {
        // The umask may have removed bits that the server's user needs.
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(error),
    };
    there.map_err(Error::io(format!("could not create the directory {}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_contains_the_socket_directory_whatever_its_name() {
        let location = Location { home: "/h".into(), sockets: "/tmp/a b&c".into() };
        assert_eq!(
            location.url("sojourn_app", "sojourn"),
            "postgres://sojourn_app@localhost:5432/sojourn?host=%2Ftmp%2Fa+b%26c&sslmode=disable"
        );
    }
}
