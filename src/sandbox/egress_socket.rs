//! The host's side of a sandbox's way out.
//!
//! Made by the providers, used by the worker that joins it to a proxy. Both
//! directories belong to the service alone: the sandbox sees one of them, read-only, so
//! nothing that the host opens there can have been replaced from inside.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use sojourn_init::protocol::PROXY_SOCKET;
use tokio::net::UnixListener;

use super::Fault;

/// Where the connections of a sandbox arrive.
#[derive(Debug)]
pub struct EgressSocket {
    pub listener: UnixListener,
    /// What only the service reads; it lives as long as the sandbox.
    pub private: PathBuf,
    shown: PathBuf,
}

impl EgressSocket {
    /// Listens in `shown`, the directory that the sandbox sees; only whom `give` gives the
    /// socket to, the sandbox's root, may connect. Replaces another egress socket in one step.
    pub(super) async fn open(
        private: PathBuf,
        shown: PathBuf,
        give: impl AsyncFnOnce(&Path) -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        let failed = |error: io::Error| Fault::Unavailable(format!("its way out cannot be opened: {error}"));
        let beside = shown.join(".proxy");
        let listen = || -> io::Result<UnixListener> {
            remove(&beside)?;
            let listener = UnixListener::bind(&beside)?;
            fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let listener = listen().map_err(failed)?;
        give(&beside).await?;
        fs::rename(&beside, shown.join(PROXY_SOCKET)).map_err(failed)?;
        Ok(Self { listener, private, shown })
    }

    /// Shows a file to the sandbox, whole or not at all.
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
        let open = || {
            EgressSocket::open(directory.path().to_owned(), directory.path().to_owned(), async |_: &Path| {
                Ok(())
            })
        };
        let (first, second) = (open().await.unwrap(), open().await.unwrap());
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
