//! A TCP relay in front of the tests' Postgres, which can refuse, reset or silently stop forwarding.

use std::{net::SocketAddr, path::PathBuf, thread};

use sojourn::store::Urls;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    runtime,
    sync::{oneshot, watch},
    task::JoinSet,
};

/// Behavior of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Forward,
    /// Accepts connections and closes them, as a server that restarts.
    Reset,
    /// Forwards nothing and closes nothing, as a host that vanished. What was sent meanwhile is lost.
    Silent,
}

/// A relay on loopback. Its connections end when it is dropped.
///
/// It has a thread of its own, so that a busy test does not look like a silent database.
pub struct Relay {
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    running: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

impl Relay {
    /// Listens on `address`, or on a free port, in front of the server of these URLs.
    pub async fn start(urls: &Urls, address: Option<SocketAddr>, mode: Mode) -> Self {
        let listen = address.unwrap_or_else(|| "127.0.0.1:0".parse().expect("an address"));
        let listener = TcpListener::bind(listen).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let listener = listener.into_std().expect("a listener");
        let socket = socket(&urls.owner);
        let (mode, watched) = watch::channel(mode);
        let (end, ended) = oneshot::channel();
        let thread = thread::spawn(move || {
            let own = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            own.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    _ = ended => {}
                    () = accept(listener, socket, watched) => {}
                }
            });
        });
        Self { address, mode, running: Some((end, thread)) }
    }

    /// Changes the behavior, also of open connections.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// The URLs of the server through the relay.
    pub fn urls(&self, urls: &Urls) -> Urls {
        through(urls, self.address)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.running.take() {
            drop(end);
            assert!(thread.join().is_ok() || thread::panicking(), "the relay runs until it is dropped");
        }
    }
}

async fn accept(listener: TcpListener, socket: PathBuf, mode: watch::Receiver<Mode>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if *mode.borrow() == Mode::Reset {
            continue;
        }
        connections.spawn(forward(client, socket.clone(), mode.clone()));
    }
}

/// URLs of the same roles and database at another address.
pub fn through(urls: &Urls, address: SocketAddr) -> Urls {
    let at = |url: &str| at(url, address);
    Urls { owner: at(&urls.owner), app: at(&urls.app), system: at(&urls.system) }
}

fn at(url: &str, address: SocketAddr) -> String {
    let (role, rest) = url.strip_prefix("postgres://").and_then(|rest| rest.split_once('@')).expect("a role");
    let (_, rest) = rest.split_once('/').expect("a database");
    let (database, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let is_address = |one: &&str| ["host=", "port=", "sslmode="].iter().any(|name| one.starts_with(name));
    let kept: String = parameters
        .split('&')
        .filter(|one| !one.is_empty() && !is_address(one))
        .map(|one| format!("&{one}"))
        .collect();
    format!("postgres://{role}@{address}/{database}?sslmode=disable{kept}")
}

/// The Unix socket of a URL with `host` as a directory.
fn socket(url: &str) -> PathBuf {
    let url = url::Url::parse(url).expect("a URL");
    let of = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let (dir, port) = (of("host").expect("a directory"), of("port").unwrap_or_else(|| "5432".to_owned()));
    PathBuf::from(dir).join(format!(".s.PGSQL.{port}"))
}

async fn forward(client: TcpStream, socket: PathBuf, mode: watch::Receiver<Mode>) {
    // A server that is down closes the connection, as it would without a relay.
    let Ok(server) = UnixStream::connect(socket).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut resets = mode.clone();
    tokio::select! {
        () = copy(from_client, to_server, mode.clone()) => {}
        () = copy(from_server, to_client, mode) => {}
        _ = resets.wait_for(|mode| *mode == Mode::Reset) => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut mode: watch::Receiver<Mode>,
) {
    let mut buffer = vec![0; 16 << 10];
    let mut is_lost = false;
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        is_lost |= *mode.borrow() == Mode::Silent;
        // Bytes of a connection that lost some cannot be forwarded any more.
        if !is_lost && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    // An end is repeated until it arrives. Without a relay, the relay is being dropped.
    let _ = mode.wait_for(|mode| *mode != Mode::Silent).await;
}
