//! The composition root: assembles the modules into a process, and shuts them down in order.
//!
//! Streams end first (readers resume at another process), then requests, then the worker drains, then
//! dispatchers, notifications and the database.

mod blobs;
mod clock;
mod connections;
mod data_dir;
mod listeners;
mod node;
mod privileges;
mod reach;
mod record;
mod sandboxes;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use crate::node::local::WatcherProgram;
pub use connections::connections;
pub use node::{end_with_agent, reach as reach_node_agent, serve_node};
pub use privileges::{check_separation, separate};
pub use record::{Migration, Record, Startup, adopt_blob_store, migrate, visit};
pub use sandboxes::{Reservable, checks as sandbox_checks, reservable, watch as watch_sandboxes};

use self::{
    listeners::{listen, metrics_listener},
    node::Agents,
    reach::{local_sources, network, org_client, policy},
};
use crate::{
    base::{
        Origin, SecretString,
        limit::{NODE_HEARTBEAT_TIMEOUT, SANDBOX_ORPHAN_MARGIN},
        loops::Loops,
    },
    blob::Blobs,
    config::{Role, Settings},
    file::Files,
    http,
    journal::Journal,
    lifecycle::{IdlePolicy, Nodes, Sandboxes},
    mcp,
    model::{self, Providers},
    net::{self, SystemResolver},
    queue::Queue,
    skill::Skills,
    store::{Store, job::Claimant, notification::Notifications, process::Process},
    stream::Streams,
    telemetry,
    tool::Catalog,
    trigger::Scheduler,
    turn::Runtime,
    web,
    webhook::Dispatcher,
    worker::Worker,
};

/// Information about a started process.
pub struct Started {
    /// Address of the API; `None` for a worker.
    pub address: Option<SocketAddr>,
    /// Address of the metrics, if enabled.
    pub metrics: Option<SocketAddr>,
    /// A key of the first organization, if this process knows one.
    pub api_key: Option<SecretString>,
    /// Whether no session was ever created in this deployment.
    pub is_empty: bool,
}

/// Serves until `stop`; calls `started` once everything runs.
pub async fn serve(
    settings: Settings,
    stop: CancellationToken,
    startup: Startup<'_>,
    started: impl FnOnce(Started),
) -> anyhow::Result<()> {
    net::install_tls();
    let has_api = settings.role != Role::Worker;
    let listener = if has_api { Some(listen("SOJOURN_LISTEN", settings.listen).await?) } else { None };
    let watched = metrics_listener(&settings).await?;
    let pools = connections::pools(&settings);
    let migration = if settings.role == Role::All { Migration::Own } else { Migration::IfOwner };
    let says = startup.says;
    let opening = Record::open(&settings.database, pools, migration, startup);
    let record = if settings.database.database_url.is_none() {
        opening.await?
    } else {
        // It may be waiting for the server.
        let Some(record) = stop.run_until_cancelled(opening).await else { return Ok(()) };
        record?
    };
    let listeners = Listeners { listener, watched };
    let served = serve_record(&settings, &record, listeners, stop, says, started).await;
    let closed = record.close().await;
    served.and(closed)
}

/// Listeners of a process.
struct Listeners {
    /// Of the API.
    listener: Option<TcpListener>,
    /// Of the metrics.
    watched: Option<TcpListener>,
}

