//! Socket of the agent: a unix socket, or TLS with certificates of both sides.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
    sync::Arc,
};

use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

use crate::sandbox::{
    EgressConnection,
    node::{NodeAddress, TlsFiles},
};

/// The socket of an agent.
pub enum Listener {
    Unix(UnixListener),
    /// Every caller shows a certificate.
    Tls(TcpListener, TlsAcceptor),
}

impl Listener {
    /// Listens on an address. A unix socket can be opened by its owner only, the user `owner`.
    ///
    /// # Errors
    /// One line with the address.
    pub async fn open(address: &NodeAddress, files: Option<&TlsFiles>, owner: u32) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::other(format!("cannot listen on {address}: {error}"));
        match address {
            NodeAddress::Unix(path) => unix(path.clone(), owner).map(Self::Unix).map_err(named),
            NodeAddress::Tls { host, port } => {
                let Some(files) = files else {
                    return Err(named(io::Error::other("it needs certificates (SOJOURN_NODE_TLS_*)")));
                };
                let acceptor = TlsAcceptor::from(Arc::new(files.server()?));
                let listener = TcpListener::bind((host.as_str(), *port)).await.map_err(named)?;
                Ok(Self::Tls(listener, acceptor))
            }
        }
    }

    /// Waits for the next caller. Its handshake is the returned future. Cancel-safe.
    pub(super) async fn accept(
        &self,
    ) -> io::Result<impl Future<Output = io::Result<Box<dyn EgressConnection>>> + Send + use<>> {
        let accepted = match self {
            Self::Unix(listener) => Ok(listener.accept().await?.0),
            Self::Tls(listener, acceptor) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Err(acceptor.accept(stream))
            }
        };
        Ok(async {
            Ok(match accepted {
                Ok(stream) => Box::new(stream) as Box<dyn EgressConnection>,
                Err(handshake) => Box::new(handshake.await?),
            })
        })
    }
}

/// Replaces a socket that an earlier agent left.
fn unix(path: PathBuf, owner: u32) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&beside)?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))?;
    chown(&beside, Some(owner), None)?;
    fs::rename(beside, path)?;
    Ok(listener)
}
