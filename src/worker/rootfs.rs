//! What sessions' sandboxes are made on: asked for before a turn starts, made beside all turns.
//!
//! `make_rootfs` runs once in each worker and makes what the rows of its node ask for;
//! `stand` is asked by `slot` and `operate` before they use a sandbox. A session that has to wait
//! gives its job back and looks again; what it waits for is in its log. What is there is
//! found on the disk: a row asks and tells, nothing more.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::{StreamExt, stream::FuturesUnordered};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{Worker, sandbox_spec::rootfs_of};
use crate::{
    base::limit::{ROOTFS_DENIED_MAX, ROOTFS_LOG_BEAT, ROOTFS_POLL, ROOTFS_TOGETHER_MAX, SANDBOX_BACKOFF},
    domain::{
        Actor, Body, Event, Session,
        event::Draft,
        operation::{Answer, Failure},
        rootfs::{Build, RootFs, State},
    },
    egress::{Authority, Decision, Log, Lost, Parts, Policy, Proxy, Secrets, Verdict},
    journal::Halted,
    queue::Lease,
    sandbox::local::image::{Images, Install, Unmade},
    store::{self, notification::Notification, record::Fence},
};

/// The code of a turn whose root file system could not be made.
pub(super) const BUILD_FAILED: &str = "environment_build_failed";
/// In front of a line that tells of another step.
const STEP: &str = "== ";
/// How far back in a log it is looked for what was told of a build.
const TOLD_WITHIN: i64 = 200;

/// Whether a session's sandboxes can be made.
pub(super) enum RootfsStatus {
    Ready,
    /// It is being made: look again.
    Waits,
    /// It could not be made, and why.
    Failed(String),
}

/// Why it could not be looked at.
pub(super) enum Unseen {
    Stale,
    Away(String),
}

impl From<store::Error> for Unseen {
    fn from(error: store::Error) -> Self {
        Self::Away(error.to_string())
    }
}

impl Worker {
    /// Makes what is wanted on this node until `stop`.
    pub(super) async fn make_rootfs(self, stop: CancellationToken) {
        let Some(images) = self.images.clone() else { return };
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
                    for rootfs in self.wanted().await {
                        let key = rootfs.key();
                        if names.len() < ROOTFS_TOGETHER_MAX && names.insert(key.clone()) {
                            let (worker, images) = (&self, &images);
                            making.push(async move {
                                worker.make_one(images, &rootfs).await;
                                key
                            });
                        }
                    }
                }
            }
        }
        // What was under way is begun anew by the next process.
        drop(making);
        if let Err(unmade) = images.tidy().await {
            tracing::warn!(%unmade, "what was left of root file systems could not be removed");
        }
    }

    /// What becomes of the job of callers who wait for a sandbox that cannot be made; `None` when
    /// it can be.
    pub(super) async fn hold_back(
        &self,
        lease: &Lease,
        session: &Session,
    ) -> Result<Option<&'static str>, store::Error> {
        match check(self, lease.fence(), session).await {
            Ok(RootfsStatus::Ready) => Ok(None),
            Ok(RootfsStatus::Waits) => lease.release(ROOTFS_POLL).await.map(|()| Some("waits")),
            Ok(RootfsStatus::Failed(message)) => {
                let message = format!("{BUILD_FAILED}: {message}");
                self.refuse_all(lease, Failure::SandboxUnavailable, message).await.map(Some)
            }
            Err(Unseen::Stale) => Ok(Some("the lease was lost")),
            Err(Unseen::Away(reason)) => {
                tracing::warn!(session.id = %session.id, reason, "it cannot be looked what a sandbox is made on");
                lease.release(SANDBOX_BACKOFF.1).await.map(|()| Some("waits"))
            }
        }
    }

    /// Answers everything that callers wait for with one failure.
    pub(super) async fn refuse_all(
        &self,
        lease: &Lease,
        code: Failure,
        message: String,
    ) -> Result<&'static str, store::Error> {
        let fence = lease.fence();
        let failed = Answer::Failed { code, message };
        for open in self.store.open_operations(fence.org, fence.session).await? {
            self.store.answer_operation(fence, open.id, &failed).await?;
        }
        self.notifications.send(Notification::Log(fence.session));
        lease.finish().await.map(|()| "refused")
    }

    async fn wanted(&self) -> Vec<RootFs> {
        let wanted = self.store.wanted_rootfs(self.node, 4 * ROOTFS_TOGETHER_MAX as i64).await;
        wanted.unwrap_or_else(|error| {
            tracing::warn!(%error, "what root file systems are wanted could not be read");
            Vec::new()
        })
    }

    async fn make_one(&self, images: &Images, rootfs: &RootFs) {
        let made = tokio::select! {
            made = self.make_rootfs_of(images, rootfs) => made,
            () = self.tell(images, rootfs) => unreachable!("it is told for ever"),
        };
        let noted = match &made {
            // Another process of this node will say it.
            Err(Unmade::Busy) => return,
            Err(Unmade::Failed(reason)) => {
                tracing::warn!(image = rootfs.image, reason, "a root file system could not be made");
                self.store.built_rootfs(self.node, rootfs, Some(reason)).await
            }
            Ok(()) => self.store.built_rootfs(self.node, rootfs, None).await,
        };
        if let Err(error) = noted {
            tracing::warn!(%error, "what became of a root file system could not be noted; it is looked at again");
        }
    }

    /// Writes down what its makers say, for ever.
    async fn tell(&self, images: &Images, rootfs: &RootFs) {
        let (mut beats, mut told) = (interval(ROOTFS_LOG_BEAT), None);
        loop {
            beats.tick().await;
            let said = images.said(rootfs);
            if told.as_ref() != Some(&said) {
                match self.store.building_rootfs(self.node, rootfs, &said).await {
                    Ok(()) => told = Some(said),
                    Err(error) => tracing::debug!(%error, "the log of a build could not be written"),
                }
            }
        }
    }

    async fn make_rootfs_of(&self, images: &Images, rootfs: &RootFs) -> Result<(), Unmade> {
        images.make_image(rootfs).await?;
        if rootfs.packages.is_empty() {
            return Ok(());
        }
        let origin = self.journal.origin();
        let Some(install) = images.begin_install(rootfs, origin.id()).await? else { return Ok(()) };
        self.install(install).await
    }

    /// Runs an installation behind a proxy of its own, which lets it to the registries and
    /// to nothing else.
    async fn install(&self, install: Install) -> Result<(), Unmade> {
        let origin = self.journal.origin();
        let egress_socket = install.egress_socket().await?;
        let authority = Authority::open(&egress_socket.private, origin)?;
        egress_socket.show("certificates.pem", &authority.bundle(&self.network.extra_roots))?;
        let denied = Arc::new(Denied::default());
        let parts = Parts {
            policy: Policy::of_registries(&self.network.registries),
            secrets: Secrets::default(),
            dialer: self.network.dialer.clone(),
            log: Arc::clone(&denied) as _,
        };
        let proxy = Proxy::new(parts, CancellationToken::new());
        let installed = tokio::select! {
            installed = install.run() => installed,
            () = Arc::clone(&proxy).serve(egress_socket.listener, authority) => unreachable!("nobody stops it"),
        };
        proxy.stop();
        installed.map_err(|unmade| denied.beside(unmade))
    }
}

