//! Three Postgres nodes under Patroni, with etcd, behind haproxy: all on loopback, from the Debian packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::{postgres, process::free_address};

/// The cluster. Its processes are killed on drop.
pub struct Cluster {
    nodes: Vec<Node>,
    /// Port of haproxy, which forwards to the leader.
    pub port: u16,
    is_synchronous: bool,
    http: reqwest::Client,
    _services: Vec<Child>,
}

struct Node {
    name: String,
    /// Of Postgres and of the REST API of Patroni.
    ports: (u16, u16),
    dir: PathBuf,
    /// Patroni, which starts Postgres; none after a kill.
    child: Option<Child>,
}

const NODES: usize = 3;
/// A replica that does not follow for this long cannot.
const LATE: Duration = Duration::from_secs(45);
/// Within this time a cluster that lost its leader has another one and all its members: the leader's key in etcd
/// expires after 20 s, and the lost node is rewound.
const WHOLE_MAX: Duration = Duration::from_secs(150);

impl Cluster {
    /// Starts etcd, Patroni on each node, and haproxy; creates the roles of the service.
    pub async fn start(root: &Path, is_synchronous: bool) -> anyhow::Result<Self> {
        for program in ["etcd", "patroni", "haproxy"] {
            let found = Command::new("which").arg(program).stdout(Stdio::null()).status().await?;
            ensure!(found.success(), "{program} is not installed: run scripts/setup --full");
        }
        let dir = root.join("cluster");
        fs::create_dir(&dir)?;
        postgres::own(&dir)?;
        let etcd = free_address()?.port();
        let mut services = vec![start_etcd(&dir, etcd)?];
        let mut nodes = Vec::new();
        for number in 1..=NODES {
            let ports = (free_address()?.port(), free_address()?.port());
            let node = Node { name: format!("node{number}"), ports, dir: dir.clone(), child: None };
            fs::write(node.file("yaml"), node.settings(etcd, is_synchronous)?)?;
            nodes.push(node);
        }
        let port = free_address()?.port();
        services.push(start_haproxy(&dir, port, &nodes)?);
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(90)).build()?;
        let mut cluster = Self { nodes, port, is_synchronous, http, _services: services };
        for node in &mut cluster.nodes {
            node.start()?;
        }
        cluster.whole().await?;
        postgres::prepare(&cluster.url("postgres", "postgres")).await?;
        Ok(cluster)
    }

    /// A URL through haproxy.
    pub fn url(&self, role: &str, database: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// Hands the leadership over, as for maintenance.
    pub async fn switchover(&self) -> anyhow::Result<()> {
        let leader = self.leader().await.context("no leader")?;
        let url = format!("http://127.0.0.1:{}/switchover", self.nodes[leader].ports.1);
        let body = json!({ "leader": self.nodes[leader].name });
        let answer = self.http.post(url).json(&body).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "switchover: {status} {text}");
        Ok(())
    }

    /// Kills the leader's Patroni and Postgres. With `losing`, its replicas receive nothing for that long before.
    /// Returns the number of the node.
    pub async fn kill_leader(&mut self, losing: Option<Duration>) -> anyhow::Result<usize> {
        let leader = self.leader().await.context("no leader")?;
        if let Some(time) = losing {
            let url = format!("postgres://postgres@127.0.0.1:{}/postgres", self.nodes[leader].ports.0);
            let mut database = postgres::connect(&url, Duration::from_secs(5)).await?;
            let senders: Vec<i32> =
                sqlx::query_scalar("select pid from pg_stat_replication").fetch_all(&mut database).await?;
            senders.iter().for_each(|pid| signal(*pid, Signal::STOP));
            sleep(time).await;
        }
        let node = &mut self.nodes[leader];
        if let Some(mut patroni) = node.child.take() {
            patroni.kill().await?;
        }
        let pid = fs::read_to_string(node.file("data").join("postmaster.pid")).context("postmaster.pid")?;
        let pid: i32 = pid.lines().next().unwrap_or_default().trim().parse()?;
        let backends = children(pid);
        signal(pid, Signal::KILL);
        backends.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        Ok(leader)
    }

    /// Starts a killed node again.
    pub fn restart(&mut self, node: usize) -> anyhow::Result<()> {
        self.nodes[node].start()
    }

    /// Waits until a leader, all replicas and, if synchronous, a synchronous replica run.
    ///
    /// A replica that got more of the lost commits than the new leader cannot follow it. It is made anew, as its
    /// operator would do.
    pub async fn whole(&mut self) -> anyhow::Result<()> {
        let (began, mut is_late) = (Instant::now(), false);
        loop {
            for node in &mut self.nodes {
                let ended = node.child.as_mut().and_then(|child| child.try_wait().transpose()).transpose()?;
                ensure!(ended.is_none(), "Patroni of {} ended: {}", node.name, node.last_error());
            }
            let members = self.members().await;
            let running: Vec<_> = members
                .iter()
                .filter(|member| ["running", "streaming"].iter().any(|state| member["state"] == *state))
                .collect();
            let has = |role: &str| running.iter().any(|member| member["role"] == role);
            if running.len() == NODES
                && has("leader")
                && running.iter().all(|member| is_near(member))
                && (!self.is_synchronous || has("sync_standby"))
            {
                return Ok(());
            }
            if !is_late && began.elapsed() > LATE {
                is_late = true;
                for member in running.iter().filter(|member| !is_near(member)) {
                    self.make_anew(member["name"].as_str().unwrap_or_default()).await?;
                }
            }
            ensure!(began.elapsed() < WHOLE_MAX, "the cluster is not whole after {WHOLE_MAX:?}: {members:?}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Copies all data of the leader to a replica.
    async fn make_anew(&self, name: &str) -> anyhow::Result<()> {
        println!("the replica {name} cannot follow; it is made anew");
        let node = self.nodes.iter().find(|node| node.name == name).context("a node")?;
        let url = format!("http://127.0.0.1:{}/reinitialize", node.ports.1);
        let answer = self.http.post(url).json(&json!({ "force": true })).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "reinitialize: {status} {text}");
        Ok(())
    }

    /// Waits until another node than `former` leads. Returns the time.
    pub async fn promoted(&self, former: usize) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            if self.leader().await.is_some_and(|leader| leader != former) {
                return Ok(began.elapsed());
            }
            if began.elapsed() > WHOLE_MAX {
                bail!("no node was promoted within {WHOLE_MAX:?}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The node whose Patroni holds the leader's key.
    pub async fn leader(&self) -> Option<usize> {
        for (number, node) in self.nodes.iter().enumerate() {
            let url = format!("http://127.0.0.1:{}/primary", node.ports.1);
            if self.http.get(url).send().await.is_ok_and(|answer| answer.status() == 200) {
                return Some(number);
            }
        }
        None
    }

    async fn members(&self) -> Vec<Value> {
        for node in &self.nodes {
            let url = format!("http://127.0.0.1:{}/cluster", node.ports.1);
            let Ok(answer) = self.http.get(url).send().await else { continue };
            let Ok(cluster) = answer.json::<Value>().await else { continue };
            if let Some(members) = cluster["members"].as_array() {
                return members.clone();
            }
        }
        Vec::new()
    }

    /// Stops Patroni and Postgres on every node.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            let Some(mut child) = node.child.take() else { continue };
            signal(i32::try_from(child.id().context("patroni has ended")?)?, Signal::TERM);
            tokio::time::timeout(Duration::from_secs(60), child.wait())
                .await
                .context("patroni does not end")??;
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Patroni is killed with its handle; its Postgres has to be, too.
        let pid = fs::read_to_string(self.file("data").join("postmaster.pid")).unwrap_or_default();
        if let Some(pid) = pid.lines().next().and_then(|pid| pid.trim().parse().ok()) {
            signal(pid, Signal::QUIT);
        }
    }
}

impl Node {
    fn file(&self, ending: &str) -> PathBuf {
        self.dir.join(format!("{}.{ending}", self.name))
    }

    fn last_error(&self) -> String {
        let log = fs::read_to_string(self.file("log")).unwrap_or_default();
        log.lines().rev().find(|line| line.contains("Error")).unwrap_or("no error").to_owned()
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.file("log"))?;
        let mut command = postgres::as_user(Path::new("patroni"));
        command.arg(self.file("yaml")).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.kill_on_drop(true).spawn().context("patroni")?);
        Ok(())
    }

    /// Settings of Patroni: YAML, of which JSON is a subset.
    fn settings(&self, etcd: u16, is_synchronous: bool) -> anyhow::Result<String> {
        let local = |port: u16| format!("127.0.0.1:{port}");
        let bin = postgres::program("postgres")?;
        let account = |name: &str| json!({ "username": name, "password": "not a secret" });
        let settings = json!({
            "scope": "sojourn",
            "name": self.name,
            "restapi": { "listen": local(self.ports.1), "connect_address": local(self.ports.1) },
            "etcd3": { "host": local(etcd) },
            "bootstrap": {
                "dcs": {
                    "ttl": 20,
                    "loop_wait": 2,
                    "retry_timeout": 4,
                    "maximum_lag_on_failover": 64 << 20,
                    "synchronous_mode": is_synchronous,
                    "postgresql": {
                        "use_pg_rewind": true,
                        "parameters": { "max_connections": 200, "wal_keep_size": "256MB" },
                    },
                },
                "initdb": ["data-checksums", { "encoding": "UTF8" }, { "locale": "C" }],
            },
            "postgresql": {
                "listen": local(self.ports.0),
                "connect_address": local(self.ports.0),
                "data_dir": self.file("data"),
                "bin_dir": bin.parent().context("a directory")?,
                "pgpass": self.file("pgpass"),
                "remove_data_directory_on_rewind_failure": true,
                "remove_data_directory_on_diverged_timelines": true,
                "authentication": {
                    "superuser": account("postgres"),
                    "replication": account("replicator"),
                    "rewind": account("rewinder"),
                },
                "parameters": { "unix_socket_directories": self.dir },
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
            },
        });
        Ok(serde_json::to_string_pretty(&settings)?)
    }
}

