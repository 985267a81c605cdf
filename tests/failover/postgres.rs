//! A private Postgres of a run, and the roles of the service in any Postgres.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::namespace::Namespace;

/// Operating system user of every Postgres: it does not run as root.
const USER: &str = "postgres";
const AS_USER: [&str; 5] = ["--reuid", USER, "--regid", USER, "--init-groups"];

/// A running server with the database `sojourn`.
pub struct Postgres {
    dir: PathBuf,
    port: u16,
    child: Child,
}

const ROLES: &str = "
create role sojourn_owner login nosuperuser nobypassrls nocreaterole nocreatedb noreplication;
create role sojourn_app login nosuperuser nobypassrls nocreaterole nocreatedb noreplication;
create role sojourn_system login nosuperuser nobypassrls nocreaterole nocreatedb noreplication;
";
const DATABASE: [&str; 3] = [
    "create database sojourn owner sojourn_owner",
    "revoke all on database sojourn from public",
    "grant connect on database sojourn to sojourn_app, sojourn_system",
];

impl Postgres {
    /// Creates and starts it below `root`. In a namespace it listens on all of its addresses, elsewhere on loopback;
    /// always also on a Unix socket.
    pub async fn start(root: &Path, port: u16, namespace: Option<&Namespace>) -> anyhow::Result<Self> {
        let dir = root.join("postgres");
        fs::create_dir(&dir)?;
        own(&dir)?;
        let data = dir.join("data");
        let words = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--pgdata"];
        let made = as_user(&program("initdb")?).args(words).arg(&data).stdout(Stdio::null()).status().await?;
        ensure!(made.success(), "initdb failed");
        // Reachable only from within the namespace.
        let (addresses, rule) = match namespace {
            Some(_) => ("*", "host all all 0.0.0.0/0 trust\n"),
            None => ("127.0.0.1", ""),
        };
        let rules = data.join("pg_hba.conf");
        fs::write(&rules, fs::read_to_string(&rules)? + rule)?;
        let mut command = match namespace {
            Some(namespace) => {
                let mut command = namespace.command(Path::new("setpriv"));
                command.args(AS_USER).arg(program("postgres")?);
                command
            }
            None => as_user(&program("postgres")?),
        };
        let log = fs::File::create(dir.join("log"))?;
        let child = command
            .arg("-D")
            .arg(&data)
            .arg(format!("--port={port}"))
            .arg(format!("--unix_socket_directories={}", dir.display()))
            .arg(format!("--listen_addresses={addresses}"))
            .arg("--max_connections=300")
            .stdin(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let server = Self { dir, port, child };
        prepare(&server.url("postgres", "postgres")).await?;
        Ok(server)
    }

    /// The part of a URL after the role, over the Unix socket: it works across network namespaces.
    pub fn socket(&self) -> String {
        format!("localhost:{}/sojourn?host={}", self.port, self.dir.display())
    }

    /// A URL over the Unix socket.
    pub fn url(&self, role: &str, database: &str) -> String {
        format!("postgres://{role}@localhost:{}/{database}?host={}", self.port, self.dir.display())
    }

    /// Stops it.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let id = self.child.id().context("Postgres has ended")?;
        kill_process(Pid::from_raw(i32::try_from(id)?).context("a pid")?, Signal::INT)?;
        timeout(Duration::from_secs(30), self.child.wait()).await.context("Postgres does not stop")??;
        Ok(())
    }
}

/// Creates the roles and the database of the service, once the server accepts the superuser.
pub async fn prepare(superuser: &str) -> anyhow::Result<()> {
    let mut connection = connect(superuser, Duration::from_secs(60)).await?;
    sqlx::raw_sql(ROLES).execute(&mut connection).await?;
    for statement in DATABASE {
        sqlx::raw_sql(statement).execute(&mut connection).await?;
    }
    Ok(connection.close().await?)
}

/// Connects; tries again for `wait`.
pub async fn connect(url: &str, wait: Duration) -> anyhow::Result<PgConnection> {
    let until = Instant::now() + wait;
    loop {
        match timeout(Duration::from_secs(5), PgConnection::connect(url)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) if Instant::now() > until => bail!("{url}: {error}"),
            Err(_) if Instant::now() > until => bail!("{url}: no answer"),
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// A command that runs `program` as the user of Postgres, with the same pid.
pub fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(AS_USER).arg(program);
    command
}

/// Gives a directory to the user of Postgres.
pub fn own(path: &Path) -> anyhow::Result<()> {
    let status = std::process::Command::new("chown").arg(USER).arg(path).status()?;
    ensure!(status.success(), "chown {} failed", path.display());
    Ok(())
}

/// A program of the first Postgres on `PATH`, else of the newest installed.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Possibly a link; the other programs are beside the file.
    let mut on_path = std::env::split_paths(&path).filter_map(|dir| dir.join("postgres").canonicalize().ok());
    if let Some(found) = on_path.find_map(|file| Some(file.parent()?.join(name))) {
        return Ok(found);
    }
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = installed
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())))
        .collect();
    found.sort();
    let (_, dir) = found.pop().context("Postgres is not installed: run scripts/setup --test")?;
    Ok(dir.join("bin").join(name))
}
