//! A TCP relay in front of the tests' Postgres, which can close connections as a server that restarts.

use std::{net::SocketAddr, path::PathBuf};

use sojourn::store::Urls;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
    task::JoinSet,
};

/// Behavior of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Forward,
    /// Accepts connections and closes them, as a server that restarts.
    Reset,
}

/// A relay on loopback. Its connections end when it is dropped.
pub struct Relay {
    mode: watch::Sender<Mode>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// Listens on `address` in front of the server of these URLs.
    pub async fn start(urls: &Urls, address: SocketAddr, mode: Mode) -> Self {
        let listener = TcpListener::bind(address).await.expect("the port");
        let socket = socket(&urls.owner);
        let (mode, watched) = watch::channel(mode);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                if *watched.borrow() == Mode::Reset {
                    continue;
                }
                connections.spawn(forward(client, socket.clone(), watched.clone()));
            }
        });
        Self { mode, _tasks: tasks }
    }

    /// Changes the behavior, also of open connections.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

/// The URLs of the same roles and database at another address.
pub fn through(urls: &Urls, address: SocketAddr) -> Urls {
    let at = |url: &str| {
        let (role, rest) =
            url.strip_prefix("postgres://").and_then(|rest| rest.split_once('@')).expect("a role");
        let database = rest.split_once('/').and_then(|(_, rest)| rest.split('?').next()).expect("a database");
        format!("postgres://{role}@{address}/{database}?sslmode=disable")
    };
    Urls { owner: at(&urls.owner), app: at(&urls.app), system: at(&urls.system) }
}

/// The Unix socket of a URL with `host` as a directory.
fn socket(url: &str) -> PathBuf {
    let url = url::Url::parse(url).expect("a URL");
    let of = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let (dir, port) = (of("host").expect("a directory"), of("port").unwrap_or_else(|| "5432".to_owned()));
    PathBuf::from(dir).join(format!(".s.PGSQL.{port}"))
}

async fn forward(mut client: TcpStream, socket: PathBuf, mut mode: watch::Receiver<Mode>) {
    let mut server = UnixStream::connect(socket).await.expect("the server");
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = mode.wait_for(|mode| *mode == Mode::Reset) => {}
    }
}
