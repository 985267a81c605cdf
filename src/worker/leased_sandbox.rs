//! The session's sandbox: attached when a tool first needs it, not before.

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use super::{
    Worker,
    egress_attachment::EgressAttachment,
    lifecycle_hook,
    sandbox_session::{Attached, SandboxSession, away},
    sandbox_spec::SandboxSpec,
    source,
};
use crate::{
    base::backoff::Backoff,
    domain::{Actor, CheckpointId, SandboxId},
    harness::{ToolFault, Unready, history},
    journal::Writer,
    sandbox::{Fault, Sandbox},
    store::sandbox::{LiveSandbox, Liveness},
    tool,
};

/// What a turn holds of its session's sandbox.
pub(super) struct LeasedSandbox {
    pub(super) session: SandboxSession,
    pub(super) writer: Writer,
    pub(super) egress: Arc<EgressAttachment>,
    /// The sandbox whose way out is open.
    opened: std::sync::Mutex<Option<SandboxId>>,
    /// The sandbox whose lifecycle hooks have run and that has the session's sources.
    prepared: std::sync::Mutex<Option<SandboxId>>,
    attached: Mutex<Option<Attached>>,
    /// Calls that are under way.
    uses: AtomicUsize,
}

/// A call under way. As long as there is another, the sandbox stays.
pub(super) struct Use<'a>(&'a AtomicUsize);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl LeasedSandbox {
    /// Where a sandbox is made, it is one like `spec`.
    pub(super) fn new(
        worker: Worker,
        writer: Writer,
        egress: Arc<EgressAttachment>,
        spec: SandboxSpec,
    ) -> Self {
        Self {
            session: SandboxSession { worker, fence: writer.fence(), turn: writer.turn(), spec },
            writer,
            egress,
            opened: std::sync::Mutex::default(),
            prepared: std::sync::Mutex::default(),
            attached: Mutex::new(None),
            uses: AtomicUsize::new(0),
        }
    }

