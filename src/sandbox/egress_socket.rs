//! The service's end of a sandbox's egress connection.
//!
//! Opened by the providers and used by `lifecycle`, which attaches it to an egress proxy. Only the service can
//! write to both directories. The sandbox sees one of them, read-only, so it cannot replace a file that the
//! service opens there.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use sojourn_init::protocol::PROXY_SOCKET;
use tokio::net::UnixListener;

use super::Fault;

/// Socket on which a sandbox's outgoing connections arrive.
#[derive(Debug)]
pub struct EgressSocket {
    pub listener: UnixListener,
    /// Directory that only the service reads; it exists as long as the sandbox.
    pub private: PathBuf,
    shown: PathBuf,
}

impl EgressSocket {
    /// Listens in `shown`, the directory that the sandbox sees. `give` changes the socket's owner to the
    /// sandbox's root, the only user that may connect. An existing egress socket is replaced atomically.
    pub(super) async fn open(
        private: PathBuf,
        shown: PathBuf,
        give: impl AsyncFnOnce(&Path) -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        let failed = |error: io::Error| Fault::Unavailable(format!("egress socket not opened: {error}"));
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

    /// Publishes a file to the sandbox atomically.
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
    async fn a_second_egress_socket_replaces_the_first() {
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
