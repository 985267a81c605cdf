//! Freezing, hibernation and rotation of idle sandboxes.
//!
//! Called by `worker` with the job `idle`. The job is due when the next change of the sandbox is due, so
//! a worker crash only delays the change. A running command is never stopped. The checkpoint is taken at
//! the freeze, not at the removal: a sandbox or node that dies while the session is idle loses no file.

use std::time::{Duration, Instant};

use super::{
    Error,
    nodes::{NODE_SILENT, NodeState},
    session::{Attached, NODE_GONE, SandboxSession},
};
use crate::{
    base::limit::{IDLE_RETRY, PAUSED_SANDBOX_MAX},
    domain::{
        Actor, Body, CheckpointId,
        environment::{Life, Size},
    },
    sandbox::{Fault, Sandbox},
    store::sandbox::{LiveSandbox, Liveness},
};

/// Idle times after which sandboxes are frozen and hibernated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdlePolicy {
    /// Idle time after which a sandbox is frozen.
    pub freeze_after: Duration,
    /// Idle time after which a sandbox is hibernated: checkpointed and removed.
    pub hibernate_after: Duration,
}

/// Time of the next change of an idle sandbox.
pub(crate) enum Next {
    /// Never: there is no sandbox.
    Never,
    /// After this time.
    After(Duration),
}

impl IdlePolicy {
    /// Delay before the next try of something that failed.
    pub(crate) fn retry(self) -> Duration {
        IDLE_RETRY.min(self.freeze_after)
    }
}

impl SandboxSession {
    /// Freezes, hibernates or rotates an idle sandbox when that is due.
    pub(crate) async fn idle(&self) -> Result<Next, Error> {
        let (org, session) = (self.fence.org, self.fence.session);
        let store = &self.sandboxes.store;
        let Some(idle) = store.idle(org, session).await? else { return Ok(Next::Never) };
        let Some(live) = store.live_sandbox(org, session).await? else {
            return Ok(Next::Never);
        };
        if idle.is_archived {
            return Ok(Next::Never);
        }
        match self.sandboxes.state_of(live.node).await? {
            NodeState::Answers => {}
            NodeState::Silent => return Err(Error::not_yet(NODE_SILENT)),
            NodeState::Lost => return self.record_loss(live.sandbox, NODE_GONE).await.map(|()| Next::Never),
        }
        let policy = self.sandboxes.idle;
        // A turn or an operation manages the sandbox itself, also while its job waits: the sandbox has the
        // result of a command that ended meanwhile.
        if idle.is_wanted {
            return Ok(Next::After(policy.retry()));
        }
        let sandbox = self.sandboxes.nodes.sandboxes_on(live.node)?;
        if let Liveness::Ending(reason) = &live.state {
            self.resume_termination(&*sandbox, live.sandbox, reason, Actor::system()).await?;
            return Ok(Next::Never);
        }
        // A paused session keeps its processes, although they may be frozen.
        let stays = idle.is_paused && idle.idle < PAUSED_SANDBOX_MAX;
        if idle.idle >= policy.hibernate_after && !stays {
            return self.hibernate(&*sandbox, &live, "idle").await;
        }
        let next = match live.life.filter(|life| life.rotates_in.is_zero() && !stays) {
            Some(_) if live.state == Liveness::Frozen => {
                return self.hibernate(&*sandbox, &live, "expired").await;
            }
            Some(life) => self.rotate_idle(&*sandbox, &live, life).await?,
            None => self.freeze_when_due(&*sandbox, &live, idle.idle).await?,
        };
        // The rotation must not be missed either.
        let left = live.life.map(|life| life.rotates_in).filter(|left| !left.is_zero() && !idle.is_paused);
        Ok(match (next, left) {
            (Next::After(delay), Some(left)) => Next::After(delay.min(left)),
            (next, _) => next,
        })
    }

    async fn freeze_when_due(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
        idle: Duration,
    ) -> Result<Next, Error> {
        let policy = self.sandboxes.idle;
        match live.state {
            Liveness::Live if idle >= policy.freeze_after => {
                let left = policy.hibernate_after.saturating_sub(idle);
                self.freeze(sandbox, live, left).await
            }
            Liveness::Live => Ok(Next::After(policy.freeze_after - idle)),
            Liveness::Frozen | Liveness::Ending(_) => {
                Ok(Next::After(policy.hibernate_after.saturating_sub(idle).max(policy.retry())))
            }
        }
    }

    /// Replaces a sandbox that expires soon. Waits for a running command until the sandbox ends.
    async fn rotate_idle(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
        life: Life,
    ) -> Result<Next, Error> {
        let is_at_rest = self.runs_no_command(sandbox, live).await?;
        if !is_at_rest && (!life.ends_in.is_zero() || !self.is_there().await?) {
            return self.retry_later().await;
        }
        let new = self.rotate(sandbox, &Attached::new(live.sandbox, live.node, Some(life))).await?;
        let left = new.rotates_at.map(|at| at.saturating_duration_since(Instant::now()));
        Ok(Next::After(self.sandboxes.idle.retry().min(left.unwrap_or(Duration::MAX))))
    }

