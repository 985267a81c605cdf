//! Connections to a node agent: over a unix socket, or over TLS with certificates of both sides.

use std::{
    fmt, io,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::{
    base::limit::NODE_SILENCE_MAX,
    sandbox::{EgressConnection, Fault},
};

/// Address of a node agent: `unix:/path` or `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// A socket on this machine. Who may open it may call the agent.
    Unix(PathBuf),
    /// Host and port. Both sides show a certificate of one authority.
    Tls { host: String, port: u16 },
}

impl FromStr for NodeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither `unix:` and an absolute path nor `host:port`");
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(wrong()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse() {
            Ok(port) if !host.is_empty() => Ok(Self::Tls { host: host.to_owned(), port }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tls { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tls { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Files (PEM) with which the two sides of a TLS connection know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of this process.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authority that signed the certificates of agents and workers, and nothing else.
    pub authority: PathBuf,
}

impl TlsFiles {
    /// Configuration of an agent: it accepts only callers with a certificate of the authority.
    ///
    /// # Errors
    /// A file cannot be read, or does not contain what it should.
    pub fn server(&self) -> io::Result<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), Arc::clone(&provider))
                .build()
                .map_err(io::Error::other)?;
        let (chain, key) = self.own()?;
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(io::Error::other)
    }

    fn client(&self) -> io::Result<ClientConfig> {
        let (chain, key) = self.own()?;
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(chain, key)
            .map_err(io::Error::other)
    }

    fn roots(&self) -> io::Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authority)? {
            roots.add(certificate).map_err(|error| unusable(&self.authority, &error))?;
        }
        Ok(roots)
    }

    fn own(&self) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| unusable(&self.key, &error))?;
        Ok((certificates(&self.certificate)?, key))
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(path, &"it contains no certificate")),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn unusable(path: &Path, error: &dyn fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// Opens connections to one agent.
pub(super) struct Dialer {
    address: NodeAddress,
    tls: Option<TlsConnector>,
}

impl Dialer {
    /// Reads the files of an address with TLS.
    pub(super) fn new(address: NodeAddress, files: Option<&TlsFiles>) -> io::Result<Self> {
        let tls = match (&address, files) {
            (NodeAddress::Unix(_), _) => None,
            (NodeAddress::Tls { .. }, Some(files)) => Some(TlsConnector::from(Arc::new(files.client()?))),
            (NodeAddress::Tls { .. }, None) => {
                let text =
                    "an agent on another machine needs certificates of both sides (SOJOURN_NODE_TLS_*)";
                return Err(io::Error::other(text));
            }
        };
        Ok(Self { address, tls })
    }

    /// Opens a connection within a bounded time.
    pub(super) async fn open(&self) -> io::Result<Box<dyn EgressConnection>> {
        let connected = timeout(NODE_SILENCE_MAX, self.connect()).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// The fault of a connection that failed.
    pub(super) fn lost(&self, error: &io::Error) -> Fault {
        Fault::Unavailable(format!("the node agent at {} does not answer: {error}", self.address))
    }

    async fn connect(&self) -> io::Result<Box<dyn EgressConnection>> {
        match (&self.address, &self.tls) {
            (NodeAddress::Unix(path), _) => Ok(Box::new(UnixStream::connect(path).await?)),
            (NodeAddress::Tls { host, port }, Some(tls)) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                let name = match host.parse::<IpAddr>() {
                    Ok(address) => ServerName::IpAddress(address.into()),
                    Err(_) => ServerName::try_from(host.clone()).map_err(io::Error::other)?,
                };
                Ok(Box::new(tls.connect(name, stream).await?))
            }
            (NodeAddress::Tls { .. }, None) => {
                unreachable!("`new` refuses an address with TLS without files")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_path_or_a_host_with_a_port() {
        for text in ["unix:/run/sojourn/node.sock", "node-1.example:7070", "127.0.0.1:7070", "[::1]:7070"] {
            assert_eq!(text.parse::<NodeAddress>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "unix:node.sock", "node-1", ":7070", "node-1:", "node-1:70700"] {
            assert!(text.parse::<NodeAddress>().is_err(), "{text}");
        }
    }
}
