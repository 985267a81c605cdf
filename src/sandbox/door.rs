//! The host's side of a box's way out.
//!
//! Made by the providers, used by the worker that joins it to a proxy. Both
//! directories belong to the service alone: the box sees one of them, read-only, so
//! nothing that the host opens there can have been replaced from inside.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

use sojourn_init::protocol::PROXY_SOCKET;
use tokio::net::UnixListener;

/// Where the connections of a box arrive.
#[derive(Debug)]
pub struct Door {
    pub listener: UnixListener,
    /// What only the service reads; it lives as long as the box.
    pub private: PathBuf,
    shown: PathBuf,
}

impl Door {
    /// Listens in `shown`, the directory that the box sees; only `owner`, the host's
    /// id of the box's root, may connect. Replaces another door in one step.
    pub(super) fn open(private: PathBuf, shown: PathBuf, owner: u32) -> io::Result<Self> {
        let beside = shown.join(".proxy");
        remove(&beside)?;
        let listener = UnixListener::bind(&beside)?;
        chown(&beside, Some(owner), Some(owner))?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))?;
        fs::rename(&beside, shown.join(PROXY_SOCKET))?;
        Ok(Self { listener, private, shown })
    }

    /// Shows a file to the box, whole or not at all.
    pub fn show(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let (beside, path) = (self.shown.join(".new"), self.shown.join(name));
        if fs::read(&path).is_ok_and(|shown| shown == content) {
            return Ok(());
        }
        fs::write(&beside, content)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o644))?;
        fs::rename(beside, path)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_door_takes_the_place_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Door::open(directory.path().to_owned(), directory.path().to_owned(), 0);
        let (first, second) = (open().unwrap(), open().unwrap());
        let socket = directory.path().join(PROXY_SOCKET);
        let (connected, accepted) =
            tokio::join!(tokio::net::UnixStream::connect(socket), second.listener.accept());
        assert!(connected.is_ok() && accepted.is_ok());
        drop(first);
        second.show("certificates.pem", b"one").unwrap();
        second.show("certificates.pem", b"two").unwrap();
        assert_eq!(fs::read(directory.path().join("certificates.pem")).unwrap(), b"two");
    }
}
