//! Root file systems of sandboxes: requested before a turn starts, built in the background.
//!
//! [`Sandboxes::build_root_file_systems`] runs in each worker for each of its nodes and builds what rows of the node
//! request; [`check_rootfs`] is called before a sandbox is used. A session that has to wait releases
//! its job and checks again; its log contains the reason of the wait. Whether a root file system exists is
//! read from the disk: a row only requests a build and reports its state.

use std::{
    collections::{BTreeSet, HashSet},
    convert::Infallible,
    future::pending,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Error, Sandboxes,
    nodes::{Usable, WorkerNode},
    spec::rootfs_of,
};
use crate::{
    base::limit::{
        NODE_ROOTFS_TIMEOUT, ROOTFS_BYTES_MAX, ROOTFS_CONCURRENT_MAX, ROOTFS_DENIED_MAX, ROOTFS_LOG_INTERVAL,
        ROOTFS_POLL,
    },
    domain::{
        Actor, Body, Event, OrgId, Session,
        event::Draft,
        rootfs::{Build, RootFs, State},
    },
    egress::{Authority, Decision, Log, Lost, Parts, Policy, Proxy, Secrets, Verdict},
    journal::Halted,
    sandbox::{BuildError, Fault, Install, Node},
    store::{self, record::Fence},
};

/// Error code of a turn whose root file system could not be built.
pub(crate) const BUILD_FAILED: &str = "environment_build_failed";
/// Prefix of a line of the build log that begins a step.
const STEP: &str = "== ";
/// Number of newest events of a log that are searched for those of a build.
const TOLD_WITHIN: i64 = 200;
/// Types of the events of a build.
const BUILD_EVENTS: [&str; 4] = [
    "environment.build_started",
    "environment.build_progress",
    "environment.build_completed",
    "environment.build_failed",
];

/// State of the root file system of a session.
pub(crate) enum RootfsStatus {
    Ready,
    /// It is being built: check again later.
    Building,
    /// The build failed, with the reason.
    Failed(String),
}

