//! One session's sandbox under one lease: attach, create, checkpoint, rotate, terminate, record a loss.
//!
//! Called by `leased_sandbox` for a turn or an operation and by `idle` between turns. Every change of the
//! sandbox is in the log before it is in its row, and a sandbox is in the log before anything runs in it:
//! after a takeover the log shows what can have started.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{Either, select};

use super::{Error, Sandboxes, checkpoints::blobs_of_session, spec::SandboxSpec};
use crate::{
    base::{
        backoff::Backoff,
        limit::{ROTATION_RETRY, SANDBOX_BACKOFF, SANDBOX_START_ATTEMPTS_MAX},
    },
    domain::{
        Actor, Body, CheckpointId, SandboxId, Session, TurnId, environment::Life, event::Draft,
        exit::PreparationFailure,
    },
    journal::Halted,
    sandbox::{Fault, Files, Sandbox, SandboxFence, Spec, checkpoint},
    store::{
        checkpoint::Checkpoint,
        notification::Notification,
        record::Fence,
        sandbox::{EndedSandboxes, Liveness, NewSandbox, ROTATED},
    },
};

/// Error if the provider cannot enforce a size that the environment sets.
const NO_SIZE: &str = "the environment names `cpus` or `memory`, and this worker cannot hold a sandbox to them: \
    it is not root, and no cgroup is delegated to it";
const BACKOFF: Backoff = Backoff { first: SANDBOX_BACKOFF.0, longest: SANDBOX_BACKOFF.1 };

impl Sandboxes {
    /// The sandbox of a session between turns.
    pub(crate) fn session(&self, fence: Fence, session: &Session) -> SandboxSession {
        let spec = SandboxSpec::of(session, self);
        SandboxSession { sandboxes: self.clone(), fence, turn: None, spec }
    }
}

/// Manager of one session's sandbox.
pub(crate) struct SandboxSession {
    pub sandboxes: Sandboxes,
    pub fence: Fence,
    /// The turn that uses the sandbox; `None` between turns.
    pub turn: Option<TurnId>,
    /// Properties of a new sandbox.
    pub spec: SandboxSpec,
}

/// An attached sandbox and its times of rotation and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    pub id: SandboxId,
    /// Time from which it is replaced as soon as no call is in progress in it.
    pub rotates_at: Option<Instant>,
    /// Time at which it ends, even with calls in progress.
    pub ends_at: Option<Instant>,
}

impl Attached {
    pub(crate) fn new(id: SandboxId, life: Option<Life>) -> Self {
        let at = |left: fn(&Life) -> Duration| Some(Instant::now() + left(&life?));
        Self { id, rotates_at: at(|life| life.rotates_in), ends_at: at(|life| life.ends_in) }
    }
}

/// Place of a new sandbox among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind the sessions that asked before.
    InQueue,
    /// That of the sandbox that it replaces: before all others.
    Kept,
}

/// Origin of the files of a new sandbox.
struct Filled {
    restored: Option<(Checkpoint, Duration)>,
    files: Files,
}

impl SandboxSession {
    pub(crate) fn provider(&self) -> Result<Arc<dyn Sandbox>, Error> {
        Ok(self.sandboxes.provider.clone().map_err(Error::Unavailable)?)
    }

    pub(crate) fn sandbox_fence(&self, sandbox: SandboxId) -> SandboxFence {
        let Fence { org, session, epoch, .. } = self.fence;
        SandboxFence { org, session, sandbox, epoch }
    }

