//! A sandbox that no turn uses: frozen, saved, removed, each at its time.
//!
//! Called by `slot` with the job `rest`, which is due when something is next to be done
//! with the sandbox, so that a worker's death delays it and no more. A running command is
//! never stopped. The files are saved when the sandbox is frozen, not when it is removed: so
//! whatever kills the sandbox or its node while the session rests loses no file.

use std::time::{Duration, Instant};

use super::{
    Worker,
    sandbox_session::{Attached, SandboxSession, away},
    sandbox_spec::SandboxSpec,
};
use crate::{
    base::limit::{PAUSED_SANDBOX_MAX, REST_RETRY},
    domain::{Actor, Body, CheckpointId, environment::Life},
    harness::ToolFault,
    queue::Lease,
    sandbox::{Fault, Sandbox},
    store::{
        self,
        notification::Notification,
        sandbox::{LiveSandbox, Liveness},
    },
};

/// When sandboxes rest.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// Without use for this long, a sandbox is frozen.
    pub freeze_after: Duration,
    /// Without use for this long, its files are kept and it is removed.
    pub hibernate_after: Duration,
}

/// What is to be done next.
enum Next {
    /// Nothing: there is no sandbox.
    Nothing,
    /// The same again, after this time.
    Again(Duration),
}

impl Worker {
    /// Does what is due for a session's sandbox.
    pub(super) async fn look_after(&self, lease: Lease) -> Result<&'static str, store::Error> {
        let fence = lease.fence();
        let session = fence.session;
        let spec = SandboxSpec::of(&self.store.load_session(fence.org, session).await?, &self.default_image);
        let sandbox_session = SandboxSession { worker: self.clone(), fence, turn: None, spec };
        let looked = tokio::select! {
            looked = sandbox_session.rest() => looked,
            () = lease.lost() => return Ok("the lease was lost"),
        };
        let outcome = match looked {
            Ok(Next::Nothing) => lease.finish().await.map(|()| "no sandbox is left"),
            Ok(Next::Again(delay)) => lease.release(delay).await.map(|()| "the sandbox rests"),
            Err(ToolFault::Stale) => Ok("the lease was lost"),
            Err(ToolFault::Away(reason) | ToolFault::Unavailable(reason) | ToolFault::Unready(_, reason)) => {
                tracing::warn!(session.id = %session, reason, "a sandbox could not be looked after; trying again");
                lease.release(self.rest.retry()).await.map(|()| "the sandbox could not be looked after")
            }
        };
        // A turn may have waited for this.
        self.notifications.send(Notification::Job);
        outcome
    }
}

impl Rest {
    fn retry(self) -> Duration {
        REST_RETRY.min(self.freeze_after)
    }
}

impl SandboxSession {
    async fn rest(&self) -> Result<Next, ToolFault> {
        let (org, session) = (self.fence.org, self.fence.session);
        let store = &self.worker.store;
        let Some(idle) = store.idle(org, session).await.map_err(away)? else { return Ok(Next::Nothing) };
        let Some(live) = store.live_sandbox(org, session).await.map_err(away)? else {
            return Ok(Next::Nothing);
        };
        if idle.is_archived || live.node != self.worker.node {
            return Ok(Next::Nothing);
        }
        let rest = self.worker.rest;
        // A turn that is there sees to it itself.
        if idle.is_wanted {
            return Ok(Next::Again(rest.retry()));
        }
        let sandbox = self.provider()?;
        if let Liveness::Ending(reason) = &live.state {
            self.finish_ending(&*sandbox, live.sandbox, reason, Actor::system()).await?;
            return Ok(Next::Nothing);
        }
        // What is paused keeps its processes, though they may stand still.
        let stays = idle.is_paused && idle.idle < PAUSED_SANDBOX_MAX;
        if idle.idle >= rest.hibernate_after && !stays {
            return self.hibernate(&*sandbox, &live, "idle").await;
        }
        let next = match live.life.filter(|life| life.rotates_in.is_zero() && !stays) {
            Some(_) if live.state == Liveness::Frozen => {
                return self.hibernate(&*sandbox, &live, "expired").await;
            }
            Some(life) => self.replace(&*sandbox, &live, life).await?,
            None => self.keep(&*sandbox, &live, idle.idle).await?,
        };
        // Neither is its time to be missed.
        let left = live.life.map(|life| life.rotates_in).filter(|left| !left.is_zero() && !idle.is_paused);
        Ok(match (next, left) {
            (Next::Again(delay), Some(left)) => Next::Again(delay.min(left)),
            (next, _) => next,
        })
    }

    async fn keep(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
        idle: Duration,
    ) -> Result<Next, ToolFault> {
        let rest = self.worker.rest;
        match live.state {
            Liveness::Live if idle >= rest.freeze_after => {
                let left = rest.hibernate_after.saturating_sub(idle);
                self.freeze(sandbox, live, left).await
            }
            Liveness::Live => Ok(Next::Again(rest.freeze_after - idle)),
            Liveness::Frozen | Liveness::Ending(_) => {
                Ok(Next::Again(rest.hibernate_after.saturating_sub(idle).max(rest.retry())))
            }
        }
    }

