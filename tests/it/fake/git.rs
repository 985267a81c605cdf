//! A git host on loopback: the smart protocol over TLS, served by git's own `http-backend`.
//!
//! Repositories below `private` require a token, those below `moved` redirect; the packs of those below
//! `huge` and `slow` never end. All others are public. Sandboxes reach it as `localhost`.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, net::TcpListener, sync::Notify, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

/// Token for the repositories below `private`.
pub const TOKEN: &str = "ghp-a-token-that-stays-outside";

/// Type of the responses.
type Answer = Response<BoxBody<Bytes, Infallible>>;

/// A running git host.
pub struct GitHost {
    pub port: u16,
    shared: Arc<Shared>,
    directory: TempDir,
    server: JoinHandle<()>,
}

struct Shared {
    root: PathBuf,
    asked: Mutex<Vec<String>>,
    authorizations: Mutex<Vec<String>>,
    /// Packs wait for [`GitHost::release`].
    holds: AtomicBool,
    released: Notify,
    /// Number of requests that are answered with 503 first.
    failures: AtomicUsize,
}

impl GitHost {
    pub async fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("sojourn-git-").tempdir().expect("a directory");
        let (pem, config) = certificates();
        std::fs::write(directory.path().join("root.pem"), pem).expect("a file");
        let root = directory.path().join("repositories");
        std::fs::create_dir(&root).expect("a directory");
        let shared = Arc::new(Shared {
            root,
            asked: Mutex::default(),
            authorizations: Mutex::default(),
            holds: AtomicBool::new(false),
            released: Notify::new(),
            failures: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (acceptor, own) = (TlsAcceptor::from(config), Arc::clone(&shared));
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let (acceptor, shared) = (acceptor.clone(), Arc::clone(&own));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(|request| {
                        let shared = Arc::clone(&shared);
                        async move { Ok::<_, Infallible>(answer(&shared, request).await) }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { port, shared, directory, server }
    }

    /// Settings of a service whose sandboxes reach this host.
    pub fn settings(&self) -> [String; 2] {
        let root = self.directory.path().join("root.pem");
        ["--allow-private-egress=on".to_owned(), format!("--egress-ca-file={}", root.display())]
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.port)
    }

    /// Creates a repository with a file, a branch `next`, a tag `v1` and pull request 7. Returns the commits
    /// of `main`, `next` and the pull request.
    pub fn repository(&self, path: &str) -> [String; 3] {
        make_repository(&self.shared.root.join(path))
    }

    /// Creates a repository with only this file.
    pub fn repository_of(&self, path: &str, content: &[u8]) {
        let work = tempfile::tempdir().expect("a directory");
        git(work.path(), &["init", "--quiet"]);
        std::fs::write(work.path().join("file"), content).expect("a file");
        git(work.path(), &["add", "."]);
        git(work.path(), &["commit", "--quiet", "--message", "all"]);
        let bare = self.shared.root.join(path).display().to_string();
        git(work.path(), &["clone", "--quiet", "--bare", ".", &bare]);
    }

    /// Received requests, as `GET /path?query`.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().expect("no holder panics").clone()
    }

    /// Received `Authorization` headers.
    pub fn authorizations(&self) -> Vec<String> {
        self.shared.authorizations.lock().expect("no holder panics").clone()
    }

    /// Blocks packs until `release`.
    pub fn hold(&self) {
        self.shared.holds.store(true, Ordering::SeqCst);
    }

    pub fn release(&self) {
        self.shared.holds.store(false, Ordering::SeqCst);
        self.shared.released.notify_waiters();
    }

    /// Answers the next `count` requests with 503.
    pub fn fail(&self, count: usize) {
        self.shared.failures.store(count, Ordering::SeqCst);
    }
}

impl Drop for GitHost {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Creates a bare repository with a history; see [`GitHost::repository`].
pub fn make_repository(bare: &Path) -> [String; 3] {
    let work = tempfile::tempdir().expect("a directory");
    let git = |arguments: &[&str]| git(work.path(), arguments);
    let commit = |text: &str| {
        std::fs::write(work.path().join("README"), format!("{text}\n")).expect("a file");
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", text]);
        git(&["rev-parse", "HEAD"])
    };
    git(&["init", "--quiet"]);
    commit("first");
    let main = commit("main");
    git(&["tag", "v1"]);
    git(&["checkout", "--quiet", "-b", "next"]);
    let next = commit("next");
    git(&["checkout", "--quiet", "--detach", "main"]);
    let pull = commit("pull");
    git(&["update-ref", "refs/pull/7/head", &pull]);
    git(&["checkout", "--quiet", "main"]);
    std::fs::create_dir_all(bare).expect("a directory");
    let target = bare.display().to_string();
    git(&["init", "--quiet", "--bare", &target]);
    git(&["push", "--quiet", &target, "main", "next", "v1", "refs/pull/7/head"]);
    [main, next, pull]
}

fn git(work: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(work)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// The start of a pack, then `packet` forever.
fn endless(packet: Bytes, pause: Duration) -> Answer {
    let begin = Bytes::from_static(b"000dpackfile\n");
    let frames = stream::unfold(Some(begin), move |first| {
        let packet = packet.clone();
        async move {
            let next = match first {
                Some(begin) => begin,
                None => {
                    tokio::time::sleep(pause).await;
                    packet
                }
            };
            Some((Ok(Frame::data(next)), None))
        }
    });
    Response::builder()
        .header("content-type", "application/x-git-upload-pack-result")
        .body(BodyExt::boxed(StreamBody::new(frames)))
        .expect("an answer")
}

async fn answer(shared: &Shared, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
    let nothing = || Full::default().boxed();
    let plain = |status: u16| Response::builder().status(status).body(nothing()).expect("an answer");
    let asked = match query.is_empty() {
        true => format!("{} {path}", parts.method),
        false => format!("{} {path}?{query}", parts.method),
    };
    shared.asked.lock().expect("no holder panics").push(asked);
    let header = |name: &str| {
        parts.headers.get(name).map(|value| value.to_str().expect("text").to_owned()).unwrap_or_default()
    };
    let authorization = header("authorization");
    if !authorization.is_empty() {
        shared.authorizations.lock().expect("no holder panics").push(authorization.clone());
    }
    assert_eq!(header("x-sojourn-source"), "", "the proof does not leave");
    let failures = &shared.failures;
    if failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
        return plain(503);
    }
    if let Some(rest) = path.strip_prefix("/moved/") {
        let location = format!("/open/{rest}?{query}");
        return Response::builder().status(301).header("location", location).body(nothing()).expect("one");
    }
    let expected = format!("Basic {}", BASE64_STANDARD.encode(format!("x-access-token:{TOKEN}")));
    if path.starts_with("/private/") && authorization != expected {
        let mut refused = plain(401);
        refused.headers_mut().insert("www-authenticate", "Basic realm=\"git\"".parse().expect("a value"));
        return refused;
    }
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    if path.ends_with("/git-upload-pack") && body.windows(5).any(|word| word == b"fetch") {
        // Progress messages and keep-alives are not part of the pack.
        if path.starts_with("/huge/") {
            let words = [b"fff0\x02".as_slice(), &[b'.'; 65_515]].concat();
            return endless(words.into(), Duration::ZERO);
        }
        if path.starts_with("/slow/") {
            return endless(Bytes::from_static(b"0005\x01"), Duration::from_millis(500));
        }
        let released = shared.released.notified();
        if shared.holds.load(Ordering::SeqCst) {
            released.await;
        }
    }
    backend(shared, &parts, &path, &query, &body).await
}

/// Runs `git http-backend`, as a web server does.
async fn backend(
    shared: &Shared,
    parts: &hyper::http::request::Parts,
    path: &str,
    query: &str,
    body: &[u8],
) -> Answer {
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut child = tokio::process::Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &shared.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git http-backend runs");
    let mut stdin = child.stdin.take().expect("it is piped");
    let (_, output) = tokio::join!(
        async move {
            let _ = stdin.write_all(body).await;
        },
        child.wait_with_output()
    );
    let output = output.expect("an end").stdout;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let mut answer = Response::builder();
    for line in head.lines() {
        let (name, value) = line.split_once(": ").expect("a header");
        answer = match name {
            "Status" => answer.status(value[..3].parse::<u16>().expect("a status")),
            _ => answer.header(name, value),
        };
    }
    answer.body(Full::new(Bytes::copy_from_slice(&output[end + 4..])).boxed()).expect("an answer")
}

fn certificates() -> (String, Arc<ServerConfig>) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let pem = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(["localhost".to_owned()]).expect("parameters");
    let leaf = leaf.signed_by(&key, &issuer).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .expect("a configuration");
    (pem, Arc::new(config))
}
