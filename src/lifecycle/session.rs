//! One session's sandbox under one lease: attach, create, checkpoint, rotate, terminate, record a loss.
//!
//! Called by `leased_sandbox` for a turn or an operation and by `idle` between turns. Every change of the
//! sandbox is in the log before it is in its row, and a sandbox is in the log before anything runs in it:
//! after a takeover the log shows what can have started.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{
    Error, Sandboxes,
    checkpoints::blobs_of_session,
    nodes::{NODE_SILENT, NodeState},
    spec::SandboxSpec,
};
use crate::{
    base::limit::ROTATION_RETRY,
    domain::{
        Actor, Body, CheckpointId, SandboxId, Session, TurnId, environment::Life, event::Draft,
        exit::PreparationFailure,
    },
    journal::Halted,
    sandbox::{Fault, Sandbox, SandboxFence, checkpoint},
    store::{
        notification::Notification,
        record::Fence,
        sandbox::{Liveness, ROTATED},
    },
};

/// Reason of a loss.
pub(super) const NODE_GONE: &str = "its node is gone";

impl Sandboxes {
    /// The sandbox of a session between turns.
    pub(crate) fn session(&self, fence: Fence, session: &Session) -> SandboxSession {
        let spec = SandboxSpec::of(session, self);
        SandboxSession { sandboxes: self.clone(), fence, turn: None, is_between_turns: true, spec }
    }
}

/// Manager of one session's sandbox.
pub(crate) struct SandboxSession {
    pub sandboxes: Sandboxes,
    pub fence: Fence,
    /// The turn that uses the sandbox; `None` between turns.
    pub turn: Option<TurnId>,
    /// Whether nobody uses it now: neither a turn nor an operation.
    pub is_between_turns: bool,
    /// Properties of a new sandbox.
    pub spec: SandboxSpec,
}

/// An attached sandbox and its times of rotation and end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    pub id: SandboxId,
    pub node: Uuid,
    /// Time from which it is replaced as soon as no call is in progress in it.
    pub rotates_at: Option<Instant>,
    /// Time at which it ends, even with calls in progress.
    pub ends_at: Option<Instant>,
}

impl Attached {
    pub(crate) fn new(id: SandboxId, node: Uuid, life: Option<Life>) -> Self {
        let at = |left: fn(&Life) -> Duration| Some(Instant::now() + left(&life?));
        Self { id, node, rotates_at: at(|life| life.rotates_in), ends_at: at(|life| life.ends_in) }
    }
}

/// Place of a new sandbox among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind the sessions that asked before.
    InQueue,
    /// That of the sandbox that it replaces on this node: before all others.
    Kept(Uuid),
}

impl SandboxSession {
    pub(crate) fn sandbox_fence(&self, sandbox: SandboxId) -> SandboxFence {
        let Fence { org, session, epoch, .. } = self.fence;
        SandboxFence { org, session, sandbox, epoch }
    }

