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
mod sandboxes;

use std::{fs, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use crate::node::local::WatcherProgram;
pub use connections::connections;
pub use node::{end_with_agent, reach as reach_node_agent, serve_node};
pub use privileges::separate;
pub use sandboxes::{checks as sandbox_checks, reservable_memory, watch as watch_sandboxes};

use self::{
    listeners::{listen, metrics_listener},
    reach::{local_sources, network, org_client},
};
use crate::{
    base::{
        ExposeSecret, Origin, SecretString,
        clock::SteeredClock,
        limit::{CLOCK_DIFFERENCE_MAX, NODE_HEARTBEAT_TIMEOUT, SANDBOX_ORPHAN_MARGIN},
        loops::Loops,
        seal::MasterKey,
    },
    blob::Blobs,
    config::{self, Role, Settings},
    domain::OrgId,
    http,
    journal::Journal,
    lifecycle::{IdlePolicy, Sandboxes},
    model::{self, Providers},
    net::{self, SystemResolver},
    queue::Queue,
    sandbox::Node,
    store::{
        Store, Urls,
        embedded::Embedded,
        job::Claimant,
        migrate,
        notification::Notifications,
        operator::Operator,
        pool::PoolSizes,
        process::Process,
        start::{StartWait, exclusively},
    },
    stream::Streams,
    telemetry,
    tool::Catalog,
    trigger::Scheduler,
    turn::Runtime,
    web,
    webhook::Dispatcher,
    worker::Worker,
};

/// The database of a process, migrated and checked.
pub struct Record {
    pub store: Store,
    pub origin: Origin,
    /// The clock of `origin`.
    clock: Arc<SteeredClock>,
    embedded: Option<Embedded>,
    urls: Urls,
}

/// Who migrates the schema of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// This process, as the owner.
    Own,
    /// This process if it knows the owner: by a URL of its own, or because it starts the server. Otherwise it
    /// waits until the schema is there.
    IfOwner,
}

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

/// The source of time and ids of a process, and the receiver of messages about its start.
#[derive(Clone)]
pub struct Startup<'a> {
    pub origin: Origin,
    pub says: &'a (dyn Fn(&str) + Send + Sync),
}

impl<'a> Startup<'a> {
    /// Uses the clock and the random generator of this machine.
    pub fn system(says: &'a (dyn Fn(&str) + Send + Sync)) -> Self {
        Self { origin: Origin::system(), says }
    }
}

impl Record {
    /// Opens the database; starts the embedded one if no URL is configured.
    pub async fn open(
        database: &config::Database,
        pools: PoolSizes,
        migration: Migration,
        Startup { origin, says }: Startup<'_>,
    ) -> anyhow::Result<Self> {
        let (origin, clock) = origin.steered(CLOCK_DIFFERENCE_MAX);
        let dir = data_dir::prepared(&database.data_dir, &origin)?;
        let wait = StartWait { limit: database.database_wait_seconds, says };
        let mut master = data_dir::master_key(database, &dir, &origin)?;
        if let Some(text) = &database.master_key_before {
            master = master.replacing(&data_dir::parsed(text, "SOJOURN_MASTER_KEY_BEFORE")?);
        }
        let (urls, embedded) = match &database.database_url {
            Some(app) => {
                let owner = database.owner_database_url.clone().unwrap_or_else(|| app.clone());
                let system = database.system_database_url.clone().unwrap_or_else(|| app.clone());
                (Urls { owner, app: app.clone(), system }, None)
            }
            None => {
                let embedded = Embedded::start(&dir, &origin, says).await?;
                (embedded.urls(), Some(embedded))
            }
        };
        let is_owner = embedded.is_some() || database.owner_database_url.is_some();
        let ready = if migration == Migration::Own || is_owner {
            migrate::migrate(&urls, master, wait).await
        } else {
            migrate::check(&urls, master, wait).await
        };
        let master = match ready {
            Ok(master) => master,
            Err(error) => {
                if let Some(embedded) = embedded {
                    embedded.stop().await.ok();
                }
                return Err(error.into());
            }
        };
        let store = Store::open(&urls, pools, master)?;
        let store = match &database.listen_database_url {
            Some(url) => store.listening_at(url)?,
            None => store,
        };
        clock::check(&store, &clock).await;
        Ok(Self { store, origin, clock, embedded, urls })
    }

    /// Closes the connections, and stops the embedded database with its last user.
    pub async fn close(self) -> anyhow::Result<()> {
        self.store.close().await;
        if let Some(embedded) = self.embedded {
            embedded.stop().await?;
        }
        Ok(())
    }

    /// Operator access to this database.
    pub fn operator(&self) -> Operator<'_> {
        self.store.operator(&self.origin)
    }

    /// Creates an organization with one key with all scopes; the key is shown once.
    pub async fn create_org(&self, name: &str) -> anyhow::Result<(OrgId, SecretString)> {
        let org: OrgId = self.origin.id();
        let secret = self.operator().create(org, name).await?;
        Ok((org, secret.into()))
    }

    /// Re-encrypts all organizations' keys with the current master key; returns the number of organizations
    /// that used the previous one. Idempotent, and safe while processes with either key run.
    pub async fn rotate_master_key(&self) -> anyhow::Result<usize> {
        let rewrapped = self.operator().rewrap().await?;
        migrate::replace_master_key(&self.urls.owner, self.store.master(), &self.origin).await?;
        Ok(rewrapped)
    }

    async fn create_first_org(&self, file: &Path) -> anyhow::Result<OrgId> {
        // Another process may have created it while this one waited.
        if let Some(org) = self.store.first_org().await? {
            return Ok(org);
        }
        let (org, secret) = self.create_org("default").await?;
        if !data_dir::write_secret(file, secret.expose_secret(), &self.origin)? {
            bail!("{} has the key of another database: move it away", file.display());
        }
        Ok(org)
    }

    /// Creates the first organization if there is none, with the keys in the settings and the data directory.
    async fn bootstrap(
        &self,
        settings: &Settings,
        says: &(dyn Fn(&str) + Send + Sync),
    ) -> anyhow::Result<Option<SecretString>> {
        let file = settings.database.data_dir.join("api-key");
        let org = match self.store.first_org().await? {
            Some(org) => org,
            None => {
                let wait = StartWait { limit: settings.database.database_wait_seconds, says };
                exclusively(&self.urls.system, wait, async || self.create_first_org(&file).await).await?
            }
        };
        if let Some(secret) = &settings.bootstrap_api_key {
            self.operator().grant(org, "bootstrap key", secret).await?;
            return Ok(Some(secret.clone().into()));
        }
        match fs::read_to_string(&file) {
            Ok(secret) => Ok(Some(secret.trim().to_owned().into())),
            // Another process with its own data directory created the organization.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", file.display())),
        }
    }
}

