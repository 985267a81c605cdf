//! The node agent of this machine, and the agent of a worker.

use std::{fs, os::unix::process::parent_id, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, geteuid, getrlimit, kill_process,
    set_parent_process_death_signal, setrlimit, waitpid,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{data_dir, listeners::metrics_listener, sandboxes};
use crate::{
    base::{Origin, limit::NODE_AGENT_WAIT, seal::MasterKey},
    config::Settings,
    http, net,
    node::{Agent, Listener},
    sandbox::{
        Fault, Node,
        node::{GrantKey, NodeAddress, RemoteNode},
    },
    store::embedded::Account,
    telemetry,
};

/// Name of the file with the public key of the grants.
const GRANT_KEY: &str = "grant-key";
/// Delay between two attempts to reach an agent.
const RETRY: Duration = Duration::from_millis(200);

/// Runs the node agent of this machine, and its metrics, until `stop`; calls `started` with its node once it serves.
pub async fn serve_node(
    settings: &Settings,
    stop: CancellationToken,
    started: impl FnOnce(Uuid),
) -> anyhow::Result<()> {
    net::install_tls();
    raise_open_files();
    let origin = Origin::system();
    let data_dir = data_dir::prepared(&settings.database.data_dir, &origin)?;
    let node = data_dir::node_id(&data_dir, &origin)?;
    let local = sandboxes::local(settings, node).map_err(anyhow::Error::msg)?;
    let agent = &settings.node_agent;
    let owner = match &agent.node_socket_user {
        Some(name) => user_id(name).await?,
        None => geteuid().as_raw(),
    };
    let listener = Listener::open(&agent.node_listen, agent.tls().as_ref(), owner).await?;
    let key_file = agent.grant_key_file.clone().unwrap_or_else(|| data_dir.join(GRANT_KEY));
    let service = agent.service_child_pid;
    let watched = metrics_listener(settings).await?;
    let agent = Arc::new(Agent::new(local, node, key_file, origin));
    started(node);
    // The service drains with its sandboxes: the agent ends after it.
    let ended = CancellationToken::new();
    let supervised = async {
        let supervised = match service {
            Some(service) => supervise(service, stop).await,
            None => {
                stop.cancelled().await;
                Ok(())
            }
        };
        ended.cancel();
        supervised
    };
    let metrics = async {
        if let Some(watched) = watched {
            let router = http::metrics::router(None, None, telemetry::metrics());
            http::serve(watched, router, Vec::new(), ended.clone()).await;
        }
    };
    let (supervised, (), ()) = tokio::join!(supervised, agent.serve(listener, ended.clone()), metrics);
    supervised
}

/// The node of this process, and its sandboxes: of a node agent, or of this machine. Without sandboxes, turns that use
/// tools fail with the reason. Blocks while it checks the requirements.
pub(super) async fn provider(
    settings: &Settings,
    master: &MasterKey,
    origin: &Origin,
) -> anyhow::Result<(Uuid, Option<Result<Arc<dyn Node>, String>>)> {
    let data_dir = &settings.database.data_dir;
    publish_grant_key(data_dir, master, origin)?;
    let address = settings.node_agent.node.as_ref().filter(|_| settings.role.runs_turns());
    if let Some(address) = address {
        let remote = connected(settings, address, master, origin).await?;
        return Ok((remote.id(), Some(Ok(Arc::new(remote)))));
    }
    let node = data_dir::node_id(data_dir, origin)?;
    let local = || sandboxes::local(settings, node).map(|local| Arc::new(local) as Arc<dyn Node>);
    Ok((node, settings.role.runs_turns().then(local)))
}

/// Connects to the agent at an address. Waits for an agent that starts at the same time.
async fn connected(
    settings: &Settings,
    address: &NodeAddress,
    master: &MasterKey,
    origin: &Origin,
) -> anyhow::Result<RemoteNode> {
    let until = Instant::now() + NODE_AGENT_WAIT;
    let mut told = false;
    loop {
        let key = GrantKey::of(&master.grant_secret(), origin);
        let fault = match RemoteNode::connect(address.clone(), settings.node_agent.tls().as_ref(), key).await
        {
            Ok(node) => return Ok(node),
            Err(fault) => fault,
        };
        if Instant::now() >= until {
            bail!("SOJOURN_NODE: {}", reason(fault));
        }
        if !told {
            tracing::info!(reason = reason(fault), "waiting for the node agent");
            told = true;
        }
        sleep(RETRY).await;
    }
}

/// Checks whether an agent accepts connections.
///
/// # Errors
/// One line with what to do.
pub async fn reach(settings: &Settings, address: &NodeAddress) -> Result<String, String> {
    net::install_tls();
    match RemoteNode::reach(address.clone(), settings.node_agent.tls().as_ref()).await {
        Ok(()) => Ok(format!("{address} accepts connections")),
        Err(fault) => Err(format!(
            "{}: start `sojourn serve --role node` there, or correct SOJOURN_NODE",
            reason(fault)
        )),
    }
}

/// The words of a fault of the agent itself: they concern no sandbox.
fn reason(fault: Fault) -> String {
    match fault {
        Fault::Unavailable(reason) | Fault::Refused(reason) => reason,
        fault => fault.to_string(),
    }
}

/// Writes the public key of the grants, for the agent of this machine and for those to which it is copied.
fn publish_grant_key(data_dir: &Path, master: &MasterKey, origin: &Origin) -> anyhow::Result<()> {
    let path = data_dir.join(GRANT_KEY);
    let key = GrantKey::of(&master.grant_secret(), origin).public();
    if fs::read_to_string(&path).is_ok_and(|text| text.trim() == key) {
        return Ok(());
    }
    let beside = path.with_extension(Uuid::from_bytes(origin.bytes()).to_string());
    let written = fs::write(&beside, key + "\n").and_then(|()| fs::rename(&beside, &path));
    written.with_context(|| format!("{} cannot be written", path.display()))
}

/// Id of a user, by name or number; a number need not be a user of this machine.
async fn user_id(name: &str) -> anyhow::Result<u32> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let account = Account::find(name).await?;
    Ok(account.with_context(|| format!("this machine has no user `{name}`"))?.uid)
}

/// Allows as many open files as the machine does: each connection of a sandbox has two.
fn raise_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

/// Waits for the end of the service that this agent belongs to, and passes the signal on that stops the agent.
async fn supervise(service: u32, stop: CancellationToken) -> anyhow::Result<()> {
    let pid = i32::try_from(service).ok().and_then(Pid::from_raw).context("the service has no process id")?;
    let mut children = signal(SignalKind::child())?;
    let mut is_told = false;
    let ended = loop {
        if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG)? {
            break status;
        }
        tokio::select! {
            _ = children.recv() => {}
            () = stop.cancelled(), if !is_told => {
                is_told = true;
                kill_process(pid, Signal::TERM)?;
            }
        }
    };
    stop.cancel();
    match ended.exit_status() {
        Some(0) => Ok(()),
        Some(code) => bail!("the service ended with code {code}"),
        None => bail!("the service was killed"),
    }
}

/// Ends this service when its agent ends.
pub fn end_with_agent(agent: u32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    if parent_id() != agent {
        bail!("the node agent of this service is gone");
    }
    Ok(())
}