impl Sandboxes {
    /// Builds the requested root file systems of a node until `stop`.
    pub(crate) async fn build_root_file_systems(self, node: WorkerNode, stop: CancellationToken) {
        // Without a sandbox provider nothing is built.
        let WorkerNode { id, provider: Ok(images) } = node else { return stop.cancelled().await };
        let on = Usable { id, node: images };
        let mut beats = interval(ROOTFS_POLL);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut making = FuturesUnordered::new();
        let mut names: HashSet<String> = HashSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(key) = making.next() => {
                    names.remove::<String>(&key);
                }
                _ = beats.tick() => {
                    for (rootfs, org) in self.wanted(id).await {
                        let key = rootfs.key();
                        if names.len() < ROOTFS_CONCURRENT_MAX && names.insert(key.clone()) {
                            let (sandboxes, on) = (&self, &on);
                            making.push(async move {
                                sandboxes.build(on, &rootfs, org).await;
                                key
                            });
                        }
                    }
                }
            }
        }
        // The next process restarts builds that were in progress.
        drop(making);
        if let Err(unmade) = on.node.remove_unused_rootfs(&[]).await {
            tracing::warn!(%unmade, "remains of root file system builds could not be removed");
        }
    }

    async fn wanted(&self, node: Uuid) -> Vec<(RootFs, OrgId)> {
        let wanted = self.store.pending_rootfs(node, 4 * ROOTFS_CONCURRENT_MAX as i64).await;
        wanted.unwrap_or_else(|error| {
            tracing::warn!(%error, "requested root file systems could not be read");
            Vec::new()
        })
    }

    async fn build(&self, on: &Usable, rootfs: &RootFs, org: OrgId) {
        let images = &*on.node;
        let made = tokio::select! {
            made = self.build_image(on, rootfs, org) => made,
            () = self.record_build_log(on, rootfs) => unreachable!("the build log is recorded for ever"),
        };
        let built = match &made {
            // Another process of this node builds it and records the result.
            Err(BuildError::Busy) => return,
            Err(BuildError::Failed(reason)) => {
                tracing::warn!(image = rootfs.image, reason, "a root file system could not be built");
                Err(reason.as_str())
            }
            Ok(bytes) => Ok(*bytes),
        };
        let log = images.take_build_log(rootfs).await.unwrap_or_else(|fault| {
            tracing::warn!(%fault, "the log of a build could not be read");
            String::new()
        });
        if let Err(error) = self.store.record_rootfs_built(on.id, rootfs, &log, built).await {
            tracing::warn!(%error, "the result of a root file system build could not be recorded; retrying");
        }
    }

    /// Stores the log of a build at an interval. Never returns.
    async fn record_build_log(&self, on: &Usable, rootfs: &RootFs) {
        let (mut beats, mut told) = (interval(ROOTFS_LOG_INTERVAL), None);
        loop {
            beats.tick().await;
            let Ok(said) = on.node.build_log(rootfs).await else { continue };
            if told.as_ref() != Some(&said) {
                match self.store.record_rootfs_building(on.id, rootfs, &said).await {
                    Ok(()) => told = Some(said),
                    Err(error) => tracing::debug!(%error, "the log of a build could not be written"),
                }
            }
        }
    }

    /// Builds a root file system. Returns its size if it counts for the organization: one without packages is the
    /// operator's image, which all organizations share.
    async fn build_image(&self, on: &Usable, rootfs: &RootFs, org: OrgId) -> Result<Option<u64>, BuildError> {
        let images = &*on.node;
        images.make_image(rootfs).await?;
        if rootfs.packages.is_empty() {
            return Ok(None);
        }
        let bytes_max = self.bytes_left(on, rootfs, org).await.map_err(|error| {
            tracing::warn!(%error, "the root file systems of an organization could not be added up; retrying");
            BuildError::Busy
        })?;
        let origin = self.journal.origin();
        let authority = Authority::of(&origin.bytes(), origin).map_err(|error| {
            BuildError::Failed(format!("the certificates of the installers cannot be made: {error}"))
        })?;
        let certificates = authority.bundle(&self.network.extra_roots);
        if let Some(install) = images.begin_install(rootfs, origin.id(), &certificates, bytes_max).await? {
            self.install(install, authority).await?;
        }
        let stored = images.stored_rootfs(rootfs).await.unwrap_or_else(|fault| {
            tracing::warn!(%fault, "the size of a root file system could not be read: it does not count");
            None
        });
        Ok(stored.map(|stored| stored.bytes))
    }

    /// Returns how large a root file system of an organization may be on a node; `None` is unlimited. If less is left than
    /// the largest one may have, the longest unused ones of the organization are removed before, except those that a
    /// sandbox used within `ROOTFS_MIN_AGE`.
    ///
    /// Builds of one organization that run at the same time on a node do not count each other.
    async fn bytes_left(
        &self,
        on: &Usable,
        rootfs: &RootFs,
        org: OrgId,
    ) -> Result<Option<u64>, store::Error> {
        let Some(max) = self.limits.organization.image_bytes else { return Ok(None) };
        let left = async || {
            let taken = self.store.rootfs_bytes_beside(on.id, org, rootfs).await?;
            store::Result::Ok(max.saturating_sub(taken))
        };
        let before = left().await?;
        if before >= ROOTFS_BYTES_MAX {
            return Ok(Some(before));
        }
        let kept = max.saturating_sub(ROOTFS_BYTES_MAX);
        let surplus = self.store.surplus_rootfs(on.id, org, kept).await?;
        if let Err(unmade) = on.node.remove_unused_rootfs(&surplus).await {
            tracing::warn!(%unmade, "unused root file systems could not be removed");
        }
        self.record_stored_rootfs(on.id, &*on.node).await;
        left().await.map(Some)
    }

    /// Records which of the root file systems that count for organizations a node still has, and their last use.
    pub(crate) async fn record_stored_rootfs(&self, node: Uuid, images: &dyn Node) {
        let recorded = async {
            for rootfs in self.store.counted_rootfs(node).await? {
                match images.stored_rootfs(&rootfs).await {
                    Ok(stored) => self.store.record_rootfs_use(node, &rootfs, stored).await?,
                    Err(fault) => {
                        tracing::warn!(node.id = %node, %fault, "the use of root file systems is not known");
                        break;
                    }
                }
            }
            store::Result::Ok(())
        };
        if let Err(error) = recorded.await {
            tracing::warn!(%error, "the use of root file systems could not be recorded");
        }
    }

    /// Runs an installation behind its own egress proxy, which allows only the package registries.
    async fn install(&self, install: Install, authority: Authority) -> Result<(), BuildError> {
        let Install { egress, run } = install;
        let denied = Arc::new(Denied::default());
        let parts = Parts {
            org: None,
            connections: Arc::clone(&self.network.connections),
            policy: Policy::of_registries(&self.network.registries),
            secrets: Secrets::default(),
            dialer: self.network.dialer.clone(),
            log: Arc::clone(&denied) as _,
        };
        let proxy = Proxy::new(parts, CancellationToken::new());
        let installed = tokio::select! {
            installed = run => installed,
            never = without_end(Arc::clone(&proxy).serve(egress, authority)) => match never {},
        };
        proxy.stop();
        installed.map_err(|unmade| denied.beside(unmade))
    }
}