    /// Attaches to the sandbox recorded in the database; `None` when there is none.
    pub(crate) async fn attach_existing(&self) -> Result<Option<Attached>, Error> {
        let Fence { org, session, .. } = self.fence;
        let Some(live) = self.sandboxes.store.live_sandbox(org, session).await? else {
            return Ok(None);
        };
        let (id, node) = (live.sandbox, live.node);
        match self.sandboxes.state_of(node).await? {
            NodeState::Answers => {}
            NodeState::Silent => return Err(Error::not_yet(NODE_SILENT)),
            NodeState::Lost => return self.record_loss(id, NODE_GONE).await.map(|()| None),
        }
        let sandbox = &*self.sandboxes.nodes.sandboxes_on(node)?;
        if let Liveness::Ending(reason) = &live.state {
            self.resume_termination(sandbox, id, reason, Actor::system()).await?;
            return Ok(None);
        }
        let mut attached = sandbox.attach(self.sandbox_fence(id)).await;
        if let Err(Fault::Unavailable(_)) = &attached {
            if !self.sandboxes.nodes.answers(node).await {
                return Err(Error::not_yet(NODE_SILENT));
            }
            // Its agent may have been replaced meanwhile.
            attached = sandbox.attach(self.sandbox_fence(id)).await;
        }
        match attached {
            Ok(()) if !live.is_announced => {
                // The worker that created it died before it recorded the sandbox in its row, maybe after it did in the log.
                let is_logged = self.was_announced(id).await?;
                let created = (!is_logged).then_some(Body::SandboxCreated { sandbox_id: id, duration_ms: 0 });
                self.announce(id, created.into_iter().collect()).await?;
                Ok(Some(Attached::new(id, node, live.life)))
            }
            Ok(()) => {
                if live.state == Liveness::Frozen {
                    self.record_thaw(id).await?;
                }
                Ok(Some(Attached::new(id, node, live.life)))
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

    /// Takes the checkpoint before a sandbox is frozen or removed: its processes stay stopped, so that they write nothing
    /// that the checkpoint lacks. After an error they continue.
    pub(crate) async fn last_checkpoint(
        &self,
        sandbox: &dyn Sandbox,
        id: SandboxId,
    ) -> Result<CheckpointId, Error> {
        match sandbox.quiesce(self.sandbox_fence(id)).await {
            Ok(()) => {}
            Err(Fault::Stale) => return Err(Error::Stale),
            // Then they stop for the archive only. A sandbox or node agent of an earlier version does not know the call.
            Err(fault) => {
                tracing::warn!(session.id = %self.fence.session, %fault, "processes could not be stopped before a checkpoint");
            }
        }
        let checkpoint = self.checkpoint(sandbox, id).await;
        if checkpoint.as_ref().is_err_and(|error| !matches!(error, Error::Stale)) {
            self.resume(sandbox, id).await;
        }
        checkpoint
    }

    /// Continues the processes of a sandbox that stays after its last checkpoint.
    pub(crate) async fn resume(&self, sandbox: &dyn Sandbox, id: SandboxId) {
        if let Err(fault) = sandbox.attach(self.sandbox_fence(id)).await {
            tracing::warn!(session.id = %self.fence.session, %fault, "the processes of a sandbox stay stopped until it is used again");
        }
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
        let checkpoint = match self.last_checkpoint(sandbox, from).await {
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
            Err(fault) => return Err(fault),
        };
        self.terminate(sandbox, from, (ROTATED, Actor::system()), checkpoint).await?;
        match self.create(Place::Kept(old.node)).await {
            Ok(new) => {
                let duration_ms = started.elapsed().as_millis() as u64;
                let body =
                    Body::SandboxRotationCompleted { from_sandbox_id: from, sandbox_id: new.id, duration_ms };
                self.record(vec![body]).await?;
                Ok(new)
            }
            // The turn or the operation gets a new sandbox in the queue.
            Err(Error::NotYet(reason, retry)) => {
                let body =
                    Body::SandboxRotationFailed { sandbox_id: from, reason: reason.clone(), failed: false };
                self.record(vec![body]).await?;
                Err(Error::NotYet(reason, retry))
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
            Err(fault) => Err(fault),
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
        self.record_terminated(id, reason, actor).await?;
        self.finish_termination(sandbox, id, reason).await
    }

    /// Completes the removal of a sandbox that is `Ending`, which another worker began.
    pub(crate) async fn resume_termination(
        &self,
        sandbox: &dyn Sandbox,
        id: SandboxId,
        reason: &str,
        actor: Actor,
    ) -> Result<(), Error> {
        if !self.has_logged_end(id).await? {
            self.record_terminated(id, reason, actor).await?;
        }
        self.finish_termination(sandbox, id, reason).await
    }

    async fn record_terminated(&self, id: SandboxId, reason: &str, actor: Actor) -> Result<(), Error> {
        let terminated = Body::SandboxTerminated { sandbox_id: id, reason: reason.to_owned() };
        self.record_as(actor, vec![terminated]).await
    }

    async fn finish_termination(
        &self,
        sandbox: &dyn Sandbox,
        id: SandboxId,
        reason: &str,
    ) -> Result<(), Error> {
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
        let is_it =
            |body: &Body| matches!(body, Body::SandboxCreated { sandbox_id, .. } if *sandbox_id == id);
        let found = self.newest(&["sandbox.created"], move |body| is_it(body).then_some(())).await?;
        Ok(found.is_some())
    }

    /// Whether the log contains the end of the sandbox: the worker that ended it may have died between the log and
    /// the row. Reads the events of sandboxes back to its creation.
    async fn has_logged_end(&self, id: SandboxId) -> Result<bool, Error> {
        let found =
            self.newest(&["sandbox.created", "sandbox.lost", "sandbox.terminated"], move |body| match body {
                Body::SandboxCreated { sandbox_id, .. } if *sandbox_id == id => Some(false),
                Body::SandboxLost { sandbox_id, .. } | Body::SandboxTerminated { sandbox_id, .. }
                    if *sandbox_id == id =>
                {
                    Some(true)
                }
                _ => None,
            });
        Ok(found.await?.unwrap_or(false))
    }

    /// Returns the first result of `find` for the events of these types, the newest event first.
    async fn newest<T>(
        &self,
        types: &[&'static str],
        find: impl Fn(&Body) -> Option<T> + Send,
    ) -> Result<Option<T>, Error> {
        let Fence { org, session, .. } = self.fence;
        let found = self.sandboxes.journal.newest(org, session, types, move |event| find(&event.draft.body));
        found.await.map_err(|error| Error::LogUnavailable(error.to_string()))
    }

    /// Records the creation in the log, unless it is there (no bodies), then in the row, before anything runs in the sandbox.
    pub(super) async fn announce(&self, id: SandboxId, bodies: Vec<Body>) -> Result<(), Error> {
        if !bodies.is_empty() {
            self.record(bodies).await?;
        }
        self.sandboxes.store.record_announced(self.fence, id).await?;
        self.sandboxes.notifications.send(Notification::List(self.fence.org));
        Ok(())
    }

    /// Records the loss of a sandbox before its row ends: without a row, the log has the reason.
    pub(crate) async fn record_loss(&self, id: SandboxId, reason: &str) -> Result<(), Error> {
        // Another worker may have died before the row ended.
        if !self.has_logged_end(id).await? {
            self.record(vec![Body::SandboxLost { sandbox_id: id, reason: reason.to_owned() }]).await?;
        }
        self.end_row(id).await
    }

    pub(super) async fn end_row(&self, id: SandboxId) -> Result<(), Error> {
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

    pub(super) fn blobs_of_session(&self) -> String {
        blobs_of_session(self.fence.org, self.fence.session)
    }
}