    /// Tells that a call is under way, until the answer is dropped.
    pub(super) fn enter(&self) -> Use<'_> {
        self.uses.fetch_add(1, Ordering::SeqCst);
        Use(&self.uses)
    }

    /// Whether a call is under way.
    pub(super) fn is_used(&self) -> bool {
        self.uses.load(Ordering::SeqCst) > 0
    }

    /// The sandbox, made when there is none.
    pub(super) async fn attached(&self) -> Result<tool::SandboxHandle, ToolFault> {
        let sandbox = self.session.provider()?;
        let mut attached = self.attached.lock().await;
        let met = self.meet(&*sandbox, *attached).await?;
        *attached = Some(met);
        self.prepare(sandbox, met.id).await
    }

    /// The sandbox for a call that has not begun anywhere: another one, when the time of
    /// this one is almost over and no other call is under way in it.
    pub(super) async fn ready(&self) -> Result<tool::SandboxHandle, ToolFault> {
        let sandbox = self.session.provider()?;
        let mut attached = self.attached.lock().await;
        let mut met = self.meet(&*sandbox, *attached).await?;
        let is_due = met.rotates_at.is_some_and(|at| at <= Instant::now());
        if is_due && self.uses.load(Ordering::SeqCst) <= 1 {
            // Whatever comes of it, the next look is at the rows.
            *attached = None;
            met = self.session.rotate(&*sandbox, &met).await?;
        }
        *attached = Some(met);
        self.prepare(sandbox, met.id).await
    }

    async fn meet(&self, sandbox: &dyn Sandbox, attached: Option<Attached>) -> Result<Attached, ToolFault> {
        match attached {
            Some(met) => Ok(met),
            None => match self.session.greet(sandbox).await? {
                Some(met) => Ok(met),
                None => self.session.make(sandbox).await,
            },
        }
    }

    /// Returns when the sandbox's time is over; never, when it has none.
    pub(super) async fn end_of_life(&self) {
        let ends_at = self.attached.lock().await.and_then(|met| met.ends_at);
        match ends_at {
            Some(end) => tokio::time::sleep_until(end.into()).await,
            None => std::future::pending().await,
        }
    }

    /// The sandbox, if there is one.
    pub(super) async fn if_attached(&self) -> Option<tool::SandboxHandle> {
        let sandbox = self.session.provider().ok()?;
        let met = match *self.attached.lock().await {
            Some(met) => met,
            // A command of an earlier worker may still run there.
            None => self.session.greet(&*sandbox).await.ok()??,
        };
        Some(self.handle(sandbox, met.id))
    }

    /// Whether the sandbox that an earlier worker used is still there.
    pub(super) async fn survived(&self) -> Result<bool, ToolFault> {
        let sandbox = self.session.provider()?;
        let mut attached = self.attached.lock().await;
        if attached.is_none() {
            *attached = self.session.greet(&*sandbox).await?;
        }
        Ok(attached.is_some())
    }

    /// Whether a command of this call may ever have been started, read from the log as
    /// it is now: the loss of its sandbox may just have been written.
    pub(super) async fn may_have_run(&self, call_id: &str) -> Result<bool, ToolFault> {
        let log = self.writer.log().await.map_err(|error| ToolFault::Away(error.to_string()))?;
        Ok(history::may_have_run(&log, call_id))
    }

    /// Writes down that the sandbox is gone; the next use makes another. Of several calls
    /// that lost it together, the first one writes.
    pub(super) async fn lost(&self, id: SandboxId, reason: &str) -> Result<(), ToolFault> {
        let mut attached = self.attached.lock().await;
        match attached.take_if(|attached| attached.id == id) {
            Some(_) => self.session.write_off(id, reason).await,
            None => Ok(()),
        }
    }

    /// Saves the files as they are now, which a caller's hand keeps. Whoever begins
    /// something in the sandbox meanwhile waits.
    pub(super) async fn save(&self) -> Result<CheckpointId, ToolFault> {
        let SandboxSession { worker, fence, .. } = &self.session;
        let sandbox = self.session.provider()?;
        let mut attached = self.attached.lock().await;
        let met = match *attached {
            Some(met) => Some(met),
            None => self.session.greet(&*sandbox).await?,
        };
        let past = worker.store.past_sandboxes(fence.org, fence.session).await.map_err(away)?;
        let checkpoint = match (met, past.checkpoint) {
            // Nothing has run since.
            (None, Some(checkpoint)) => checkpoint,
            (met, _) => {
                let met = match met {
                    Some(met) => met,
                    None => self.session.make(&*sandbox).await?,
                };
                *attached = Some(met);
                self.session.save(&*sandbox, met.id).await?
            }
        };
        match worker.store.keep_checkpoint(*fence, checkpoint).await.map_err(away)? {
            true => Ok(checkpoint),
            false => Err(ToolFault::Stale),
        }
    }

    /// Saves the files and removes the sandbox, where there is one.
    pub(super) async fn put_away(&self, reason: &str, actor: Actor) -> Result<(), ToolFault> {
        let sandbox = self.session.provider()?;
        let mut attached = self.attached.lock().await;
        let met = match attached.take() {
            Some(met) => Some(met),
            None => self.session.greet(&*sandbox).await?,
        };
        let Some(met) = met else { return Ok(()) };
        let checkpoint = self.session.save(&*sandbox, met.id).await?;
        self.session.put_away(&*sandbox, met.id, (reason, actor), Some(checkpoint)).await
    }

    /// Removes a sandbox whose files nobody wants any more, as the rows say.
    pub(super) async fn leave_behind(&self, actor: Actor) -> Result<(), ToolFault> {
        let SandboxSession { worker, fence, .. } = &self.session;
        let sandbox = self.session.provider()?;
        *self.attached.lock().await = None;
        let live = worker.store.live_sandbox(fence.org, fence.session).await.map_err(away)?;
        match live {
            Some(LiveSandbox { sandbox: id, node, state: Liveness::Ending(reason), .. })
                if node == worker.node =>
            {
                self.session.finish_ending(&*sandbox, id, &reason, actor).await
            }
            _ => Ok(()),
        }
    }

    /// How long to wait before asking a sandbox again.
    pub(super) fn delay(&self, backoff: &Backoff, attempt: u32) -> Duration {
        backoff.delay(attempt, self.session.worker.journal.origin())
    }

    /// Makes a sandbox fit for this turn's commands.
    async fn prepare(
        &self,
        sandbox: Arc<dyn Sandbox>,
        id: SandboxId,
    ) -> Result<tool::SandboxHandle, ToolFault> {
        self.attach_egress(&*sandbox, id).await?;
        self.make_ready(&*sandbox, id).await?;
        Ok(self.handle(sandbox, id))
    }

    /// Joins the sandbox to this turn's proxy, once. A sandbox without a way out still works.
    async fn attach_egress(&self, sandbox: &dyn Sandbox, id: SandboxId) -> Result<(), ToolFault> {
        let opened = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if *opened() == Some(id) {
            return Ok(());
        }
        match self.egress.open(sandbox, self.session.sandbox_fence(id)).await {
            Ok(()) => *opened() = Some(id),
            Err(Fault::Stale) => return Err(ToolFault::Stale),
            Err(fault) => {
                tracing::warn!(session.id = %self.session.fence.session, %fault, "a sandbox has no way out")
            }
        }
        Ok(())
    }

    /// Runs the environment's lifecycle hook, once in each sandbox, and brings what the session's sources
    /// name. The sandbox remembers the lifecycle hook's command, so whoever asks again, now or after a
    /// takeover, gets the outcome of the first; what becomes of sources is in the log.
    async fn make_ready(&self, sandbox: &dyn Sandbox, id: SandboxId) -> Result<(), ToolFault> {
        let prepared = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if *prepared() == Some(id) {
            return Ok(());
        }
        if let Some(script) = &self.session.spec.post_start {
            match lifecycle_hook::run(sandbox, self.session.sandbox_fence(id), "post_start", script).await {
                Ok(None) => {}
                Ok(Some(failure)) => return Err(ToolFault::Unready(Unready::LifecycleHook, failure)),
                Err(Fault::Stale) => return Err(ToolFault::Stale),
                Err(fault) => return Err(ToolFault::Unavailable(fault.to_string())),
            }
        }
        source::bring(self, sandbox, id).await?;
        *prepared() = Some(id);
        Ok(())
    }

    fn handle(&self, sandbox: Arc<dyn Sandbox>, id: SandboxId) -> tool::SandboxHandle {
        let web = Arc::clone(&self.egress) as _;
        let context = &self.session.spec.context;
        let (env, cwd) = (context.env_under(&[]), context.working_dir.clone().unwrap_or_default());
        tool::SandboxHandle { sandbox, fence: self.session.sandbox_fence(id), env, cwd, web }
    }
}