    async fn is_there(&self) -> Result<bool, Error> {
        let live = self.sandboxes.store.live_sandbox(self.fence.org, self.fence.session).await;
        Ok(live?.is_some())
    }

    /// Takes a checkpoint, then freezes all processes.
    async fn freeze(&self, sandbox: &dyn Sandbox, live: &LiveSandbox, left: Duration) -> Result<Next, Error> {
        let id = live.sandbox;
        if !self.runs_no_command(sandbox, live).await? {
            return self.retry_later().await;
        }
        // Without a checkpoint the sandbox is frozen anyway; the removal takes the checkpoint.
        let checkpoint = self.try_checkpoint(sandbox, live).await?;
        match sandbox.freeze(self.sandbox_fence(id)).await {
            Ok(()) => {}
            Err(Fault::Stale) => return Err(Error::Stale),
            Err(fault) => {
                tracing::warn!(session.id = %self.fence.session, %fault, "a sandbox could not be frozen; it continues to run");
                self.resume(sandbox, id).await;
                return Ok(Next::After(left.max(self.sandboxes.idle.retry())));
            }
        }
        let stats = sandbox.stats(id).await.ok();
        let memory_bytes = stats.map_or(0, |stats| stats.memory_bytes);
        let pids = stats.map_or(0, |stats| u32::try_from(stats.processes).unwrap_or(u32::MAX));
        // Stopped, it takes what it has and no more.
        let usage = Size { cpu_millis: 0, memory_bytes, pids, disk_bytes: 0 };
        self.record(vec![Body::SandboxFrozen { sandbox_id: id, memory_bytes }]).await?;
        match self.sandboxes.store.record_frozen(self.fence, id, checkpoint, usage).await? {
            true => Ok(Next::After(left)),
            false => Err(Error::Stale),
        }
    }

    /// Removes the sandbox after a checkpoint of its files.
    async fn hibernate(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
        reason: &str,
    ) -> Result<Next, Error> {
        let id = live.sandbox;
        let stands_still = sandbox.stats(id).await.is_ok_and(|stats| stats.is_frozen);
        let checkpoint = match live.checkpoint.filter(|_| stands_still) {
            Some(checkpoint) => checkpoint,
            None => {
                if !self.runs_no_command(sandbox, live).await? {
                    return self.retry_later().await;
                }
                match self.try_checkpoint(sandbox, live).await? {
                    Some(checkpoint) => checkpoint,
                    // Its files exist nowhere else: the sandbox is retained.
                    None => return self.remain_frozen(sandbox, live).await,
                }
            }
        };
        self.terminate(sandbox, id, (reason, Actor::system()), Some(checkpoint)).await?;
        Ok(Next::Never)
    }

    /// Freezes a sandbox again that cannot be removed, if it was frozen before.
    async fn remain_frozen(&self, sandbox: &dyn Sandbox, live: &LiveSandbox) -> Result<Next, Error> {
        if live.state == Liveness::Frozen
            && let Err(fault) = sandbox.freeze(self.sandbox_fence(live.sandbox)).await
        {
            tracing::warn!(session.id = %self.fence.session, %fault, "a sandbox could not be frozen again");
            self.record_thaw(live.sandbox).await?;
        }
        Ok(Next::After(self.sandboxes.idle.hibernate_after.max(self.sandboxes.idle.retry())))
    }

    /// Whether the sandbox exists and runs no command. Destroys and records as lost one that is dead.
    async fn runs_no_command(&self, sandbox: &dyn Sandbox, live: &LiveSandbox) -> Result<bool, Error> {
        let sandbox_fence = self.sandbox_fence(live.sandbox);
        if !live.is_announced {
            // The worker that created it died, and the turn is over: no command ever ran in it.
            let never_used = Fault::Unavailable("it was never used".to_owned());
            self.destroy_unresponsive(sandbox, live.sandbox, never_used, "").await?;
            return Ok(false);
        }
        let looked = async {
            sandbox.attach(sandbox_fence).await?;
            sandbox.running(sandbox_fence).await
        };
        match looked.await {
            Ok(0) => Ok(true),
            Ok(_) => {
                if live.state == Liveness::Frozen {
                    self.record_thaw(live.sandbox).await?;
                }
                Ok(false)
            }
            Err(fault) => {
                self.destroy_unresponsive(
                    sandbox,
                    live.sandbox,
                    fault,
                    "it was found dead while its session was idle",
                )
                .await?;
                Ok(false)
            }
        }
    }

    /// Schedules another try if there is still a sandbox.
    async fn retry_later(&self) -> Result<Next, Error> {
        let live = self.sandboxes.store.live_sandbox(self.fence.org, self.fence.session).await?;
        Ok(live.map_or(Next::Never, |_| Next::After(self.sandboxes.idle.retry())))
    }

    /// Takes the last checkpoint of a sandbox; its processes stay stopped after it.
    async fn try_checkpoint(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
    ) -> Result<Option<CheckpointId>, Error> {
        match self.last_checkpoint(sandbox, live.sandbox).await {
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(Error::Unavailable(reason)) => {
                tracing::warn!(session.id = %self.fence.session, reason, "a checkpoint of a sandbox failed");
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }
}