fn start_etcd(dir: &Path, port: u16) -> anyhow::Result<Child> {
    let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://{}", free_address()?));
    let log = fs::File::create(dir.join("etcd.log"))?;
    let mut command = postgres::as_user(Path::new("etcd"));
    command
        .arg("--data-dir")
        .arg(dir.join("etcd"))
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("default={peers}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true);
    command.spawn().context("etcd")
}

/// Routes to the node whose Patroni says that it is the primary, and ends connections to any other.
fn start_haproxy(dir: &Path, port: u16, nodes: &[Node]) -> anyhow::Result<Child> {
    let mut settings = format!(
        "global\n  maxconn 1000\n\
         defaults\n  mode tcp\n  timeout connect 4s\n  timeout client 30m\n  timeout server 30m\n  timeout check 2s\n\
         listen primary\n  bind 127.0.0.1:{port}\n  option httpchk OPTIONS /primary\n  http-check expect status 200\n  \
         default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions\n"
    );
    for Node { name, ports: (database, check), .. } in nodes {
        settings += &format!("  server {name} 127.0.0.1:{database} check port {check}\n");
    }
    let file = dir.join("haproxy.cfg");
    fs::write(&file, settings)?;
    let log = fs::File::create(dir.join("haproxy.log"))?;
    let mut command = postgres::as_user(Path::new("haproxy"));
    command.arg("-db").arg("-f").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.kill_on_drop(true).spawn().context("haproxy")
}

/// Whether a member has nearly all of the leader's log.
fn is_near(member: &Value) -> bool {
    member["lag"].as_u64().unwrap_or(0) < 1 << 20
}

/// Processes whose parent this is.
fn children(parent: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Sends a signal to a process, which may have ended.
fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}