async fn serve_record(
    settings: &Settings,
    record: &Record,
    Listeners { listener, watched }: Listeners,
    stop: CancellationToken,
    says: &(dyn Fn(&str) + Send + Sync),
    started: impl FnOnce(Started),
) -> anyhow::Result<()> {
    let has_api = listener.is_some();
    let api_key = if has_api { record.bootstrap(settings, says).await? } else { None };
    let is_empty = !record.store.has_sessions().await?;
    let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let metrics = watched.as_ref().map(TcpListener::local_addr).transpose()?;

    // It may wait for its node agent.
    let Some(parts) = stop.run_until_cancelled(Parts::new(settings, record)).await else { return Ok(()) };
    let mut parts = parts?;
    let worker = settings.role.runs_turns().then(|| parts.worker(settings)).transpose()?;
    let (mut front, mut back) = (JoinSet::new(), Loops::default());
    let late = CancellationToken::new();
    parts.start_notifications(&mut back, &late);
    if let Some(agents) = parts.agents.take() {
        back.spawn("joining of nodes", agents.join_others(late.clone()));
    }
    back.spawn("clock", clock::follow(record.store.clone(), record.clock.clone(), late.clone()));
    // Streams end at the start of the shutdown; otherwise open ones would delay the end of HTTP.
    let (store, origin) = (parts.store.clone(), record.origin.clone());
    let streams = Streams::new(store, parts.notifications.clone(), origin, stop.clone());
    if let Some(listener) = listener {
        back.spawn("dispatcher", parts.dispatcher(settings).run(late.clone()));
        back.spawn("scheduler", parts.scheduler(settings).run(late.clone()));
        let router = parts.http(settings, streams.clone())?.router(web::router(&http::description()));
        front.spawn(served(http::serve(listener, router, settings.trusted_proxies.clone(), stop.clone())));
    }
    if let Some(listener) = watched {
        let days = settings.move_events_after_days();
        let router = http::metrics::router(Some(record.store.clone()), days, telemetry::metrics());
        front.spawn(served(http::serve(listener, router, Vec::new(), stop.clone())));
    }
    if let Some(worker) = worker {
        let stop = stop.clone();
        front.spawn(async move { Ok(worker.run(stop).await?) });
    }
    started(Started { address, metrics, api_key, is_empty });
    let mut outcome = Ok(());
    loop {
        let ended = tokio::select! {
            ended = front.join_next() => match ended {
                Some(ended) => ended.map_err(anyhow::Error::from).flatten(),
                None => break,
            },
            ended = back.ended() => Err(ended.into()),
        };
        if !stop.is_cancelled() {
            tracing::error!("a part of the process ended; stopping the process");
            stop.cancel();
        }
        outcome = outcome.and(ended);
    }
    streams.drained().await;
    late.cancel();
    back.joined().await;
    parts.journal.drained().await;
    parts.mcp.drained().await;
    outcome
}

struct Parts {
    store: Store,
    origin: Origin,
    notifications: Notifications,
    blobs: Blobs,
    files: Files,
    skills: Skills,
    journal: Journal,
    process: Uuid,
    /// Machines that make sandboxes; `None` in a process that runs no turns.
    nodes: Option<Nodes>,
    /// Agents of nodes that have not answered yet.
    agents: Option<Agents>,
    /// Names of organizations' URLs and of hosts that sandboxes reach.
    resolver: Arc<SystemResolver>,
    mcp: mcp::Clients,
}

impl Parts {
    async fn new(settings: &Settings, record: &Record) -> anyhow::Result<Self> {
        let process = Uuid::from_bytes(record.origin.bytes());
        let master = record.store.master();
        node::publish_grant_key(&settings.database.data_dir, master, &record.origin)?;
        let (nodes, agents) = if settings.role.runs_turns() {
            let (nodes, agents) = node::nodes(settings, master, &record.origin).await?;
            (Some(nodes), Some(agents))
        } else {
            (None, None)
        };
        let notifications = Notifications::new(Process {
            id: process,
            nodes: nodes.as_ref().map(|nodes| nodes.reachable().clone()),
            is_api: settings.role != Role::Worker,
        });
        let blobs = blobs::open(settings, &record.store, Uuid::from_bytes(record.origin.bytes())).await?;
        let store = record.store.clone().with_blobs(blobs.clone());
        let journal =
            Journal::new(store.clone(), blobs.clone(), notifications.clone(), record.origin.clone());
        let (origin, resolver) = (record.origin.clone(), Arc::<SystemResolver>::default());
        let files = Files::new(store.clone(), blobs.clone(), origin.clone());
        let skills = Skills::new(store.clone(), blobs.clone(), origin.clone());
        let policy = policy(settings, settings.allow_private_mcp);
        let mcp = mcp::Clients::new(net::Client::within_origin(policy, Arc::clone(&resolver) as _));
        Ok(Self {
            store,
            origin,
            notifications,
            blobs,
            files,
            skills,
            journal,
            process,
            nodes,
            agents,
            resolver,
            mcp,
        })
    }

    /// Starts the exchange of notifications, and the heartbeat that lets other processes know of this one.
    fn start_notifications(&self, loops: &mut Loops, stop: &CancellationToken) {
        let (notifications, store, token) = (self.notifications.clone(), self.store.clone(), stop.clone());
        loops.spawn("notification", async move { notifications.publish(&store, token).await });
        let (notifications, store, token) = (self.notifications.clone(), self.store.clone(), stop.clone());
        loops.spawn("delta", async move { notifications.publish_deltas(&store, token).await });
        let (notifications, store, token) = (self.notifications.clone(), self.store.clone(), stop.clone());
        loops.spawn("listening", async move { notifications.listen(&store, token).await });
        let (notifications, store, token) = (self.notifications.clone(), self.store.clone(), stop.clone());
        loops.spawn("process heartbeat", async move { notifications.keep_process(&store, token).await });
    }

