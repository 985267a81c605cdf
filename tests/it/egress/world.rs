//! A proxy with hosts behind it, all on loopback.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
};
use sojourn::{
    base::{Origin, shares::Shares},
    domain::{
        OrgId,
        network::{EgressRule, HostPattern, NetworkPolicy, SecretPlacement},
    },
    egress::{
        Authority, Decision, Log, Lost, Parts, Policy, Proxy, Reason, Registries, Secret, Secrets, Verdict,
    },
    net::{Dialer, Policy as Guard, Resolver},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener, UnixStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// Placeholder that a sandbox has instead of the value.
pub const PLACEHOLDER: &str = "sjph_placeholder";
pub const SECRET: &str = "the-value-of-the-secret";

/// Resolves every name to this machine.
struct Home;

#[async_trait]
impl Resolver for Home {
    async fn resolve(&self, _: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    }
}

/// A log in memory.
#[derive(Default)]
pub struct MemoryLog {
    lines: Mutex<Vec<(Decision, u64)>>,
    pub torn: AtomicBool,
}

#[async_trait]
impl Log for MemoryLog {
    async fn write(&self, decisions: Vec<(Decision, u64)>) -> Result<(), Lost> {
        if self.torn.load(Ordering::SeqCst) {
            return Err(Lost);
        }
        self.lines.lock().unwrap().extend(decisions);
        Ok(())
    }
}

impl MemoryLog {
    pub fn lines(&self) -> Vec<(Decision, u64)> {
        self.lines.lock().unwrap().clone()
    }

    pub fn reasons(&self) -> Vec<Reason> {
        let denied = |(decision, _): &(Decision, u64)| match decision.verdict {
            Verdict::Denied(reason) => Some(reason),
            Verdict::Allowed { .. } => None,
        };
        self.lines().iter().filter_map(denied).collect()
    }

    pub fn allowed(&self) -> usize {
        self.lines().len() - self.reasons().len()
    }
}

/// A host that answers every request with the request itself.
pub struct Host {
    pub port: u16,
    pub heads: Arc<Mutex<Vec<String>>>,
    pub root: CertificateDer<'static>,
    server: JoinHandle<()>,
}

impl Host {
    pub async fn start(tls: bool, answer_head: &'static str) -> Self {
        let (root, config) = certificates();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&heads);
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    if !tls {
                        serve(stream, &seen, answer_head).await;
                    } else if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, &seen, answer_head).await;
                    }
                });
            }
        });
        Self { port, heads, root, server }
    }

    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Reads one request, answers it in small pieces, and disconnects.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Vec<String>>,
    answer_head: &str,
) {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 1_024];
        match stream.read(&mut piece).await {
            Ok(length) if length > 0 => bytes.extend_from_slice(&piece[..length]),
            Ok(_) | Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&bytes).into_owned();
    seen.lock().unwrap().push(head.clone());
    let _ = stream.write_all(format!("{answer_head}Connection: close\r\n\r\n").as_bytes()).await;
    // Splits a secret at every possible place.
    for piece in head.as_bytes().chunks(7) {
        let _ = stream.write_all(piece).await;
        let _ = stream.flush().await;
    }
    let _ = stream.shutdown().await;
}

fn certificates() -> (CertificateDer<'static>, Arc<ServerConfig>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let root = params.self_signed(&key).unwrap().der().clone();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let names = ["a.example".to_owned(), "b.example".to_owned(), "bound.example".to_owned()];
    let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (root, Arc::new(config))
}

/// A rule for a test.
pub fn rule(host: &str, port: u16, methods: &[&str], path_prefix: Option<&str>) -> EgressRule {
    EgressRule {
        host: host.to_owned(),
        port,
        methods: methods.iter().map(|method| (*method).to_owned()).collect(),
        path_prefix: path_prefix.map(str::to_owned),
    }
}

