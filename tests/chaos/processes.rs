//! Processes of a run: real ones, signaled by pid and restarted.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use sojourn::store::Urls;
use time::OffsetDateTime;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::{
    cluster::Cluster,
    plan::Plan,
    relay::{Mode, Relay},
};

/// API key of the organization of the run.
pub const KEY: &str = "sjk_test_the_organization_of_chaos";
/// Master key of every process and of the checks.
pub const MASTER_KEY: &str = "a passphrase that is long enough for chaos";

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Api,
    Worker,
}

/// All processes. A locked slot has a fault in progress.
pub struct Fleet {
    pub slots: Vec<tokio::sync::Mutex<Slot>>,
    /// API addresses, whether or not they are up.
    pub addresses: Vec<SocketAddr>,
    pub faults: Mutex<Vec<Fault>>,
}

/// Slot of a process that is restarted again and again.
pub struct Slot {
    pub role: Role,
    name: String,
    listen: SocketAddr,
    ground: Ground,
    child: Option<Child>,
    /// Its link to the database.
    relay: Relay,
    /// Number by which the witness identifies the current process.
    pub process: u32,
}

/// Settings with which every process is started.
#[derive(Clone)]
struct Ground {
    data_dir: PathBuf,
    logs: PathBuf,
    lease_ms: u64,
}

/// A fault of a process, or of the database (`process` 0).
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub process: u32,
    pub from: OffsetDateTime,
    /// The process can work again from here on; none while the fault lasts.
    pub until: Option<OffsetDateTime>,
    /// Whether its transactions keep their locks: a statement of another process may wait for one until it times
    /// out.
    pub keeps_locks: bool,
}

/// Number of a fault in the records of a run.
#[derive(Clone, Copy, Debug)]
pub struct FaultId(usize);

static PROCESSES: AtomicU32 = AtomicU32::new(0);
/// Numbers of API processes start here, so that the witness tells them apart.
pub const FIRST_API: u32 = 1_000_000;

impl Fleet {
    /// Creates slots for all processes of the plan; none runs yet.
    pub async fn new(plan: &Plan, cluster: &Cluster, data_dir: &Path, logs: &Path) -> anyhow::Result<Self> {
        let ground = Ground { data_dir: data_dir.to_owned(), logs: logs.to_owned(), lease_ms: plan.lease_ms };
        let (mut slots, mut addresses) = (Vec::new(), Vec::new());
        for (role, word, count) in [(Role::Api, "api", plan.apis), (Role::Worker, "worker", plan.workers)] {
            for number in 1..=count {
                let listen = free_address()?;
                if role == Role::Api {
                    addresses.push(listen);
                }
                let name = format!("{word}-{number}");
                let relay = Relay::start(cluster.server(), None, Mode::Forward).await;
                let slot =
                    Slot { role, name, listen, ground: ground.clone(), child: None, relay, process: 0 };
                slots.push(tokio::sync::Mutex::new(slot));
            }
        }
        Ok(Self { slots, addresses, faults: Mutex::default() })
    }

    /// Records the start of a fault, so that a takeover can be attributed to it.
    pub fn begin(&self, process: u32) -> FaultId {
        let mut faults = self.faults.lock().expect("no fault panics");
        faults.push(Fault { process, from: OffsetDateTime::now_utc(), until: None, keeps_locks: false });
        FaultId(faults.len() - 1)
    }

    /// The same for a process that the database does not hear any more.
    pub fn begin_silence(&self, process: u32) -> FaultId {
        let fault = self.begin(process);
        self.faults.lock().expect("no fault panics")[fault.0].keeps_locks = true;
        fault
    }

    /// Records the end of a fault.
    pub fn end(&self, fault: FaultId) {
        self.faults.lock().expect("no fault panics")[fault.0].until = Some(OffsetDateTime::now_utc());
    }

    /// Records a fault that lasts for a moment: the process does not come back.
    pub fn note(&self, process: u32) {
        let fault = self.begin(process);
        self.end(fault);
    }