    /// Attaches to the sandbox recorded in the database; `None` when there is none.
    pub(crate) async fn attach_existing(&self, sandbox: &dyn Sandbox) -> Result<Option<Attached>, Error> {
        let Fence { org, session, .. } = self.fence;
        let Some(live) = self.sandboxes.store.live_sandbox(org, session).await? else {
            return Ok(None);
        };
        let id = live.sandbox;
        if live.node != self.sandboxes.node {
            // The job was claimed from another node, whose heartbeats stopped for too long.
            self.record_loss(id, "its node is gone").await?;
            return Ok(None);
        }
        if let Liveness::Ending(reason) = &live.state {
            self.finish_termination(sandbox, id, reason, Actor::system()).await?;
            return Ok(None);
        }
        match sandbox.attach(self.sandbox_fence(id)).await {
            Ok(()) if !live.is_announced => {
                // The worker that created it died before it recorded the sandbox in its row.
                self.announce(id, vec![Body::SandboxCreated { sandbox_id: id, duration_ms: 0 }]).await?;
                Ok(Some(Attached::new(id, live.life)))
            }
            Ok(()) => {
                if live.state == Liveness::Frozen {
                    self.record_thaw(id).await?;
                }
                Ok(Some(Attached::new(id, live.life)))
            }
            Err(fault)
                if !live.is_announced
                    && !matches!(fault, Fault::Stale)
                    && !self.was_announced(id).await? =>
            {
                // The worker that created it died before it recorded the sandbox: nothing ran in it. If it
                // exists and is unusable, it must be removed before the next one is created.
                if !matches!(fault, Fault::Gone) {
                    let destroyed = sandbox.destroy(id).await;
                    destroyed.map_err(|fault| Error::Unavailable(fault.to_string()))?;
                }
                self.end_row(id).await?;
                Ok(None)
            }
            Err(fault) => self
                .destroy_unresponsive(sandbox, id, fault, "it was gone when its session continued")
                .await
                .map(|()| None),
        }
    }

    /// Records a sandbox that did not answer as lost. Destroys it first, so that no two exist at a time.
    pub(crate) async fn destroy_unresponsive(
        &self,
        sandbox: &dyn Sandbox,
        id: SandboxId,
        fault: Fault,
        gone: &str,
    ) -> Result<(), Error> {
        match fault {
            Fault::Stale => Err(Error::Stale),
            Fault::Gone => self.record_loss(id, gone).await,
            Fault::NotFound(_) | Fault::Refused(_) | Fault::Unavailable(_) => {
                sandbox.destroy(id).await.map_err(|fault| Error::Unavailable(fault.to_string()))?;
                self.record_loss(id, &fault.to_string()).await
            }
        }
    }

    /// Creates a sandbox with the session's files, with bounded retries.
    pub(crate) async fn create(&self, sandbox: &dyn Sandbox, place: Place) -> Result<Attached, Error> {
        let Fence { org, session, .. } = self.fence;
        if self.spec.names_size && !sandbox.capabilities().enforces_size {
            return Err(Error::Unavailable(NO_SIZE.to_owned()));
        }
        let store = &self.sandboxes.store;
        let (past, checkpoints, isolated) = tokio::join!(
            store.past_sandboxes(org, session),
            store.checkpoints(org, session),
            self.check_isolation(sandbox.capabilities())
        );
        let (mut past, checkpoints) = (past?, checkpoints?);
        isolated?;
        let life = self.spec.life;
        let started = Instant::now();
        for attempt in 1.. {
            let id: SandboxId = self.sandboxes.journal.origin().id();
            let new = NewSandbox {
                org,
                session,
                sandbox: id,
                node: self.sandboxes.node,
                life,
                size: self.spec.limits.into(),
                first_check_after: life
                    .map_or(Duration::MAX, |life| life.rotates_in)
                    .min(self.sandboxes.idle.freeze_after),
            };
            self.admit(&new, place).await?;
            self.sandboxes.notifications.send(Notification::List(org));
            let spec = Spec {
                sandbox: id,
                org,
                session,
                limits: self.spec.limits,
                rootfs: self.spec.rootfs.clone(),
                env: self.spec.env.clone(),
                previous: past.sandboxes.clone(),
                restores: !checkpoints.is_empty(),
            };
            match self.fill(sandbox, &spec, &checkpoints).await {
                Ok(filled) => {
                    let duration_ms = started.elapsed().as_millis() as u64;
                    self.announce(id, created(id, duration_ms, &filled, &past)).await?;
                    return Ok(Attached::new(id, life));
                }
                // The row remains: another worker may already use the sandbox.
                Err(Fault::Stale) => return Err(Error::Stale),
                Err(fault) => {
                    self.end_row(id).await?;
                    // It may still have been the last one that used the disk.
                    past.sandboxes.push(id);
                    tracing::warn!(session.id = %session, attempt, %fault, "a sandbox did not start");
                    if attempt >= SANDBOX_START_ATTEMPTS_MAX {
                        return Err(Error::Unavailable(fault.to_string()));
                    }
                    tokio::time::sleep(BACKOFF.delay(attempt, self.sandboxes.journal.origin())).await;
                }
            }
        }
        unreachable!("the loop above only ends by returning")
    }