/// A proxy, its log, and a client connection like a sandbox's.
pub struct World {
    pub proxy: Arc<Proxy>,
    pub paper: Arc<MemoryLog>,
    pub port: u16,
    /// Certificates that the sandbox trusts.
    pub roots: RootCertStore,
    tasks: Vec<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl World {
    /// Opens a world in which `bound.example` has the secret.
    pub async fn open(rules: Vec<EgressRule>, host: &Host, allow_private: bool) -> Self {
        Self::among(None, &Arc::new(Shares::new(64, 64)), rules, host, allow_private).await
    }

    /// The same for an organization that shares the connections of its process with others.
    pub async fn among(
        org: Option<OrgId>,
        connections: &Arc<Shares<OrgId>>,
        rules: Vec<EgressRule>,
        host: &Host,
        allow_private: bool,
    ) -> Self {
        let paper = Arc::new(MemoryLog::default());
        let log = Arc::clone(&paper) as _;
        let proxy = proxy_among(org, connections, rules, host, log, allow_private);
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::of(&[7; 32], &Origin::system()).unwrap();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&authority.bundle(std::slice::from_ref(&host.root)))
        {
            roots.add(certificate.unwrap()).unwrap();
        }
        let socket = directory.path().join("proxy.sock");
        let egress_socket = UnixListener::bind(&socket).unwrap();
        let accepted = stream::unfold(egress_socket, async |socket| {
            Some((socket.accept().await.map(|(connection, _)| connection), socket))
        });
        let serving = tokio::spawn(Arc::clone(&proxy).serve(accepted.boxed(), authority));
        let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = relay.local_addr().unwrap().port();
        let relaying = tokio::spawn(async move {
            loop {
                let (mut inside, _) = relay.accept().await.unwrap();
                let Ok(mut outside) = UnixStream::connect(&socket).await else { continue };
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut inside, &mut outside).await });
            }
        });
        Self { proxy, paper, port, roots, tasks: vec![serving, relaying], _directory: directory }
    }

    /// An HTTP client in the sandbox, with the certificates that sandboxes trust.
    pub fn client(&self) -> reqwest::Client {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        reqwest::Client::builder()
            .proxy(reqwest::Proxy::all(format!("http://127.0.0.1:{}", self.port)).unwrap())
            .tls_backend_preconfigured(config)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap()
    }

    /// Sends raw bytes and reads the response to its end.
    pub async fn raw(&self, request: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub async fn close(self) {
        self.proxy.close().await;
        for task in self.tasks {
            task.abort();
        }
    }
}

/// A proxy that resolves every name to loopback.
pub fn proxy(rules: Vec<EgressRule>, host: &Host, log: Arc<dyn Log>, allow_private: bool) -> Arc<Proxy> {
    proxy_among(None, &Arc::new(Shares::new(64, 64)), rules, host, log, allow_private)
}

fn proxy_among(
    org: Option<OrgId>,
    connections: &Arc<Shares<OrgId>>,
    rules: Vec<EgressRule>,
    host: &Host,
    log: Arc<dyn Log>,
    allow_private: bool,
) -> Arc<Proxy> {
    let policy = NetworkPolicy { allow: rules, ..NetworkPolicy::default() };
    let secret = Secret {
        name: "TOKEN".to_owned(),
        placeholder: PLACEHOLDER.to_owned(),
        value: SECRET.to_owned().into(),
        hosts: vec![HostPattern::parse("bound.example").unwrap()],
        placement: SecretPlacement {
            headers: vec!["authorization".to_owned()],
            query_parameters: vec!["key".to_owned()],
        },
    };
    let dialer = Dialer::new(
        Guard { allow_private, ..Guard::default() },
        Arc::new(Home),
        std::slice::from_ref(&host.root),
    )
    .unwrap();
    let parts = Parts {
        org,
        connections: Arc::clone(connections),
        policy: Policy::new(&policy, &Registries::default()).unwrap(),
        secrets: Secrets::new(vec![secret]),
        dialer,
        log,
    };
    Proxy::new(parts, CancellationToken::new())
}
