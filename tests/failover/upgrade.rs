//! Rolling upgrade under load from an earlier revision, and back.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, bail, ensure};
use futures::future::try_join_all;
use tokio::process::Command;

use crate::{
    deployment::{Deployment, Ground},
    load::Shape,
    postgres::{self, Postgres},
    process::{Launch, Process, Urls, free_address},
    report::Row,
};

/// An earlier revision with its schema.
#[derive(Clone, Debug)]
pub struct Revision {
    pub commit: String,
    pub schema: i64,
    /// Whether its binary starts on a later schema.
    pub goes_back: bool,
}

impl FromStr for Revision {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [commit, schema, direction] = words[..] else { bail!("not a revision: {line}") };
        let goes_back = match direction {
            "both" => true,
            "forward" => false,
            other => bail!("not a direction: {other}"),
        };
        Ok(Self { commit: commit.to_owned(), schema: schema.parse()?, goes_back })
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (schema {})", self.commit, self.schema)
    }
}

/// All revisions of tests/failover/revisions.txt, oldest first.
pub fn revisions() -> anyhow::Result<Vec<Revision>> {
    let text = include_str!("revisions.txt");
    text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).map(str::parse).collect()
}

/// Upgrades a deployment of a revision under load. `pace` is the number of writes between two steps.
pub async fn upgrade(revision: &Revision, ground: &Ground, shape: Shape, pace: usize) -> anyhow::Result<Row> {
    let old = previous(&revision.commit).await?;
    let new = PathBuf::from(env!("CARGO_BIN_EXE_sojourn"));
    let server = Postgres::start(&ground.root, free_address()?.port(), None).await?;
    let superuser = server.url("postgres", "sojourn");
    let launches = Deployment::launches(ground, &old, &Urls::at(&server.socket()))?;
    let migration = Launch { binary: new.clone(), ..launches[0].clone() };
    let mut deployment = Deployment::start(launches.clone(), free_address()?, shape).await?;
    schema_is(&superuser, |schema| schema == revision.schema).await?;
    deployment.progress(2 * pace).await?;

    migration.migrate().await?;
    schema_is(&superuser, |schema| schema >= revision.schema).await?;
    // The old processes go on, on the new schema.
    deployment.progress(2 * pace).await?;
    if revision.goes_back {
        let together = start_together(&launches, &old, &new).await?;
        deployment.progress(pace).await?;
        for process in together {
            process.drain().await?;
        }
    }
    let mut steps: Vec<(usize, &Path)> = (0..4).map(|at| (at, new.as_path())).collect();
    if revision.goes_back {
        // One of each role goes back and forward again.
        steps.extend([(0, old.as_path()), (2, &old), (0, &new), (2, &new)]);
    }
    for (at, binary) in steps {
        let process = deployment.processes.remove(at);
        deployment.processes.insert(at, process.replaced_by(binary).await?);
        deployment.progress(pace).await?;
    }
    let (load, counts) = deployment.end(ground, &superuser).await?;
    server.stop().await?;
    Ok(Row { title: format!("upgrade from {revision}"), load, counts, more: Vec::new() })
}

/// Starts ten processes of two versions at one moment, as when a machine comes back in the middle of an upgrade.
async fn start_together(launches: &[Launch], old: &Path, new: &Path) -> anyhow::Result<Vec<Process>> {
    let mut starts = Vec::new();
    for at in 0..10 {
        let binary = if at % 2 == 0 { old } else { new }.to_owned();
        let launch = launches[at / 2 % launches.len()].clone();
        let launch = Launch { name: format!("together-{at}"), binary, listen: free_address()?, ..launch };
        starts.push(launch.start());
    }
    try_join_all(starts).await
}

/// The binary of an earlier commit, which is built once.
async fn previous(commit: &str) -> anyhow::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/failover/previous");
    let output = Command::new(script).arg(commit).output().await.context("tests/failover/previous")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

async fn schema_is(superuser: &str, is_right: impl Fn(i64) -> bool) -> anyhow::Result<()> {
    let mut database = postgres::connect(superuser, std::time::Duration::from_secs(10)).await?;
    let schema: i64 =
        sqlx::query_scalar("select max(version) from _sqlx_migrations").fetch_one(&mut database).await?;
    ensure!(is_right(schema), "the schema is {schema}");
    Ok(())
}