    /// Creates the sandbox and restores its files from the newest checkpoint whose blob exists. A failure
    /// leaves no sandbox, except for `Stale`: then another worker owns it.
    async fn fill(&self, sandbox: &dyn Sandbox, spec: &Spec, from: &[Checkpoint]) -> Result<Filled, Fault> {
        let mut spec = spec.clone();
        let mut from = from.iter();
        let session = self.blobs_of_session();
        loop {
            spec.restores = from.len() > 0;
            let next = from.next();
            let fetch = async {
                match next {
                    Some(next) => {
                        Some(checkpoint::fetch(&self.sandboxes.blobs, &session, &next.digest).await)
                    }
                    None => None,
                }
            };
            // Fetched while the sandbox is created; loaded only after all bytes have arrived.
            let create = sandbox.create(&spec, self.fence.epoch);
            let (files, fetched) = match select(pin!(create), pin!(fetch)).await {
                Either::Left((files, _)) if files != Ok(Files::Fresh) => (files?, None),
                Either::Left((files, fetch)) => (files?, fetch.await),
                Either::Right((fetched, create)) => (create.await?, fetched),
            };
            let Some((checkpoint, fetched)) = next.zip(fetched).filter(|_| files == Files::Fresh) else {
                return Ok(Filled { restored: None, files });
            };
            let started = Instant::now();
            let loaded =
                async { checkpoint::load(sandbox, self.sandbox_fence(spec.sandbox), fetched?).await };
            match loaded.await {
                Ok(()) => {
                    return Ok(Filled { restored: Some((checkpoint.clone(), started.elapsed())), files });
                }
                // The worker that owns it now destroys it, because the restore is incomplete.
                Err(Fault::Stale) => return Err(Fault::Stale),
                Err(fault) => {
                    sandbox.destroy(spec.sandbox).await?;
                    if !matches!(fault, Fault::NotFound(_)) {
                        return Err(fault);
                    }
                    metrics::counter!("sojourn_blobs_lost_total", "kind" => "checkpoint").increment(1);
                    tracing::error!(checkpoint.id = %checkpoint.checkpoint, %fault, "a checkpoint cannot be restored");
                }
            }
        }
    }

    /// Takes a checkpoint of the sandbox's files; returns the newest one if it has the same files.
    pub(crate) async fn checkpoint(
        &self,
        sandbox: &dyn Sandbox,
        id: SandboxId,
    ) -> Result<CheckpointId, Error> {
        let Fence { org, session, .. } = self.fence;
        let (store, blobs) = (&self.sandboxes.store, &self.sandboxes.blobs);
        if blobs.is_local() && self.sandboxes.disk.is_low() {
            return Err(Error::Unavailable("the disk of the node is nearly full".to_owned()));
        }
        let started = Instant::now();
        let latest = store.latest_checkpoint(org, session).await?;
        let known = latest.as_ref().map(|latest| latest.digest.as_str());
        let saved =
            checkpoint::save(sandbox, self.sandbox_fence(id), blobs, &self.blobs_of_session(), known).await;
        let saved = saved.map_err(|fault| match fault {
            Fault::Stale => Error::Stale,
            fault => Error::Unavailable(fault.to_string()),
        })?;
        if let Some(latest) = latest.filter(|latest| latest.digest == saved.digest) {
            return Ok(latest.checkpoint);
        }
        let checkpoint_id: CheckpointId = self.sandboxes.journal.origin().id();
        let added = store.add_checkpoint(self.fence, checkpoint_id, id, &saved.digest, saved.bytes).await;
        if !added? {
            return Err(Error::Stale);
        }
        let duration_ms = started.elapsed().as_millis() as u64;
        let body =
            Body::SandboxCheckpointCreated { sandbox_id: id, checkpoint_id, bytes: saved.bytes, duration_ms };
        self.record(vec![body]).await?;
        self.remove_old_checkpoints().await;
        Ok(checkpoint_id)
    }