    /// Stops every process as an operator would. Returns those that did not stop cleanly.
    pub async fn stop(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for slot in &self.slots {
            let mut slot = slot.lock().await;
            if let Err(error) = slot.drain().await {
                complaints.push(format!("{error:#}"));
            }
        }
        complaints
    }
}

impl Slot {
    /// Starts the process and waits until it is ready.
    pub async fn start(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let base = if self.role == Role::Api { FIRST_API } else { 0 };
        self.process = base + PROCESSES.fetch_add(1, Ordering::Relaxed) + 1;
        let urls = self.relay.urls(&cluster.urls(self.process));
        let log = self.log();
        let file = File::create(&log).with_context(|| format!("{}", log.display()))?;
        self.child = Some(self.command(&urls, file).spawn().context("the service cannot be started")?);
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains("sojourn serves") || said.contains("sojourn works") {
                return Ok(());
            }
            if self.has_ended() || Instant::now() > until {
                let last = said.lines().last().unwrap_or("nothing").to_owned();
                self.kill().await;
                bail!("{} did not start: {last}", self.name);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn command(&self, urls: &Urls, log: File) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
        command
            .arg("serve")
            .arg(format!("--role={}", if self.role == Role::Api { "api" } else { "worker" }))
            .arg(format!("--data-dir={}", self.ground.data_dir.display()))
            .arg(format!("--database-url={}", urls.app))
            .arg(format!("--owner-database-url={}", urls.owner))
            .arg(format!("--system-database-url={}", urls.system))
            .arg(format!("--listen={}", self.listen))
            .arg(format!("--lease-ms={}", self.ground.lease_ms))
            .arg(format!("--bootstrap-api-key={KEY}"))
            .arg(format!("--master-key={MASTER_KEY}"))
            .args(["--first-session=off", "--max-concurrent-turns=16", "--log=info,sojourn=debug"])
            // In the pauses of their sessions sandboxes are frozen, then hibernated.
            .args(["--sandbox-freeze-after-seconds=0.3", "--sandbox-hibernate-after-seconds=3"])
            .args(["--allow-private-webhooks=on", "--allow-private-mcp=on", "--allow-shared-host=on"])
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true);
        command
    }

    /// Stops forwarding between the process and the database, without closing anything.
    pub fn silence(&self) {
        self.relay.set(Mode::Silent);
    }

    /// Forwards new connections again. Those that lost bytes stay silent.
    pub fn unsilence(&self) {
        self.relay.set(Mode::Forward);
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended before.
            let _ = child.kill().await;
        }
    }

    /// Stops the process with SIGSTOP.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues a stopped process.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Sends SIGTERM and waits for the end. Returns the duration.
    pub async fn drain(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.signal(Signal::TERM)?;
        let Some(mut child) = self.child.take() else { return Ok(Duration::ZERO) };
        match timeout(Duration::from_secs(25), child.wait()).await {
            Ok(ended) if ended.as_ref().is_ok_and(|status| status.success()) => Ok(began.elapsed()),
            Ok(ended) => bail!("{} (process {}) ended with {ended:?} after SIGTERM", self.name, self.process),
            Err(_) => bail!("{} (process {}) did not end within 25 s after SIGTERM", self.name, self.process),
        }
    }

    /// The last log lines of the process.
    pub fn last_log_lines(&self) -> String {
        let said = fs::read_to_string(self.log()).unwrap_or_default();
        format!("{} (process {}): {}", self.name, self.process, said.lines().last().unwrap_or_default())
    }

    fn log(&self) -> PathBuf {
        self.ground.logs.join(format!("{:04}-{}.log", self.process, self.name))
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let id = self.child.as_ref().and_then(Child::id).context("the process has ended")?;
        let pid = Pid::from_raw(i32::try_from(id)?).context("a pid")?;
        Ok(kill_process(pid, signal)?)
    }
}

/// A loopback address without a listener.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
