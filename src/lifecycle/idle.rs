//! An idle sandbox: frozen, then hibernated; rotated before it expires.
//!
//! Called by `worker` with the job `idle`, which is due when the next change of the sandbox is, so
//! the death of a worker only delays it. A running command is never stopped. The checkpoint is
//! taken at the freeze, not at the removal: a sandbox or node that dies while the session is idle
//! loses no file.

use std::time::{Duration, Instant};

use super::{
    Error,
    session::{Attached, SandboxSession},
};
use crate::{
    base::limit::{IDLE_RETRY, PAUSED_SANDBOX_MAX},
    domain::{Actor, Body, CheckpointId, environment::Life},
    sandbox::{Fault, Sandbox},
    store::sandbox::{LiveSandbox, Liveness},
};

/// When idle sandboxes are frozen and hibernated.
#[derive(Clone, Copy, Debug)]
pub struct IdlePolicy {
    /// Idle time after which a sandbox is frozen.
    pub freeze_after: Duration,
    /// Idle time after which a sandbox is hibernated: checkpointed and removed.
    pub hibernate_after: Duration,
}

/// When an idle sandbox needs attention next.
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
    /// Does what is due for an idle sandbox.
    pub(crate) async fn idle(&self) -> Result<Next, Error> {
        let (org, session) = (self.fence.org, self.fence.session);
        let store = &self.sandboxes.store;
        let Some(idle) = store.idle(org, session).await? else { return Ok(Next::Never) };
        let Some(live) = store.live_sandbox(org, session).await? else {
            return Ok(Next::Never);
        };
        if idle.is_archived || live.node != self.sandboxes.node {
            return Ok(Next::Never);
        }
        let policy = self.sandboxes.idle;
        // A turn that is there sees to it itself.
        if idle.is_wanted {
            return Ok(Next::After(policy.retry()));
        }
        let sandbox = self.provider()?;
        if let Liveness::Ending(reason) = &live.state {
            self.finish_termination(&*sandbox, live.sandbox, reason, Actor::system()).await?;
            return Ok(Next::Never);
        }
        // What is paused keeps its processes, though they may stand still.
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
        // Neither is its time to be missed.
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

    /// Puts another sandbox in the place of one whose time is almost over. A command that
    /// runs is waited for as long as there is time.
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
        let new = self.rotate(sandbox, &Attached::new(live.sandbox, Some(life))).await?;
        let left = new.rotates_at.map(|at| at.saturating_duration_since(Instant::now()));
        Ok(Next::After(self.sandboxes.idle.retry().min(left.unwrap_or(Duration::MAX))))
    }

    async fn is_there(&self) -> Result<bool, Error> {
        let live = self.sandboxes.store.live_sandbox(self.fence.org, self.fence.session).await;
        Ok(live?.is_some())
    }

    /// Saves the files, then stops everything where it stands.
    async fn freeze(&self, sandbox: &dyn Sandbox, live: &LiveSandbox, left: Duration) -> Result<Next, Error> {
        let id = live.sandbox;
        if !self.runs_no_command(sandbox, live).await? {
            return self.retry_later().await;
        }
        // Without a checkpoint the sandbox still rests; it is saved when it is removed.
        let checkpoint = self.try_checkpoint(sandbox, live).await?;
        match sandbox.freeze(self.sandbox_fence(id)).await {
            Ok(()) => {}
            Err(Fault::Stale) => return Err(Error::Stale),
            Err(fault) => {
                tracing::warn!(session.id = %self.fence.session, %fault, "a sandbox could not be frozen; it runs on");
                return Ok(Next::After(left.max(self.sandboxes.idle.retry())));
            }
        }
        let memory_bytes = sandbox.stats(id).await.map_or(0, |stats| stats.memory_bytes);
        self.record(vec![Body::SandboxFrozen { sandbox_id: id, memory_bytes }]).await?;
        match self.sandboxes.store.record_frozen(self.fence, id, checkpoint).await? {
            true => Ok(Next::After(left)),
            false => Err(Error::Stale),
        }
    }

    /// Removes the sandbox once its files are saved.
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
                    // Its files are nowhere else: it is kept.
                    None => return self.remain_frozen(sandbox, live).await,
                }
            }
        };
        self.terminate(sandbox, id, (reason, Actor::system()), Some(checkpoint)).await?;
        Ok(Next::Never)
    }

    /// A sandbox that cannot be removed rests as well as it can.
    async fn remain_frozen(&self, sandbox: &dyn Sandbox, live: &LiveSandbox) -> Result<Next, Error> {
        if live.state == Liveness::Frozen
            && let Err(fault) = sandbox.freeze(self.sandbox_fence(live.sandbox)).await
        {
            tracing::warn!(session.id = %self.fence.session, %fault, "a sandbox could not be frozen again");
            self.thawed(live.sandbox).await?;
        }
        Ok(Next::After(self.sandboxes.idle.hibernate_after.max(self.sandboxes.idle.retry())))
    }

    /// Whether the sandbox is there and runs nothing; a dead one is written off.
    async fn runs_no_command(&self, sandbox: &dyn Sandbox, live: &LiveSandbox) -> Result<bool, Error> {
        let sandbox_fence = self.sandbox_fence(live.sandbox);
        if !live.is_announced {
            // Its maker died, and its turn is over: nothing ever ran in it.
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
                    self.thawed(live.sandbox).await?;
                }
                Ok(false)
            }
            Err(fault) => {
                self.destroy_unresponsive(
                    sandbox,
                    live.sandbox,
                    fault,
                    "it was found dead while its session rested",
                )
                .await?;
                Ok(false)
            }
        }
    }

    /// Looks again later, if there is still something to look after.
    async fn retry_later(&self) -> Result<Next, Error> {
        let live = self.sandboxes.store.live_sandbox(self.fence.org, self.fence.session).await?;
        Ok(live.map_or(Next::Never, |_| Next::After(self.sandboxes.idle.retry())))
    }

    async fn try_checkpoint(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
    ) -> Result<Option<CheckpointId>, Error> {
        match self.checkpoint(sandbox, live.sandbox).await {
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(Error::Unavailable(reason)) => {
                tracing::warn!(session.id = %self.fence.session, reason, "the files of a sandbox could not be saved");
                Ok(None)
            }
            Err(fault @ (Error::Stale | Error::LogUnavailable(_) | Error::PreparationFailure(..))) => {
                Err(fault)
            }
        }
    }
}
