//! Environment of a run: a private Postgres, a data directory, and the service's processes, each started and
//! stopped by pid.

use std::{
    env,
    fs::{self, File},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use sojourn::{
    base::{Origin, seal::MasterKey},
    store::{Urls, embedded::Embedded, migrate, start::StartWait},
};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// API key of the first organization of the run.
pub const KEY: &str = "sjk_test_the_organization_of_the_benchmark";
/// Master key of every process and of the benchmark.
const MASTER_KEY: &str = "a passphrase that is long enough for a benchmark";

/// Database and directories of a run.
pub struct Ground {
    root: TempDir,
    pub data_dir: PathBuf,
    embedded: Embedded,
    pub urls: Urls,
    /// Process id of the postmaster.
    pub postmaster: u32,
    processes: AtomicU32,
}

/// A process of the service. Stopped by [`Process::stop`]; killed on drop.
pub struct Process {
    child: Child,
    pub pid: u32,
    pub address: SocketAddr,
}

impl Ground {
    /// Starts a fresh server with the schema of the service.
    pub async fn start() -> anyhow::Result<Self> {
        let root = tempfile::Builder::new().prefix("sojourn-bench-").tempdir()?;
        // The operating system user of the database needs access.
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        let data_dir = root.path().join("data");
        fs::create_dir(&data_dir)?;
        let embedded = Embedded::start(&data_dir, &Origin::system(), &|line| println!("{line}")).await?;
        let urls = embedded.urls();
        migrate::migrate(&urls, master(), StartWait::NONE).await?;
        let postmaster = postmaster(&data_dir)?;
        Ok(Self { root, data_dir, embedded, urls, postmaster, processes: AtomicU32::new(0) })
    }

    /// Restarts the server, so that it reads settings that it only reads at its start.
    pub async fn restarted(self) -> anyhow::Result<Self> {
        self.embedded.stop().await?;
        let embedded = Embedded::start(&self.data_dir, &Origin::system(), &|line| println!("{line}")).await?;
        let (urls, postmaster) = (embedded.urls(), postmaster(&self.data_dir)?);
        Ok(Self { embedded, urls, postmaster, ..self })
    }

    /// URL of a superuser connection.
    pub fn superuser(&self) -> String {
        self.urls.owner.replace("sojourn_owner@", "postgres@")
    }

    /// A superuser connection.
    pub async fn connection(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect(&self.superuser()).await?)
    }

    /// Starts a process of the service, with more command-line settings.
    pub async fn serve(&self, more: &[&str]) -> anyhow::Result<Process> {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        let log = self.root.path().join(format!("process-{number}.log"));
        let address = free_address()?;
        let program = env::var_os("SOJOURN_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_sojourn").into());
        let mut command = Command::new(program);
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
            .args(["--allow-private-webhooks=on", "--allow-private-models=on", "--allow-shared-host=on"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .kill_on_drop(true);
        let mut child = command.spawn().context("the service cannot be started")?;
        let pid = child.id().context("the service ended immediately")?;
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

    /// Removes the limit on an organization's held jobs; fairness between organizations has its own test.
    pub async fn unbind(&self) -> anyhow::Result<()> {
        let mut connection = self.connection().await?;
        sqlx::query("update org set concurrency = 100000").execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Runs `vacuum analyze` and a checkpoint now, so that the leftovers of one goal are not measured
    /// with another.
    pub async fn vacuum(&self) -> anyhow::Result<()> {
        let mut connection = self.connection().await?;
        for statement in ["vacuum analyze", "checkpoint"] {
            sqlx::raw_sql(statement).execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    /// Stops the server and removes the files of the run.
    pub async fn clear(self) -> anyhow::Result<()> {
        self.embedded.stop().await?;
        Ok(self.root.close()?)
    }
}

impl Process {
    /// Sends SIGTERM to the process and waits for it.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_raw(i32::try_from(self.pid)?).context("a pid")?, Signal::TERM)?;
        if timeout(Duration::from_secs(25), self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Process id of the server of a data directory.
fn postmaster(data_dir: &Path) -> anyhow::Result<u32> {
    let text =
        fs::read_to_string(data_dir.join("postgres/pgdata/postmaster.pid")).context("the server's pid")?;
    Ok(text.lines().next().unwrap_or_default().trim().parse()?)
}

/// Master key of the run's secrets.
pub fn master() -> MasterKey {
    MasterKey::parse(MASTER_KEY).expect("a phrase of 32 or more characters")
}

/// A loopback address without a listener.
pub fn free_address() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}