/// What an installation was kept from: said with its failure.
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
    fn beside(&self, unmade: Unmade) -> Unmade {
        let denied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match unmade {
            Unmade::Failed(words) if !denied.is_empty() => {
                let places: Vec<_> = denied.iter().map(String::as_str).collect();
                Unmade::Failed(format!("{words}; it was kept from {}", places.join(", ")))
            }
            unmade => unmade,
        }
    }
}

/// Whether a session's sandboxes can be made; says in its log what it waits for.
pub(super) async fn check(worker: &Worker, fence: Fence, session: &Session) -> Result<RootfsStatus, Unseen> {
    let rootfs = rootfs_of(session, &worker.default_image);
    // Without sandboxes it is said why when one is needed.
    let Some(images) = worker.images.as_ref().filter(|_| !rootfs.is_host()) else {
        return Ok(RootfsStatus::Ready);
    };
    let log = worker.journal.log(fence.org, fence.session, session.head.saturating_sub(TOLD_WITHIN)).await;
    let log = log.map_err(|error| Unseen::Away(error.to_string()))?;
    let told = Told::of(&log);
    if images.is_ready(&rootfs) {
        if let Some(began) = told.began {
            let took = worker.journal.origin().now() - began;
            let duration_ms = u64::try_from(took.whole_milliseconds()).unwrap_or(0);
            say(worker, fence, vec![Body::EnvironmentBuildCompleted { duration_ms }]).await?;
        }
        return Ok(RootfsStatus::Ready);
    }
    let build = worker.store.need_rootfs(worker.node, fence.org, &rootfs).await?;
    let mut bodies = Vec::new();
    if told.began.is_none() {
        let RootFs { image, packages } = rootfs;
        bodies.push(Body::EnvironmentBuildStarted { image, packages });
    }
    let status = match build {
        Some(Build { state: State::Failed, error, .. }) => {
            let message = error.unwrap_or_else(|| "it could not be made".to_owned());
            bodies.push(Body::EnvironmentBuildFailed { message: message.clone() });
            RootfsStatus::Failed(message)
        }
        Some(Build { log, .. }) => {
            let step = log.lines().rev().find_map(|line| line.strip_prefix(STEP)).map(str::to_owned);
            bodies.extend(
                step.filter(|step| told.step.as_ref() != Some(step))
                    .map(|step| Body::EnvironmentBuildProgress { step }),
            );
            RootfsStatus::Waits
        }
        None => RootfsStatus::Waits,
    };
    say(worker, fence, bodies).await?;
    Ok(status)
}

/// What a log has told of the build that goes on.
#[derive(Default)]
struct Told {
    began: Option<crate::base::Timestamp>,
    step: Option<String>,
}

impl Told {
    fn of(log: &[Event]) -> Self {
        let mut told = Self::default();
        for event in log {
            match &event.draft.body {
                Body::EnvironmentBuildStarted { .. } => told = Self { began: Some(event.ts), step: None },
                Body::EnvironmentBuildProgress { step } => told.step = Some(step.clone()),
                Body::EnvironmentBuildCompleted { .. } | Body::EnvironmentBuildFailed { .. } => {
                    told = Self::default();
                }
                _ => {}
            }
        }
        told
    }
}

async fn say(worker: &Worker, fence: Fence, bodies: Vec<Body>) -> Result<(), Unseen> {
    if bodies.is_empty() {
        return Ok(());
    }
    let draft = |body: Body| Draft {
        id: worker.journal.origin().id(),
        actor: Actor::system(),
        level: body.level(),
        turn_id: None,
        step_id: None,
        refs: serde_json::Map::new(),
        body,
    };
    match worker.journal.record(fence, None, bodies.into_iter().map(draft).collect()).await {
        Ok(_) => Ok(()),
        Err(Halted::Stale | Halted::Moved) => Err(Unseen::Stale),
        Err(Halted::Failed(error)) => Err(Unseen::Away(error.to_string())),
    }
}
