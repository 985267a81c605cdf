//! `sojourn serve`: runs the service and prints its addresses.

use std::{env, net::SocketAddr, process};

use anyhow::bail;
use tokio_util::sync::CancellationToken;

use super::first_session;
use crate::{
    app::{self, Started, Startup, WatcherProgram},
    base::{ExposeSecret, SecretString},
    config::{Role, Settings},
    shutdown, telemetry,
};

/// Name of the command that a service starts for its sandboxes.
pub(super) const WATCH_SANDBOXES: &str = "watch-sandboxes";
pub(super) const SERVICE_PID: &str = "service-pid";

/// Serves until a signal. All invalid settings are reported together.
#[expect(clippy::disallowed_methods, reason = "both handles are awaited before the process ends")]
pub(super) async fn run(mut settings: Settings) -> anyhow::Result<()> {
    let problems = settings.problems();
    if !problems.is_empty() {
        bail!(problems.join("\n       "));
    }
    if let Some(notice) = app::separate(&settings).await? {
        eprintln!("{notice}");
    }
    if let Some(agent) = settings.node_agent.agent_parent_pid {
        app::end_with_agent(agent)?;
    }
    let telemetry = telemetry::start(&settings.log, &settings.traces).map_err(anyhow::Error::msg)?;
    let stop = CancellationToken::new();
    let signals = tokio::spawn(shutdown::on_signals(stop.clone()));
    settings.watcher = Some(watcher()?);
    if settings.role == Role::Node {
        let address = settings.node_agent.node_listen.clone();
        let is_separate = settings.node_agent.service_child_pid.is_none();
        let started = |node| {
            if is_separate {
                eprintln!("sojourn makes sandboxes for workers at {address}: node {node}");
            }
        };
        let served = app::serve_node(&settings, stop, started).await;
        signals.abort();
        return served;
    }
    let wants_first_session = settings.first_session;
    let mut player = None;
    let served =
        app::serve(settings, stop.clone(), Startup::system(&|line| eprintln!("{line}")), |started| {
            if let Some((address, key)) = announce(&started)
                && started.is_empty
                && wants_first_session
            {
                player =
                    Some(tokio::spawn(stop.run_until_cancelled_owned(first_session::play(address, key))));
            }
        })
        .await;
    if let Some(player) = player {
        player.abort();
    }
    signals.abort();
    // Export the last spans before the process exits.
    tokio::task::spawn_blocking(move || telemetry.end()).await?;
    served
}

/// Returns the program that ends the sandboxes of this process: this program, with the same settings.
fn watcher() -> anyhow::Result<WatcherProgram> {
    let args = [WATCH_SANDBOXES.into(), format!("--{SERVICE_PID}={}", process::id()).into()];
    Ok(WatcherProgram {
        path: env::current_exe()?,
        args: args.into_iter().chain(env::args_os().skip(2)).collect(),
    })
}

/// Prints the addresses and how to use the service; returns address and key if both are known.
fn announce(started: &Started) -> Option<(SocketAddr, SecretString)> {
    if let Some(address) = started.metrics {
        eprintln!("metrics: http://{address}/metrics");
    }
    let Some(address) = started.address else {
        eprintln!("sojourn works: a worker of this deployment");
        return None;
    };
    eprintln!("sojourn serves http://{address}");
    let Some(key) = &started.api_key else {
        eprintln!("the API key was printed by the process that created the first organization");
        return None;
    };
    let secret = key.expose_secret();
    eprintln!(
        "\nAPI key: {secret}\n\nOpen http://{address} in a browser and sign in with it, or try:\n\n  curl -s http://{address}/v3/agents \\\n    -H 'Authorization: Bearer {secret}' \\\n    \
         -H 'Content-Type: application/json' \\\n    -d '{{\"name\": \"demo\", \"prompt\": \"You fix code.\", \
         \"model\": \"scripted/demo\"}}'\n"
    );
    Some((address, key.clone()))
}
