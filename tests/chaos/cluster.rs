//! The Postgres of a run: private, durable, and restarted as after a crash.
//!
//! It also installs the witness (`witness.sql`), which can block a writer between the two writes of a tool call,
//! so that a fault happens exactly there.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sojourn::{
    base::Origin,
    store::{Urls, embedded::Embedded},
};
use sqlx::{Connection, PgConnection, Row};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

/// A private Postgres.
pub struct Cluster {
    data_dir: PathBuf,
    embedded: Mutex<Option<Embedded>>,
    urls: Urls,
}

/// A point in the code at which a writer is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seam {
    /// The call is being written; its exec follows.
    Call = 1,
    /// The exec has ended; its result is being written.
    Result = 2,
}

const WITNESS: &str = include_str!("witness.sql");

impl Cluster {
    /// Creates and starts it below the data directory of the service.
    pub async fn start(data_dir: &Path) -> anyhow::Result<Self> {
        let embedded = Embedded::start(data_dir, &Origin::system(), &|_| {}).await?;
        let urls = embedded.urls();
        Ok(Self { data_dir: data_dir.to_owned(), embedded: Mutex::new(Some(embedded)), urls })
    }

    /// URLs of the server, for the relays.
    pub fn server(&self) -> &Urls {
        &self.urls
    }

    /// URLs for a process; the witness identifies it by `process`.
    pub fn urls(&self, process: u32) -> Urls {
        let named = |url: &str| format!("{url}&options%5Bchaos.process%5D={process}");
        Urls { owner: named(&self.urls.owner), app: named(&self.urls.app), system: named(&self.urls.system) }
    }

    /// Directory of the programs of the server's own version.
    pub async fn programs(&self) -> anyhow::Result<PathBuf> {
        let mut connection = self.superuser().await?;
        let dir: String = sqlx::query_scalar("select setting from pg_config where name = 'BINDIR'")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(dir.into())
    }

    /// Number of events written so far.
    pub async fn written(&self) -> anyhow::Result<i64> {
        let mut connection = self.superuser().await?;
        let count = sqlx::query_scalar("select count(*) from chaos.write").fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(count)
    }

    /// Directory and port of the server's socket, and the name of the database.
    pub fn socket(&self) -> anyhow::Result<(String, String, String)> {
        let url = url::Url::parse(&self.urls.owner)?;
        let of =
            |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        let dir = of("host").context("a socket directory")?;
        let port = of("port").unwrap_or_else(|| "5432".to_owned());
        Ok((dir, port, url.path().trim_start_matches('/').to_owned()))
    }

    /// A superuser connection.
    pub async fn superuser(&self) -> sqlx::Result<PgConnection> {
        PgConnection::connect(&self.urls.owner.replace("sojourn_owner@", "postgres@")).await
    }

    /// Version of the server.
    pub async fn version(&self) -> anyhow::Result<String> {
        let mut connection = self.superuser().await?;
        let version = sqlx::query_scalar("show server_version").fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(version)
    }

    /// Installs the witness, once the schema exists.
    pub async fn watch(&self) -> anyhow::Result<()> {
        let mut connection = self.superuser().await?;
        sqlx::raw_sql(WITNESS).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Stops the server as `pg_ctl -m immediate` does, and restarts it. Returns how long connections were
    /// refused.
    pub async fn crash(&self) -> anyhow::Result<Duration> {
        let pid_file = self.data_dir.join("postgres/pgdata/postmaster.pid");
        let text = fs::read_to_string(&pid_file).context("the server's pid")?;
        let pid: i32 = text.lines().next().unwrap_or_default().trim().parse()?;
        let began = Instant::now();
        kill_process(Pid::from_raw(pid).context("a pid")?, Signal::QUIT)?;
        while !has_ended(pid) {
            ensure!(began.elapsed() < Duration::from_secs(30), "Postgres does not end");
            sleep(Duration::from_millis(5)).await;
        }
        let again = Embedded::start(&self.data_dir, &Origin::system(), &|_| {}).await?;
        *self.embedded.lock().await = Some(again);
        Ok(began.elapsed())
    }

    /// Blocks the next writer of `process` at the seam and runs `fault` while it is blocked. Returns whether
    /// a writer arrived in time.
    pub async fn at_seam<T>(
        &self,
        seam: Seam,
        process: u32,
        fault: impl AsyncFnOnce() -> T,
    ) -> anyhow::Result<Option<T>> {
        let mut connection = self.superuser().await?;
        let (class, process) = (seam as i32, i32::try_from(process)?);
        sqlx::query("select pg_advisory_lock($1, $2)")
            .bind(class)
            .bind(process)
            .execute(&mut connection)
            .await?;
        let until = Instant::now() + Duration::from_secs(4);
        let mut met = false;
        while !met && Instant::now() < until {
            let held = sqlx::query(
                "select count(*) as held from pg_locks
                 where locktype = 'advisory' and classid::bigint = $1 and objid::bigint = $2 and not granted",
            )
            .bind(class)
            .bind(process)
            .fetch_one(&mut connection)
            .await?;
            met = held.get::<i64, _>("held") > 0;
            if !met {
                sleep(Duration::from_millis(3)).await;
            }
        }
        let done = if met { Some(fault().await) } else { None };
        // Closing the connection releases the lock; the blocked writer continues.
        connection.close().await?;
        Ok(done)
    }

    /// Cancels the statements that are blocked at the seam: their writes are lost.
    pub async fn lose(&self, seam: Seam, process: u32) -> anyhow::Result<()> {
        let mut connection = self.superuser().await?;
        sqlx::query(
            "select pg_terminate_backend(pid) from pg_locks
             where locktype = 'advisory' and classid::bigint = $1 and objid::bigint = $2 and not granted",
        )
        .bind(seam as i32)
        .bind(i32::try_from(process)?)
        .execute(&mut connection)
        .await?;
        Ok(connection.close().await?)
    }

    /// Stops the server for good.
    pub async fn stop(&self) -> anyhow::Result<()> {
        if let Some(embedded) = self.embedded.lock().await.take() {
            embedded.stop().await?;
        }
        Ok(())
    }
}

fn has_ended(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}
