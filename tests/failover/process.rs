//! Processes of the service under test: real ones, of any version, in any network namespace.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::namespace::Namespace;

/// API key of the organization of a run.
pub const KEY: &str = "sjk_test_the_organization_of_failover";
const MASTER_KEY: &str = "a passphrase that is long enough for tests";
/// Length of a lease.
pub const LEASE: Duration = Duration::from_millis(1_500);
/// A process starts within this time.
const START_MAX: Duration = Duration::from_secs(90);
/// A process ends within this time after SIGTERM: the drain of its turns, and its bounded waits.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Api,
    Worker,
}

/// Database URLs of the roles of the service.
#[derive(Clone, Debug)]
pub struct Urls {
    pub owner: String,
    pub app: String,
    pub system: String,
}

impl Urls {
    /// URLs of a server at `place`: the part after `@`, such as `127.0.0.1:5432/sojourn`.
    pub fn at(place: &str) -> Self {
        let url = |role: &str| format!("postgres://{role}@{place}");
        Self { owner: url("sojourn_owner"), app: url("sojourn_app"), system: url("sojourn_system") }
    }
}

/// Everything that a process needs to start.
#[derive(Clone, Debug)]
pub struct Launch {
    pub name: String,
    pub role: Role,
    pub binary: PathBuf,
    pub listen: SocketAddr,
    pub urls: Urls,
    pub data_dir: PathBuf,
    pub logs: PathBuf,
    pub namespace: Option<Namespace>,
}

/// A running process; killed on drop.
pub struct Process {
    pub launch: Launch,
    child: Child,
}

static STARTS: AtomicU32 = AtomicU32::new(0);

impl Launch {
    /// Starts it and waits until it serves.
    pub async fn start(self) -> anyhow::Result<Process> {
        let number = STARTS.fetch_add(1, Ordering::Relaxed);
        let log = self.logs.join(format!("{number:03}-{}.log", self.name));
        let mut command = self.command("serve");
        command
            .arg(format!("--role={}", if self.role == Role::Api { "api" } else { "worker" }))
            .arg(format!("--listen={}", self.listen))
            .arg(format!("--lease-ms={}", LEASE.as_millis()))
            .arg(format!("--bootstrap-api-key={KEY}"))
            .args(["--first-session=off", "--allow-private-webhooks=on"])
            // A variable: earlier revisions have no such setting.
            .env("SOJOURN_ALLOW_SHARED_HOST", "on")
            .args(["--sandbox-freeze-after-seconds=2", "--sandbox-hibernate-after-seconds=86400"])
            .arg("--log=info,sojourn=debug")
            .stderr(File::create(&log)?);
        let child = command.spawn().context("the service cannot be started")?;
        let mut process = Process { launch: self, child };
        let until = Instant::now() + START_MAX;
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains("sojourn serves") || said.contains("sojourn works") {
                return Ok(process);
            }
            let has_ended = !matches!(process.child.try_wait(), Ok(None));
            if has_ended || Instant::now() > until {
                let error = said.lines().rev().find(|line| line.starts_with("error:"));
                let last = error.or(said.lines().last()).unwrap_or("nothing").to_owned();
                bail!("{} did not start: {last}", process.launch.name);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs `sojourn migrate` as the owner.
    pub async fn migrate(&self) -> anyhow::Result<()> {
        let output = self.command("migrate").stderr(Stdio::piped()).output().await?;
        ensure!(output.status.success(), "sojourn migrate: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = match &self.namespace {
            Some(namespace) => namespace.command(&self.binary),
            None => Command::new(&self.binary),
        };
        command
            .arg(verb)
            .arg(format!("--data-dir={}", self.data_dir.display()))
            .arg(format!("--database-url={}", self.urls.app))
            .arg(format!("--owner-database-url={}", self.urls.owner))
            .arg(format!("--system-database-url={}", self.urls.system))
            .arg(format!("--master-key={MASTER_KEY}"))
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

impl Process {
    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM and waits for the end. Returns the duration.
    pub async fn drain(mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let name = self.launch.name.clone();
        let id = self.child.id().with_context(|| format!("{name} has ended"))?;
        kill_process(Pid::from_raw(i32::try_from(id)?).context("a pid")?, Signal::TERM)?;
        let ended = timeout(DRAIN_MAX, self.child.wait()).await;
        let status = ended.with_context(|| format!("{name} did not end {DRAIN_MAX:?} after SIGTERM"))??;
        ensure!(status.success(), "{name} ended with {status} after SIGTERM");
        Ok(began.elapsed())
    }

    /// Replaces it by a process of another binary, as a rolling upgrade does.
    pub async fn replaced_by(self, binary: &Path) -> anyhow::Result<Self> {
        let launch = Launch { binary: binary.to_owned(), ..self.launch.clone() };
        self.drain().await?;
        launch.start().await
    }
}

/// A loopback address without a listener.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