/// Serves the connections of an installation. When they end, its result is on the way.
async fn without_end(serve: impl Future<Output = ()>) -> Infallible {
    serve.await;
    pending().await
}

/// Denied connections of an installation, reported with its failure.
#[derive(Default)]
struct Denied(Mutex<BTreeSet<String>>);

#[async_trait]
impl Log for Denied {
    async fn write(&self, decisions: Vec<(Decision, u64)>) -> Result<(), Lost> {
        let mut denied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (Decision { host, port, verdict, .. }, _) in decisions {
            if let Verdict::Denied(reason) = verdict
                && denied.len() < ROOTFS_DENIED_MAX
            {
                denied.insert(format!("{host}:{port} ({})", reason.word()));
            }
        }
        Ok(())
    }
}

impl Denied {
    fn beside(&self, unmade: BuildError) -> BuildError {
        let denied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match unmade {
            BuildError::Failed(words) if !denied.is_empty() => {
                let places: Vec<_> = denied.iter().map(String::as_str).collect();
                BuildError::Failed(format!("{words}; denied connections: {}", places.join(", ")))
            }
            unmade => unmade,
        }
    }
}

/// Whether the root file system of a session's sandboxes is yet to be built: no node of this worker has it.
pub(crate) async fn lacks_rootfs(sandboxes: &Sandboxes, session: &Session) -> bool {
    let rootfs = rootfs_of(session, &sandboxes.default_image);
    match sandboxes.nodes.usable() {
        // The one of the host needs no build, and no call to a node agent.
        Ok(nodes) if !rootfs.is_host() => any_has(&nodes, &rootfs).await.is_ok_and(|(has, _)| !has),
        _ => false,
    }
}

/// Whether a node has a root file system, and the nodes that lack it. A node that does not answer matters only if no
/// other one has it.
async fn any_has(nodes: &[Usable], rootfs: &RootFs) -> Result<(bool, Vec<Uuid>), Fault> {
    let ask = async |one: &Usable| match nodes {
        [_] => one.node.has_rootfs(rootfs).await,
        _ => timeout(NODE_ROOTFS_TIMEOUT, one.node.has_rootfs(rootfs))
            .await
            .unwrap_or_else(|_| Err(Fault::Unavailable("a node does not answer".to_owned()))),
    };
    let (mut has, mut lacking, mut unknown) = (false, Vec::new(), None);
    for (one, answer) in nodes.iter().zip(join_all(nodes.iter().map(ask)).await) {
        match answer {
            Ok(true) => has = true,
            Ok(false) => lacking.push(one.id),
            Err(fault) => unknown = Some(fault),
        }
    }
    match unknown {
        Some(fault) if !has => Err(fault),
        _ => Ok((has, lacking)),
    }
}