    /// Puts another sandbox in the place of one whose time is almost over. A command that
    /// runs is waited for as long as there is time.
    async fn replace(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
        life: Life,
    ) -> Result<Next, ToolFault> {
        let is_at_rest = self.is_at_rest(sandbox, live).await?;
        if !is_at_rest && (!life.ends_in.is_zero() || !self.is_there().await?) {
            return self.not_now().await;
        }
        let new = self.rotate(sandbox, &Attached::new(live.sandbox, Some(life))).await?;
        let left = new.rotates_at.map(|at| at.saturating_duration_since(Instant::now()));
        Ok(Next::Again(self.worker.rest.retry().min(left.unwrap_or(Duration::MAX))))
    }

    async fn is_there(&self) -> Result<bool, ToolFault> {
        let live = self.worker.store.live_sandbox(self.fence.org, self.fence.session).await;
        Ok(live.map_err(away)?.is_some())
    }

    /// Saves the files, then stops everything where it stands.
    async fn freeze(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
        left: Duration,
    ) -> Result<Next, ToolFault> {
        let id = live.sandbox;
        if !self.is_at_rest(sandbox, live).await? {
            return self.not_now().await;
        }
        // Without a checkpoint the sandbox still rests; it is saved when it is removed.
        let checkpoint = self.try_to_save(sandbox, live).await?;
        match sandbox.freeze(self.sandbox_fence(id)).await {
            Ok(()) => {}
            Err(Fault::Stale) => return Err(ToolFault::Stale),
            Err(fault) => {
                tracing::warn!(session.id = %self.fence.session, %fault, "a sandbox could not be frozen; it runs on");
                return Ok(Next::Again(left.max(self.worker.rest.retry())));
            }
        }
        let memory_bytes = sandbox.stats(id).await.map_or(0, |stats| stats.memory_bytes);
        self.say(vec![Body::SandboxFrozen { sandbox_id: id, memory_bytes }]).await?;
        match self.worker.store.froze_sandbox(self.fence, id, checkpoint).await.map_err(away)? {
            true => Ok(Next::Again(left)),
            false => Err(ToolFault::Stale),
        }
    }

    /// Removes the sandbox once its files are saved.
    async fn hibernate(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
        reason: &str,
    ) -> Result<Next, ToolFault> {
        let id = live.sandbox;
        let stands_still = sandbox.stats(id).await.is_ok_and(|stats| stats.is_frozen);
        let checkpoint = match live.checkpoint.filter(|_| stands_still) {
            Some(checkpoint) => checkpoint,
            None => {
                if !self.is_at_rest(sandbox, live).await? {
                    return self.not_now().await;
                }
                match self.try_to_save(sandbox, live).await? {
                    Some(checkpoint) => checkpoint,
                    // Its files are nowhere else: it is kept.
                    None => return self.stay(sandbox, live).await,
                }
            }
        };
        self.put_away(sandbox, id, (reason, Actor::system()), Some(checkpoint)).await?;
        Ok(Next::Nothing)
    }

    /// A sandbox that cannot be removed rests as well as it can.
    async fn stay(&self, sandbox: &dyn Sandbox, live: &LiveSandbox) -> Result<Next, ToolFault> {
        if live.state == Liveness::Frozen
            && let Err(fault) = sandbox.freeze(self.sandbox_fence(live.sandbox)).await
        {
            tracing::warn!(session.id = %self.fence.session, %fault, "a sandbox could not be frozen again");
            self.thawed(live.sandbox).await?;
        }
        Ok(Next::Again(self.worker.rest.hibernate_after.max(self.worker.rest.retry())))
    }

    /// Whether the sandbox is there and runs nothing; a dead one is written off.
    async fn is_at_rest(&self, sandbox: &dyn Sandbox, live: &LiveSandbox) -> Result<bool, ToolFault> {
        let sandbox_fence = self.sandbox_fence(live.sandbox);
        if !live.is_announced {
            // Its maker died, and its turn is over: nothing ever ran in it.
            let never_used = Fault::Unavailable("it was never used".to_owned());
            self.give_up(sandbox, live.sandbox, never_used, "").await?;
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
                self.give_up(sandbox, live.sandbox, fault, "it was found dead while its session rested")
                    .await?;
                Ok(false)
            }
        }
    }

    /// Looks again later, if there is still something to look after.
    async fn not_now(&self) -> Result<Next, ToolFault> {
        let live = self.worker.store.live_sandbox(self.fence.org, self.fence.session).await.map_err(away)?;
        Ok(live.map_or(Next::Nothing, |_| Next::Again(self.worker.rest.retry())))
    }

    async fn try_to_save(
        &self,
        sandbox: &dyn Sandbox,
        live: &LiveSandbox,
    ) -> Result<Option<CheckpointId>, ToolFault> {
        match self.save(sandbox, live.sandbox).await {
            Ok(checkpoint) => Ok(Some(checkpoint)),
            Err(ToolFault::Unavailable(reason)) => {
                tracing::warn!(session.id = %self.fence.session, reason, "the files of a sandbox could not be saved");
                Ok(None)
            }
            Err(fault @ (ToolFault::Stale | ToolFault::Away(_) | ToolFault::Unready(..))) => Err(fault),
        }
    }
}
