//! Where a run lies: a Postgres of its own, a data directory, and the service's
//! processes, each started and stopped by its own pid.

use std::{
    fs::{self, File},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use sojourn::{
    base::{Origin, seal::MasterKey},
    store::{Urls, embedded::Embedded, migrate},
};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// The key of the first organization of the run.
pub const KEY: &str = "sjk_test_the_organization_of_the_benchmark";
/// The phrase that every process and the benchmark itself share.
const MASTER_KEY: &str = "a passphrase that is long enough for a benchmark";

/// The database and the directories of a run.
pub struct Ground {
    root: TempDir,
    pub data_dir: PathBuf,
    embedded: Embedded,
    pub urls: Urls,
    /// The server's first process.
    pub postmaster: u32,
    processes: AtomicU32,
}

/// A process of the service. Stopped by [`Process::stop`]; killed when dropped.
pub struct Process {
    child: Child,
    pub pid: u32,
    pub address: SocketAddr,
}

impl Ground {
    /// A fresh server with the schema of the service in it.
    pub async fn start() -> anyhow::Result<Self> {
        let root = tempfile::Builder::new().prefix("sojourn-bench-").tempdir()?;
        // The database's own user has to pass here.
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        let data_dir = root.path().join("data");
        fs::create_dir(&data_dir)?;
        let embedded = Embedded::start(&data_dir, &Origin::system(), &|line| println!("{line}")).await?;
        let urls = embedded.urls();
        migrate::migrate(&urls, master()).await?;
        let pid_file = data_dir.join("postgres/pgdata/postmaster.pid");
        let text = fs::read_to_string(pid_file).context("the server's pid")?;
        let postmaster = text.lines().next().unwrap_or_default().trim().parse()?;
        Ok(Self { root, data_dir, embedded, urls, postmaster, processes: AtomicU32::new(0) })
    }

    /// Where the benchmark connects with every right.
    pub fn superuser(&self) -> String {
        self.urls.owner.replace("sojourn_owner@", "postgres@")
    }

    /// A connection with every right.
    pub async fn connection(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect(&self.superuser()).await?)
    }

    /// A process of the service, with more settings as on the command line.
    pub async fn serve(&self, more: &[&str]) -> anyhow::Result<Process> {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        let log = self.root.path().join(format!("process-{number}.log"));
        let address = free_address()?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
        command
            .arg("serve")
            .arg(format!("--data-dir={}", self.data_dir.display()))
            .arg(format!("--database-url={}", self.urls.app))
            .arg(format!("--owner-database-url={}", self.urls.owner))
            .arg(format!("--system-database-url={}", self.urls.system))
            .arg(format!("--listen={address}"))
            .arg(format!("--bootstrap-api-key={KEY}"))
            .arg(format!("--master-key={MASTER_KEY}"))
            .args(["--first-session=off", "--log=warn,sojourn=info", "--requests-per-second=1000000"])
            .args(["--allow-private-webhooks=on", "--allow-private-models=on"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .kill_on_drop(true);
        let mut child = command.spawn().context("the service cannot be started")?;
        let pid = child.id().context("the service ended at once")?;
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains("sojourn serves") || said.contains("sojourn works") {
                self.unbind().await?;
                return Ok(Process { child, pid, address });
            }
            if child.try_wait()?.is_some() || Instant::now() > until {
                bail!("the service did not start: {}", said.lines().last().unwrap_or("it says nothing"));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets an organization have as many jobs held as the goals need; fairness between organizations
    /// is another test's affair.
    pub async fn unbind(&self) -> anyhow::Result<()> {
        let mut connection = self.connection().await?;
        sqlx::query("update org set concurrency = 100000").execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Has the server do now what it would do by itself at some time: what one goal leaves
    /// for its housekeeping is not measured with another.
    pub async fn tidy(&self) -> anyhow::Result<()> {
        let mut connection = self.connection().await?;
        for statement in ["vacuum analyze", "checkpoint"] {
            sqlx::raw_sql(statement).execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    /// Stops the server and removes what the run left.
    pub async fn clear(self) -> anyhow::Result<()> {
        self.embedded.stop().await?;
        Ok(self.root.close()?)
    }
}

impl Process {
    /// Asks the process to end and waits for it.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_raw(i32::try_from(self.pid)?).context("a pid")?, Signal::TERM)?;
        if timeout(Duration::from_secs(25), self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }

    /// Ends the process without a word.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// The key that seals the run's secrets.
pub fn master() -> MasterKey {
    MasterKey::parse(MASTER_KEY).expect("a phrase of 32 or more characters")
}

/// A loopback address that nobody listens on.
pub fn free_address() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}