    fn dispatcher(&self, settings: &Settings) -> Dispatcher {
        Dispatcher {
            store: self.store.clone(),
            notifications: self.notifications.clone(),
            client: org_client(settings, settings.allow_private_webhooks, &self.resolver),
            origin: self.origin.clone(),
        }
    }

    fn scheduler(&self, settings: &Settings) -> Scheduler {
        Scheduler { store: self.store.clone(), journal: self.journal.clone(), scripted: settings.scripted }
    }

    fn http(&self, settings: &Settings, streams: Streams) -> anyhow::Result<http::App> {
        Ok(http::App::new(http::Parts {
            store: self.store.clone(),
            journal: self.journal.clone(),
            blobs: self.blobs.clone(),
            streams,
            webhooks: org_client(settings, settings.allow_private_webhooks, &self.resolver),
            models: org_client(settings, settings.allow_private_models, &self.resolver),
            mcp_servers: org_client(settings, settings.allow_private_mcp, &self.resolver),
            files: self.files.clone(),
            skills: self.skills.clone(),
            file_addresses: org_client(settings, settings.allow_private_egress, &self.resolver),
            scripted: settings.scripted,
            requests_per_second: settings.requests_per_second,
            operator_key: settings.operator_key.clone(),
            local_sources: local_sources(settings)?,
            images: sandboxes::offer(settings),
            sandbox_max: settings.capacity.sandbox(),
            organization_max: settings.capacity.organization(),
        }))
    }

    fn worker(&self, settings: &Settings) -> anyhow::Result<Worker> {
        let nodes = self.nodes.clone().context("a process that runs no turns has no sandboxes")?;
        let claimant = Claimant {
            worker: self.process,
            nodes: nodes.reachable().clone(),
            lease: settings.lease(),
            node_silence: NODE_HEARTBEAT_TIMEOUT,
        };
        let guarded = org_client(settings, settings.allow_private_models, &self.resolver);
        let guard: model::Guard = Arc::new(move |url| {
            guarded.request(reqwest::Method::POST, url).map_err(|refused| refused.to_string())
        });
        let providers = Providers::new(
            model::Http::new(model::trusted_client(), Some(guard)),
            model::Settings {
                anthropic_base_url: settings.anthropic_base_url.clone(),
                anthropic_version: settings.anthropic_version.clone(),
                openai_base_url: settings.openai_base_url.clone(),
                scripted: settings.scripted,
            },
        );
        let mcp = self.mcp.clone();
        for reason in nodes.all().into_iter().filter_map(|node| node.provider.err()) {
            tracing::error!(reason, "sandboxes are not available: turns that use tools will fail");
        }
        let sandboxes = Sandboxes {
            store: self.store.clone(),
            journal: self.journal.clone(),
            notifications: self.notifications.clone(),
            blobs: self.blobs.clone(),
            files: self.files.clone(),
            skills: self.skills.clone(),
            nodes,
            default_image: sandboxes::default_image(settings),
            network: network(settings, &self.resolver)?,
            local_sources: local_sources(settings)?,
            idle: IdlePolicy {
                freeze_after: settings.sandbox_freeze_after_seconds,
                hibernate_after: settings.sandbox_hibernate_after_seconds,
            },
            limits: sandboxes::limits(settings),
            disk: sandboxes::free_space(settings),
            orphan_timeout: Duration::from_secs(settings.sandbox_orphan_seconds) + SANDBOX_ORPHAN_MARGIN,
        };
        Ok(Worker {
            queue: Queue::new(self.store.clone(), self.notifications.clone(), self.origin.clone(), claimant),
            runtime: Runtime {
                sandboxes,
                providers: Arc::new(providers),
                catalogue: Catalog::builtin(),
                mcp,
            },
            slots: settings.max_concurrent_turns,
            move_events_after_days: settings.move_events_after_days(),
        })
    }
}

/// Adapts a server, which ends only when it is stopped, to a task result.
async fn served(serving: impl Future<Output = ()>) -> anyhow::Result<()> {
    serving.await;
    Ok(())
}