/// Creates and migrates the schema, and stops the embedded database again.
pub async fn migrate(database: &config::Database, says: &(dyn Fn(&str) + Send + Sync)) -> anyhow::Result<()> {
    let pools = PoolSizes { app: 1, system: 1 };
    Record::open(database, pools, Migration::Own, Startup::system(says)).await?.close().await
}

/// Makes the blob store of the settings the deployment's. Returns false if it was already.
pub async fn adopt_blob_store(
    settings: &Settings,
    says: &(dyn Fn(&str) + Send + Sync),
) -> anyhow::Result<bool> {
    let pools = PoolSizes { app: 1, system: 1 };
    let record = Record::open(&settings.database, pools, Migration::IfOwner, Startup::system(says)).await?;
    let adopted = blobs::adopt(settings, &record.store, Uuid::from_bytes(record.origin.bytes())).await;
    let closed = record.close().await;
    let adopted = adopted?;
    closed?;
    Ok(adopted)
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
    let parts = parts?;
    let worker = settings.role.runs_turns().then(|| parts.worker(settings)).transpose()?;
    let (mut front, mut back) = (JoinSet::new(), Loops::default());
    let late = CancellationToken::new();
    parts.start_notifications(&mut back, &late);
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
    outcome
}

struct Parts {
    store: Store,
    origin: Origin,
    notifications: Notifications,
    blobs: Blobs,
    journal: Journal,
    process: Uuid,
    node: Uuid,
    /// Makes sandboxes; `None` in a process that runs no turns.
    sandboxes: Option<Result<Arc<dyn Node>, String>>,
    /// Names of organizations' URLs and of hosts that sandboxes reach.
    resolver: Arc<SystemResolver>,
}

impl Parts {
    async fn new(settings: &Settings, record: &Record) -> anyhow::Result<Self> {
        let process = Uuid::from_bytes(record.origin.bytes());
        let (node, sandboxes) = node::provider(settings, record.store.master(), &record.origin).await?;
        let notifications = Notifications::new(Process {
            id: process,
            node: settings.role.runs_turns().then_some(node),
            is_api: settings.role != Role::Worker,
        });
        let blobs = blobs::open(settings, &record.store, Uuid::from_bytes(record.origin.bytes())).await?;
        let store = record.store.clone().with_blobs(blobs.clone());
        let journal =
            Journal::new(store.clone(), blobs.clone(), notifications.clone(), record.origin.clone());
        let (origin, resolver) = (record.origin.clone(), Arc::default());
        Ok(Self { store, origin, notifications, blobs, journal, process, node, sandboxes, resolver })
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
            scripted: settings.scripted,
            requests_per_second: settings.requests_per_second,
            operator_key: settings.operator_key.clone(),
            local_sources: local_sources(settings)?,
            images: sandboxes::offer(settings),
            sandbox_max: settings.capacity.sandbox(),
        }))
    }

    fn worker(&self, settings: &Settings) -> anyhow::Result<Worker> {
        let claimant = Claimant {
            worker: self.process,
            node: self.node,
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
        let provider = self.sandboxes.clone().context("a process that runs no turns has no sandboxes")?;
        if let Err(reason) = &provider {
            tracing::error!(reason, "sandboxes are not available: turns that use tools will fail");
        }
        let sandboxes = Sandboxes {
            store: self.store.clone(),
            journal: self.journal.clone(),
            notifications: self.notifications.clone(),
            blobs: self.blobs.clone(),
            provider,
            default_image: sandboxes::default_image(settings),
            network: network(settings, &self.resolver)?,
            local_sources: local_sources(settings)?,
            idle: IdlePolicy {
                freeze_after: settings.sandbox_freeze_after_seconds,
                hibernate_after: settings.sandbox_hibernate_after_seconds,
            },
            limits: sandboxes::limits(settings),
            disk: sandboxes::free_space(settings),
            node: self.node,
            orphan_timeout: Duration::from_secs(settings.sandbox_orphan_seconds) + SANDBOX_ORPHAN_MARGIN,
        };
        Ok(Worker {
            queue: Queue::new(self.store.clone(), self.notifications.clone(), self.origin.clone(), claimant),
            runtime: Runtime { sandboxes, providers: Arc::new(providers), catalogue: Catalog::builtin() },
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

/// Connects to an existing database, without starting or migrating it.
pub fn visit(database: &config::Database, url: &str) -> anyhow::Result<Store> {
    let master = MasterKey::generate(&Origin::system());
    let urls = Urls {
        owner: url.to_owned(),
        app: url.to_owned(),
        system: database.system_database_url.clone().unwrap_or_else(|| url.to_owned()),
    };
    Ok(Store::open(&urls, PoolSizes { app: 1, system: 1 }, master)?)
}
