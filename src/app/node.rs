//! The node agent of this machine, and the agent of a worker.

use std::{fs, os::unix::process::parent_id, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use futures::future::join_all;
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
    base::{
        Origin,
        limit::{NODE_AGENT_WAIT, NODE_JOIN_RETRY},
        seal::MasterKey,
    },
    config::Settings,
    http,
    lifecycle::{Nodes, WorkerNode},
    net,
    node::{Agent, Listener},
    sandbox::{
        Fault, Node,
        node::{GrantKey, NodeAddress, RemoteNode, TlsFiles},
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

/// The nodes of a worker: those of node agents, or this machine. Without sandboxes, turns that use tools fail with the
/// reason. Blocks while it checks the requirements.
///
/// Also returns the agents, of which some may have to be joined later.
pub(super) async fn nodes(
    settings: &Settings,
    master: &MasterKey,
    origin: &Origin,
) -> anyhow::Result<(Nodes, Agents)> {
    let data_dir = &settings.database.data_dir;
    let (nodes, tls) = (Nodes::default(), settings.node_agent.tls());
    let missing = settings.node_agent.node.clone();
    let is_own = missing.is_empty();
    let (master, origin_of_agents) = (master.clone(), origin.clone());
    let mut agents =
        Agents { missing, joined: Vec::new(), tls, master, origin: origin_of_agents, nodes: nodes.clone() };
    if is_own {
        let id = data_dir::node_id(data_dir, origin)?;
        let provider = sandboxes::local(settings, id).map(|local| Arc::new(local) as Arc<dyn Node>);
        nodes.add(WorkerNode { id, provider });
    } else {
        agents.join_first().await?;
    }
    Ok((nodes, agents))
}

/// The node agents of a worker, and which of them it has reached.
pub(super) struct Agents {
    missing: Vec<NodeAddress>,
    joined: Vec<(NodeAddress, Uuid)>,
    tls: Option<TlsFiles>,
    master: MasterKey,
    origin: Origin,
    nodes: Nodes,
}

impl Agents {
    /// Joins the agents that answer; waits until one does, because it may start at the same time.
    async fn join_first(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + NODE_AGENT_WAIT;
        let mut told = false;
        loop {
            let reasons = self.join_those_that_answer().await;
            if !self.joined.is_empty() {
                return Ok(());
            }
            let reason = reasons.join("; ");
            if Instant::now() >= until {
                bail!("SOJOURN_NODE: {reason}");
            }
            if !told {
                tracing::info!(reason, "waiting for the node agent");
                told = true;
            }
            sleep(RETRY).await;
        }
    }

    /// Joins the others when they answer, until `stop`. An agent that is away may come back with another node, on a
    /// machine that was set up again.
    pub(super) async fn join_others(mut self, stop: CancellationToken) {
        let mut told = false;
        while stop.run_until_cancelled(sleep(NODE_JOIN_RETRY)).await.is_some() {
            let reachable = self.nodes.reachable().list();
            let away = self.joined.extract_if(.., |(_, node)| !reachable.contains(node));
            self.missing.extend(away.map(|(address, _)| address));
            if self.missing.is_empty() {
                told = false;
                continue;
            }
            let reasons = self.join_those_that_answer().await;
            if !reasons.is_empty() && !told {
                let reason = reasons.join("; ");
                tracing::warn!(reason, "a node agent does not answer; trying again");
                told = true;
            }
        }
    }

    /// Returns why others do not answer.
    async fn join_those_that_answer(&mut self) -> Vec<String> {
        let tried = self.missing.iter().map(async |address| {
            let key = GrantKey::of(&self.master.grant_secret(), &self.origin);
            RemoteNode::connect(address.clone(), self.tls.as_ref(), key).await
        });
        let tried = join_all(tried).await;
        let mut reasons = Vec::new();
        for (address, answered) in std::mem::take(&mut self.missing).into_iter().zip(tried) {
            match answered {
                Ok(node) => {
                    let id = node.id();
                    if self.nodes.add(WorkerNode { id, provider: Ok(Arc::new(node)) }) {
                        tracing::info!(node.id = %id, %address, "a node joined");
                    }
                    self.joined.push((address, id));
                }
                Err(fault) => {
                    reasons.push(format!("{address}: {}", reason(fault)));
                    self.missing.push(address);
                }
            }
        }
        reasons
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
pub(super) fn publish_grant_key(data_dir: &Path, master: &MasterKey, origin: &Origin) -> anyhow::Result<()> {
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