/// Checks whether a session's root file system exists, and records in its log what it waits for.
pub(crate) async fn check_rootfs(
    sandboxes: &Sandboxes,
    fence: Fence,
    session: &Session,
) -> Result<RootfsStatus, Error> {
    let rootfs = rootfs_of(session, &sandboxes.default_image);
    // Without a provider, the error is reported when a sandbox is needed.
    let Some(nodes) = sandboxes.nodes.usable().ok().filter(|_| !rootfs.is_host()) else {
        return Ok(RootfsStatus::Ready);
    };
    let after = session.head.saturating_sub(TOLD_WITHIN);
    let mut told = Told::default();
    let mut take = |event: Event| told.take(&event);
    let read = sandboxes.journal.each(fence.org, fence.session, after, &BUILD_EVENTS, &mut take).await;
    read.map_err(|error| Error::LogUnavailable(error.to_string()))?;
    let asked = any_has(&nodes, &rootfs).await;
    let (is_ready, lacking) = asked.map_err(|fault| Error::Unavailable(fault.to_string()))?;
    // The session may be placed on any of them; the first that has it is enough to begin.
    let mut build = None;
    for node in lacking {
        let requested = sandboxes.store.request_rootfs_on_node(node, fence.org, &rootfs).await?;
        if build.is_none() || has_failed(build.as_ref()) {
            build = requested;
        }
    }
    if is_ready {
        if let Some(began) = told.began {
            let took = sandboxes.journal.origin().now() - began;
            let duration_ms = u64::try_from(took.whole_milliseconds()).unwrap_or(0);
            record(sandboxes, fence, vec![Body::EnvironmentBuildCompleted { duration_ms }]).await?;
        }
        return Ok(RootfsStatus::Ready);
    }
    let mut bodies = Vec::new();
    if told.began.is_none() {
        let RootFs { image, packages } = rootfs;
        bodies.push(Body::EnvironmentBuildStarted { image, packages });
    }
    let status = match build {
        Some(Build { state: State::Failed, error, .. }) => {
            let message = error.unwrap_or_else(|| "the build failed".to_owned());
            bodies.push(Body::EnvironmentBuildFailed { message: message.clone() });
            RootfsStatus::Failed(message)
        }
        Some(Build { log, .. }) => {
            let step = log.lines().rev().find_map(|line| line.strip_prefix(STEP)).map(str::to_owned);
            bodies.extend(
                step.filter(|step| told.step.as_ref() != Some(step))
                    .map(|step| Body::EnvironmentBuildProgress { step }),
            );
            RootfsStatus::Building
        }
        None => {
            let is_told = told.step.as_deref() == Some(NO_SHARE);
            bodies.extend((!is_told).then(|| Body::EnvironmentBuildProgress { step: NO_SHARE.to_owned() }));
            RootfsStatus::Building
        }
    };
    record(sandboxes, fence, bodies).await?;
    Ok(status)
}

fn has_failed(build: Option<&Build>) -> bool {
    build.is_some_and(|build| build.state == State::Failed)
}

/// Progress of a build that its organization must wait for.
const NO_SHARE: &str = "waits: the organization has too many builds on this node, open or of the last hour";

/// Start and last step of the current build, from the log.
#[derive(Default)]
struct Told {
    began: Option<crate::base::Timestamp>,
    step: Option<String>,
}

impl Told {
    fn take(&mut self, event: &Event) {
        match &event.draft.body {
            Body::EnvironmentBuildStarted { .. } => *self = Self { began: Some(event.ts), step: None },
            Body::EnvironmentBuildProgress { step } => self.step = Some(step.clone()),
            Body::EnvironmentBuildCompleted { .. } | Body::EnvironmentBuildFailed { .. } => {
                *self = Self::default();
            }
            _ => {}
        }
    }
}

async fn record(sandboxes: &Sandboxes, fence: Fence, bodies: Vec<Body>) -> Result<(), Error> {
    if bodies.is_empty() {
        return Ok(());
    }
    let draft = |body: Body| Draft {
        id: sandboxes.journal.origin().id(),
        actor: Actor::system(),
        level: body.level(),
        turn_id: None,
        step_id: None,
        refs: serde_json::Map::new(),
        body,
    };
    match sandboxes.journal.record(fence, None, bodies.into_iter().map(draft).collect()).await {
        Ok(_) => Ok(()),
        Err(Halted::Stale | Halted::Moved) => Err(Error::Stale),
        Err(Halted::Failed(error)) => Err(Error::LogUnavailable(error.to_string())),
    }
}
