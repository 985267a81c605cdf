//! PgBouncer in transaction mode in front of the tests' Postgres.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use sojourn::store::Urls;
use tempfile::TempDir;

use super::{
    relay::{Mode, Relay, through},
    wait::wait_for,
};

/// Connections to the server of each role.
pub const SERVER_CONNECTIONS: usize = 4;

/// A pooler on a loopback port; stopped on drop.
pub struct Pooler {
    address: SocketAddr,
    child: Child,
    // Its user may not open the socket of the server, and the tests' server has no port.
    _relay: Relay,
    _dir: TempDir,
}

impl Pooler {
    /// Starts a pooler for the database of these URLs.
    pub async fn start(urls: &Urls) -> Self {
        let relay = Relay::start(urls, None, Mode::Forward).await;
        let dir = tempfile::Builder::new().prefix("sojourn-pooler-").tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let users = dir.path().join("users");
        fs::write(&users, "\"sojourn_app\" \"\"\n\"sojourn_system\" \"\"\n").expect("the users");
        let settings = dir.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = {SERVER_CONNECTIONS}\nmax_prepared_statements = 200\nmax_client_conn = 500\n\
             server_login_retry = 1\n\
             ignore_startup_parameters = extra_float_digits\nserver_tls_sslmode = disable\n",
            relay.address.port(),
            address.port(),
            users.display()
        );
        fs::write(&settings, text).expect("the settings");
        let mut command = Command::new("pgbouncer");
        if rustix::process::getuid().is_root() {
            // It refuses to run as root.
            command.arg("--user=nobody");
        }
        let child = command
            .arg(&settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbouncer 1.21 or newer: run scripts/setup --test");
        let pooler = Self { address, child, _relay: relay, _dir: dir };
        wait_for("the pooler listens", async || tokio::net::TcpStream::connect(address).await.ok().map(drop))
            .await;
        pooler
    }

    /// The URLs of the server through the pooler. The owner connects directly, because it migrates.
    pub fn urls(&self, direct: &Urls) -> Urls {
        Urls { owner: direct.owner.clone(), ..through(direct, self.address) }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // At once; a test ends with its database.
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