    /// Removes the checkpoints that newer ones have replaced.
    async fn remove_old_checkpoints(&self) {
        let Fence { org, session, .. } = self.fence;
        let removed = self.sandboxes.remove_old_checkpoints(org, session).await;
        if let Err(error) = removed {
            tracing::warn!(session.id = %session, error, "old checkpoints could not be removed; retried after the next checkpoint");
        }
    }

    /// Replaces a sandbox that expires soon. The new one reuses its disk; the checkpoint is the fallback.
    pub(crate) async fn rotate(&self, sandbox: &dyn Sandbox, old: &Attached) -> Result<Attached, Error> {
        let started = Instant::now();
        let from = old.id;
        self.record(vec![Body::SandboxRotationStarted { sandbox_id: from }]).await?;
        let checkpoint = match self.checkpoint(sandbox, from).await {
            Ok(checkpoint) => Some(checkpoint),
            Err(Error::Unavailable(reason)) => {
                self.record(vec![Body::SandboxRotationFailed { sandbox_id: from, reason, failed: false }])
                    .await?;
                if old.ends_at.is_some_and(|end| Instant::now() < end) {
                    // It stays in use until its end; the rotation is retried meanwhile.
                    return Ok(Attached { rotates_at: Some(Instant::now() + ROTATION_RETRY), ..*old });
                }
                None
            }
            Err(fault @ (Error::Stale | Error::LogUnavailable(_) | Error::PreparationFailure(..))) => {
                return Err(fault);
            }
        };
        self.terminate(sandbox, from, (ROTATED, Actor::system()), checkpoint).await?;
        match self.create(sandbox, Place::Kept).await {
            Ok(new) => {
                let duration_ms = started.elapsed().as_millis() as u64;
                let body =
                    Body::SandboxRotationCompleted { from_sandbox_id: from, sandbox_id: new.id, duration_ms };
                self.record(vec![body]).await?;
                Ok(new)
            }
            Err(
                Error::Unavailable(reason)
                | Error::PreparationFailure(PreparationFailure::NotAdmitted, reason),
            ) => {
                let body = Body::SandboxRotationFailed {
                    sandbox_id: from,
                    reason: reason.clone(),
                    failed: !self.spec.has_agent,
                };
                self.record(vec![body]).await?;
                Err(Error::Unavailable(reason))
            }
            Err(fault @ (Error::Stale | Error::LogUnavailable(_) | Error::PreparationFailure(..))) => {
                Err(fault)
            }
        }
    }

    /// Removes a sandbox after its checkpoint, and its disk unless it is rotated. Records the reason and the
    /// actor.
    pub(crate) async fn terminate(
        &self,
        sandbox: &dyn Sandbox,
        id: SandboxId,
        (reason, actor): (&str, Actor),
        checkpoint: Option<CheckpointId>,
    ) -> Result<(), Error> {
        let ending = self.sandboxes.store.record_ending(self.fence, id, reason, checkpoint).await;
        if !ending? {
            return Err(Error::Stale);
        }
        self.finish_termination(sandbox, id, reason, actor).await
    }

    /// Completes the removal of a sandbox that is `Ending`, also one that another worker began.
    pub(crate) async fn finish_termination(
        &self,
        sandbox: &dyn Sandbox,
        id: SandboxId,
        reason: &str,
        actor: Actor,
    ) -> Result<(), Error> {
        self.record_as(actor, vec![Body::SandboxTerminated { sandbox_id: id, reason: reason.to_owned() }])
            .await?;
        sandbox.destroy(id).await.map_err(|fault| Error::Unavailable(fault.to_string()))?;
        self.end_row(id).await?;
        if reason == ROTATED {
            return Ok(());
        }
        if let Err(fault) = sandbox.erase(self.fence.org, self.fence.session).await {
            tracing::warn!(session.id = %self.fence.session, %fault, "the disk of a removed sandbox could not be removed; the reaper retries");
        }
        Ok(())
    }

