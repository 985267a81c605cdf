//! `sojourn doctor`: checks whether this machine meets the requirements, and prints fixes. It changes nothing
//! except files that the service creates itself.

use std::{env, fs, path::Path, time::Duration};

use serde_json::json;

use super::{print, production};
use crate::{
    app,
    base::Origin,
    config::{Role, Settings},
    store::{self, embedded},
};

/// Free disk space below which the check fails, in bytes.
const FREE_BYTES_MIN: u64 = 2 << 30;
/// Larger clock differences make times in logs misleading.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(2);

/// Result of one check.
struct Finding {
    what: &'static str,
    /// Description, or the problem and its fix.
    said: Result<String, String>,
}

/// Runs all checks and prints them; the exit code is 1 when one fails.
pub(super) async fn run(settings: &Settings, is_production: bool, json: bool) -> anyhow::Result<u8> {
    let mut findings = vec![
        Finding { what: "settings", said: checked(settings) },
        Finding { what: "data directory", said: data_dir(&settings.database.data_dir) },
        Finding { what: "disk", said: disk(&settings.database.data_dir) },
    ];
    if settings.role != Role::Node {
        findings.extend(database(settings).await);
    }
    let agents = &settings.node_agent.node;
    if !agents.is_empty() && settings.role.runs_turns() {
        for address in agents {
            let said = app::reach_node_agent(settings, address).await;
            findings.push(Finding { what: "node agent", said });
        }
    } else if settings.role != Role::Api {
        let checks = app::sandbox_checks(settings).into_iter();
        findings.extend(checks.map(|check| Finding { what: check.what, said: check.found }));
    }
    if is_production {
        let lines = production::checks(settings).await.into_iter();
        findings.extend(lines.map(|line| Finding { what: line.what, said: line.found }));
    }
    let is_well = findings.iter().all(|finding| finding.said.is_ok());
    if json {
        let list: Vec<_> = findings.iter().map(document).collect();
        print::document(&json!({ "ok": is_well, "checks": list }));
    } else {
        let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or_default();
        for Finding { what, said } in &findings {
            let (mark, said) = match said {
                Ok(said) => ("ok  ", said),
                Err(said) => ("FAIL", said),
            };
            print::line(&format!("{mark}  {what:<width$} {said}"));
        }
    }
    Ok(u8::from(!is_well))
}

fn document(finding: &Finding) -> serde_json::Value {
    let (is_ok, said) = match &finding.said {
        Ok(said) => (true, said),
        Err(said) => (false, said),
    };
    json!({ "check": finding.what, "ok": is_ok, "said": said })
}

fn checked(settings: &Settings) -> Result<String, String> {
    match settings.problems() {
        problems if problems.is_empty() => Ok("all valid".to_owned()),
        problems => Err(problems.join("; ")),
    }
}

fn data_dir(dir: &Path) -> Result<String, String> {
    let place = dir.display();
    if !dir.exists() {
        return Ok(format!("{place} will be created by the first start"));
    }
    let probe = dir.join(".doctor");
    let written = fs::write(&probe, b"").and_then(|()| fs::remove_file(&probe));
    written
        .map(|()| format!("{place} is writable"))
        .map_err(|error| format!("{place}: {error}; run as its owner, or set SOJOURN_DATA_DIR"))
}

/// Checks the file system of the data directory, or of its nearest existing parent.
fn disk(dir: &Path) -> Result<String, String> {
    let there = env::current_dir().map(|here| here.join(dir)).unwrap_or_else(|_| dir.to_owned());
    let there = there.ancestors().find(|place| place.exists()).unwrap_or(Path::new("/")).to_owned();
    let stat = rustix::fs::statvfs(&there).map_err(|error| format!("{}: {error}", there.display()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let said = format!("{} MiB free at {}", free >> 20, there.display());
    if free < FREE_BYTES_MIN {
        let least = FREE_BYTES_MIN >> 20;
        return Err(format!("{said}, less than {least}: free space, or set SOJOURN_DATA_DIR"));
    }
    Ok(said)
}

async fn database(settings: &Settings) -> Vec<Finding> {
    let Some(url) = &settings.database.database_url else {
        let said = embedded::newest()
            .map(|major| format!("Postgres {major} will run below the data directory"))
            .ok_or_else(|| "no Postgres 15 or newer: run scripts/setup, or set DATABASE_URL".to_owned());
        let clock = Ok("the embedded database uses this machine's clock".to_owned());
        return vec![Finding { what: "database", said }, Finding { what: "clock", said: clock }];
    };
    match ask(settings, url).await {
        Ok(Server { version, apart, connections, open }) => {
            let said = format!("connected to Postgres {version}");
            let budget = app::connections(settings);
            vec![
                Finding { what: "database", said: Ok(said) },
                Finding { what: "clock", said: clock(apart) },
                Finding { what: "connections", said: budgeted(budget.into(), connections, open) },
            ]
        }
        Err(error) => vec![Finding { what: "database", said: Err(format!("DATABASE_URL: {error:#}")) }],
    }
}

/// Answer of a server about itself.
struct Server {
    version: String,
    /// Difference between its clock and this machine's.
    apart: Duration,
    /// Connections that it accepts, and those that are open.
    connections: i64,
    open: i64,
}

async fn ask(settings: &Settings, url: &str) -> anyhow::Result<Server> {
    let store = app::visit(&settings.database, url)?;
    let asked = async { Ok((store.server().await?, store.server_connections().await?)) };
    let asked: Result<_, store::Error> = asked.await;
    store.close().await;
    let ((version, now), (connections, open)) = asked?;
    Ok(Server { version, apart: (Origin::system().now() - now).unsigned_abs(), connections, open })
}

/// Checks that the server accepts the connections of one more process with these settings.
fn budgeted(budget: i64, connections: i64, open: i64) -> Result<String, String> {
    if open + budget > connections {
        return Err(format!(
            "this process opens up to {budget}, {open} are open, and the server accepts {connections}: raise its \
             max_connections, lower SOJOURN_DATABASE_CONNECTIONS, or use a pooler"
        ));
    }
    Ok(format!("up to {budget} of this process; {open} of {connections} are open"))
}

fn clock(apart: Duration) -> Result<String, String> {
    let said = format!("{} ms from the database's clock", apart.as_millis());
    if apart > CLOCKS_DIFFER_MAX {
        return Err(format!("{said}: synchronize both with one time server"));
    }
    Ok(said)
}
