//! Egress sockets of sandboxes on this machine.
//!
//! Only the service can write to their directory. The sandbox sees it read-only, so it cannot replace a file that
//! the service opens there.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use futures::{StreamExt, stream};
use sojourn_init::protocol::PROXY_SOCKET;
use tokio::net::UnixListener;

use super::unavailable;
use crate::sandbox::{EgressConnection, EgressSocket, Fault, egress_socket::CERTIFICATES_FILE};

/// Listens on a unix socket in `directory` and publishes `certificates` there. `give` changes the socket's owner to
/// the sandbox's root, the only user that may connect. An existing egress socket is replaced atomically.
pub(super) async fn open(
    directory: &Path,
    certificates: &[u8],
    give: impl AsyncFnOnce(&Path) -> Result<(), Fault>,
) -> Result<EgressSocket, Fault> {
    let failed = |error: io::Error| unavailable("its egress socket cannot be opened", &error);
    let beside = directory.join(".proxy");
    let listen = || -> io::Result<UnixListener> {
        remove(&beside)?;
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    let listener = listen().map_err(failed)?;
    give(&beside).await?;
    publish(directory, certificates).map_err(failed)?;
    fs::rename(&beside, directory.join(PROXY_SOCKET)).map_err(failed)?;
    let accept = async |listener: UnixListener| {
        let accepted = listener.accept().await;
        let connection = accepted.map(|(connection, _)| Box::new(connection) as Box<dyn EgressConnection>);
        Some((connection, listener))
    };
    Ok(stream::unfold(listener, accept).boxed())
}

/// Publishes the certificates to the sandbox atomically.
fn publish(directory: &Path, certificates: &[u8]) -> io::Result<()> {
    let (beside, path): (PathBuf, PathBuf) = (directory.join(".new"), directory.join(CERTIFICATES_FILE));
    fs::write(&beside, certificates)?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o644))?;
    fs::rename(beside, path)
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
        let listen =
            |certificates: &'static [u8]| open(directory.path(), certificates, async |_: &Path| Ok(()));
        let (first, mut second) = (listen(b"one").await.unwrap(), listen(b"two").await.unwrap());
        let socket = directory.path().join(PROXY_SOCKET);
        let (connected, accepted) = tokio::join!(tokio::net::UnixStream::connect(socket), second.next());
        assert!(connected.is_ok() && accepted.unwrap().is_ok());
        drop(first);
        assert_eq!(fs::read(directory.path().join(CERTIFICATES_FILE)).unwrap(), b"two");
    }
}