    /// Records in the row, then in the log, that a frozen sandbox was thawed. From the change of the row on,
    /// the checkpoint of the freeze is out of date.
    pub(crate) async fn record_thaw(&self, id: SandboxId) -> Result<(), Error> {
        let store = &self.sandboxes.store;
        if !store.record_thawed(self.fence, id, self.spec.limits.into()).await? {
            return Err(Error::Stale);
        }
        let Fence { org, session, .. } = self.fence;
        store.expedite_idle(org, session, self.sandboxes.idle.freeze_after).await?;
        self.record(vec![Body::SandboxThawed { sandbox_id: id }]).await
    }

    /// Whether the log contains the creation of the sandbox: the worker that created it may have died
    /// between the log and the row.
    async fn was_announced(&self, id: SandboxId) -> Result<bool, Error> {
        let says = |body: &Body| matches!(body, Body::SandboxCreated { sandbox_id, .. } if *sandbox_id == id);
        let found = self.sandboxes.journal.newest(
            self.fence.org,
            self.fence.session,
            &["sandbox.created"],
            |event| says(&event.draft.body).then_some(()),
        );
        let found = found.await.map_err(|error| Error::LogUnavailable(error.to_string()))?;
        Ok(found.is_some())
    }

    /// Records the creation in the log, then in the row, before anything runs in the sandbox.
    async fn announce(&self, id: SandboxId, bodies: Vec<Body>) -> Result<(), Error> {
        self.record(bodies).await?;
        self.sandboxes.store.record_announced(self.fence, id).await?;
        self.sandboxes.notifications.send(Notification::List(self.fence.org));
        Ok(())
    }

    /// Records the loss of a sandbox before its row ends: without a row, the log has the reason.
    pub(crate) async fn record_loss(&self, id: SandboxId, reason: &str) -> Result<(), Error> {
        self.record(vec![Body::SandboxLost { sandbox_id: id, reason: reason.to_owned() }]).await?;
        self.end_row(id).await
    }

    async fn end_row(&self, id: SandboxId) -> Result<(), Error> {
        self.sandboxes.store.end_sandbox(self.fence.org, self.fence.session, id).await.map_err(Error::from)
    }

    pub(crate) async fn record(&self, bodies: Vec<Body>) -> Result<(), Error> {
        self.record_as(Actor::system(), bodies).await
    }

    async fn record_as(&self, actor: Actor, bodies: Vec<Body>) -> Result<(), Error> {
        let draft = |body: Body| Draft {
            id: self.sandboxes.journal.origin().id(),
            actor: actor.clone(),
            level: body.level(),
            turn_id: self.turn,
            step_id: None,
            refs: serde_json::Map::new(),
            body,
        };
        let drafts = bodies.into_iter().map(draft).collect();
        match self.sandboxes.journal.record(self.fence, self.turn, drafts).await {
            Ok(_) => Ok(()),
            Err(Halted::Stale | Halted::Moved) => Err(Error::Stale),
            Err(Halted::Failed(error)) => Err(Error::LogUnavailable(error.to_string())),
        }
    }

    fn blobs_of_session(&self) -> String {
        blobs_of_session(self.fence.org, self.fence.session)
    }
}

/// Events of a new sandbox: creation, restored checkpoint, lost files.
fn created(id: SandboxId, duration_ms: u64, filled: &Filled, past: &EndedSandboxes) -> Vec<Body> {
    let mut bodies = vec![Body::SandboxCreated { sandbox_id: id, duration_ms }];
    if let Some((checkpoint, took)) = &filled.restored {
        bodies.push(Body::SandboxCheckpointRestored {
            sandbox_id: id,
            checkpoint_id: checkpoint.checkpoint,
            duration_ms: took.as_millis() as u64,
        });
    }
    let restored = filled.restored.as_ref().map(|(checkpoint, _)| checkpoint);
    let has_all = filled.files == Files::Kept
        || !past.was_used
        || restored.is_some_and(|restored| past.checkpoint == Some(restored.checkpoint));
    if !has_all {
        bodies.push(Body::SandboxFilesLost {
            sandbox_id: id,
            since: restored.map(|checkpoint| checkpoint.created_at),
        });
    }
    bodies
}
