//! The sandbox of a session under a lease: attached or created when a tool first needs it.

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use super::{
    Error, Sandboxes,
    egress::{EgressAttachment, EgressPolicy},
    hook,
    nodes::{NODE_SILENT, NodeState},
    placed_files::PlacedFiles,
    placed_skills::PlacedSkills,
    session::{Attached, NODE_GONE, Place, SandboxSession},
    spec::SandboxSpec,
};
use crate::{
    base::backoff::Backoff,
    domain::{
        Actor, CheckpointId, SandboxId, content::FileRef, context::Context, exit::PreparationFailure,
        price::SandboxSize,
    },
    journal::Writer,
    sandbox::{Fault, Sandbox, SandboxFence},
    store::sandbox::{LiveSandbox, Liveness},
};

impl Sandboxes {
    /// The sandbox of the session that `writer` holds. Creates nothing before the first acquire.
    pub(crate) fn lease(
        &self,
        writer: Writer,
        spec: SandboxSpec,
        policy: EgressPolicy,
    ) -> Arc<LeasedSandbox> {
        let origin = self.journal.origin();
        let egress = EgressAttachment::new(self.network.clone(), writer.clone(), origin, policy);
        Arc::new(LeasedSandbox::new(self.clone(), writer, Arc::new(egress), spec))
    }
}

/// Fenced access to an attached sandbox.
#[derive(Clone)]
pub(crate) struct SandboxHandle {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) fence: SandboxFence,
}

/// Access to a session's sandbox under one lease.
pub(crate) struct LeasedSandbox {
    pub(super) session: SandboxSession,
    writer: Writer,
    pub(super) egress: Arc<EgressAttachment>,
    /// The sandbox to which the egress proxy is attached.
    opened: std::sync::Mutex<Option<SandboxId>>,
    /// The sandbox whose lifecycle hooks have run and that contains the session's sources.
    prepared: std::sync::Mutex<Option<SandboxId>>,
    attached: Mutex<Option<Attached>>,
    files: PlacedFiles,
    skills: PlacedSkills,
    /// Number of calls in progress.
    uses: AtomicUsize,
}

/// A call in progress. The sandbox is not rotated while there is another one.
pub(crate) struct Use<'a>(&'a AtomicUsize);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl LeasedSandbox {
    /// Access for the lease of `writer`; a new sandbox is created from `spec`.
    pub(crate) fn new(
        sandboxes: Sandboxes,
        writer: Writer,
        egress: Arc<EgressAttachment>,
        spec: SandboxSpec,
    ) -> Self {
        let files = sandboxes.files.clone();
        let skills = PlacedSkills::new(sandboxes.skills.clone(), spec.skills.clone());
        Self {
            session: SandboxSession {
                sandboxes,
                fence: writer.fence(),
                turn: writer.turn(),
                is_between_turns: false,
                spec,
            },
            writer,
            egress,
            opened: std::sync::Mutex::default(),
            prepared: std::sync::Mutex::default(),
            attached: Mutex::new(None),
            files: PlacedFiles::new(files),
            skills,
            uses: AtomicUsize::new(0),
        }
    }

    /// The writer of the lease.
    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Size of the sandbox, for pricing.
    pub(crate) fn size(&self) -> SandboxSize {
        let limits = &self.session.spec.limits;
        SandboxSize { cpu_millis: limits.cpu_millis, memory_bytes: limits.memory_bytes }
    }

    /// Working directory and variables with which the session's commands start.
    pub(crate) fn context(&self) -> &Context {
        &self.session.spec.context
    }

    /// The network of the sandbox under this lease.
    pub(crate) fn egress(&self) -> &Arc<EgressAttachment> {
        &self.egress
    }

    /// Closes egress and records the decisions that were counted and not recorded yet.
    pub(crate) async fn close_egress(&self) {
        self.egress.close().await;
        let taken = self.egress.take();
        let drafts = self.egress.drafts(&taken, &self.writer);
        if !drafts.is_empty() && self.writer.record(drafts).await.is_err() {
            let session = self.session.fence.session;
            tracing::warn!(session.id = %session, "counted egress decisions were lost with the lease");
        }
    }

    /// Counts a call as in progress until the returned guard is dropped.
    pub(crate) fn begin_use(&self) -> Use<'_> {
        self.uses.fetch_add(1, Ordering::SeqCst);
        Use(&self.uses)
    }

    /// Whether a call is in progress.
    pub(crate) fn is_in_use(&self) -> bool {
        self.uses.load(Ordering::SeqCst) > 0
    }

    /// The current sandbox; a new one when there is none. Does not rotate.
    pub(crate) async fn reacquire(&self) -> Result<SandboxHandle, Error> {
        let mut attached = self.attached.lock().await;
        let met = self.attach_or_create(*attached).await?;
        *attached = Some(met);
        self.prepare(met).await
    }

    /// The sandbox for a call that has not started anywhere. Rotates a sandbox that expires soon, if no
    /// other call is in progress in it.
    pub(crate) async fn acquire(&self) -> Result<SandboxHandle, Error> {
        let mut attached = self.attached.lock().await;
        let mut met = self.attach_or_create(*attached).await?;
        let is_due = met.rotates_at.is_some_and(|at| at <= Instant::now());
        if is_due && self.uses.load(Ordering::SeqCst) <= 1 {
            // Whatever the result, the next call reads the rows.
            *attached = None;
            met = self.session.rotate(&*self.sandboxes_of(&met)?, &met).await?;
        }
        *attached = Some(met);
        self.prepare(met).await
    }

    async fn attach_or_create(&self, attached: Option<Attached>) -> Result<Attached, Error> {
        match attached {
            Some(met) => match self.session.sandboxes.state_of(met.node).await? {
                NodeState::Answers => Ok(met),
                // The next lease of the session begins when its node is back or lost.
                NodeState::Silent | NodeState::Lost => Err(Error::not_yet(NODE_SILENT)),
            },
            None => match self.session.attach_existing().await? {
                Some(met) => Ok(met),
                None => self.session.create(Place::InQueue).await,
            },
        }
    }

    /// The sandboxes of the node of this one.
    fn sandboxes_of(&self, met: &Attached) -> Result<Arc<dyn Sandbox>, Error> {
        self.session.sandboxes.nodes.sandboxes_on(met.node)
    }

    /// Returns when the sandbox reaches its end of life; never, when it has none.
    pub(crate) async fn end_of_life(&self) {
        let ends_at = self.attached.lock().await.and_then(|met| met.ends_at);
        match ends_at {
            Some(end) => tokio::time::sleep_until(end.into()).await,
            None => std::future::pending().await,
        }
    }

    /// The sandbox, if there is one.
    pub(crate) async fn existing(&self) -> Option<SandboxHandle> {
        let met = match *self.attached.lock().await {
            Some(met) => met,
            // A command of an earlier worker may still run there.
            None => self.session.attach_existing().await.ok()??,
        };
        Some(self.handle(self.sandboxes_of(&met).ok()?, met.id))
    }

    /// Whether the sandbox that an earlier worker used is still there.
    pub(crate) async fn still_exists(&self) -> Result<bool, Error> {
        let mut attached = self.attached.lock().await;
        if attached.is_none() {
            *attached = self.session.attach_existing().await?;
        }
        Ok(attached.is_some())
    }

    /// Records that the sandbox is lost; the next use creates another. Of several calls that lost it
    /// together, only the first one records it. Destroys it first, so that no two exist at a time.
    ///
    /// # Errors
    /// `NotYet` if its node does not answer, and is not lost.
    pub(crate) async fn record_loss(&self, id: SandboxId, reason: &str) -> Result<(), Error> {
        let mut attached = self.attached.lock().await;
        let Some(met) = attached.filter(|attached| attached.id == id) else { return Ok(()) };
        let sandboxes = &self.session.sandboxes;
        let mut reason = reason;
        if let Err(fault) = self.sandboxes_of(&met)?.destroy(id).await {
            if sandboxes.nodes.answers(met.node).await || !sandboxes.is_lost(met.node).await? {
                return Err(Error::not_yet(&fault.to_string()));
            }
            reason = NODE_GONE;
        }
        *attached = None;
        self.session.record_loss(id, reason).await
    }

    /// Records that a sandbox is lost, if it is.
    pub(crate) async fn record_if_gone(&self, handle: &SandboxHandle, reason: &str) -> Result<(), Error> {
        match handle.sandbox.running(handle.fence).await {
            Err(Fault::Gone) => self.record_loss(handle.fence.sandbox, reason).await,
            _ => Ok(()),
        }
    }

    /// Takes a checkpoint for a caller and marks it as manual. Calls that start in the sandbox meanwhile
    /// wait.
    pub(crate) async fn checkpoint(&self) -> Result<CheckpointId, Error> {
        let SandboxSession { sandboxes, fence, .. } = &self.session;
        let mut attached = self.attached.lock().await;
        let met = match *attached {
            Some(met) => Some(met),
            None => self.session.attach_existing().await?,
        };
        let past = sandboxes.store.past_sandboxes(fence.org, fence.session).await?;
        let checkpoint = match (met, past.checkpoint) {
            // Nothing has run since this checkpoint.
            (None, Some(checkpoint)) => checkpoint,
            (met, _) => {
                let met = match met {
                    Some(met) => met,
                    None => self.session.create(Place::InQueue).await?,
                };
                *attached = Some(met);
                self.session.checkpoint(&*self.sandboxes_of(&met)?, met.id).await?
            }
        };
        match sandboxes.store.mark_checkpoint_manual(*fence, checkpoint).await? {
            true => Ok(checkpoint),
            false => Err(Error::Stale),
        }
    }

    /// Takes a checkpoint and removes the sandbox, if there is one.
    pub(crate) async fn terminate(&self, reason: &str, actor: Actor) -> Result<(), Error> {
        let mut attached = self.attached.lock().await;
        let met = match attached.take() {
            Some(met) => Some(met),
            None => self.session.attach_existing().await?,
        };
        let Some(met) = met else { return Ok(()) };
        let sandbox = self.sandboxes_of(&met)?;
        let checkpoint = self.session.last_checkpoint(&*sandbox, met.id).await?;
        self.session.terminate(&*sandbox, met.id, (reason, actor), Some(checkpoint)).await
    }

    /// Removes the sandbox without a checkpoint, if its row is `Ending` (after a restore).
    pub(crate) async fn discard(&self, actor: Actor) -> Result<(), Error> {
        let SandboxSession { sandboxes, fence, .. } = &self.session;
        *self.attached.lock().await = None;
        let live = sandboxes.store.live_sandbox(fence.org, fence.session).await?;
        match live {
            Some(LiveSandbox { sandbox: id, node, state: Liveness::Ending(reason), .. })
                if sandboxes.nodes.get(node).is_some() =>
            {
                let sandbox = sandboxes.nodes.sandboxes_on(node)?;
                self.session.resume_termination(&*sandbox, id, &reason, actor).await
            }
            _ => Ok(()),
        }
    }

    /// Delay before the next call to a sandbox that did not answer.
    pub(crate) fn delay(&self, backoff: &Backoff, attempt: u32) -> Duration {
        backoff.delay(attempt, self.session.sandboxes.journal.origin())
    }

    /// Names the files of callers that the sandbox has to have.
    pub(crate) fn want_files(&self, files: &[FileRef]) {
        self.files.want(files);
    }

    /// Attaches egress, writes skills, runs lifecycle hooks, clones sources and writes files of callers, each if it is missing.
    async fn prepare(&self, met: Attached) -> Result<SandboxHandle, Error> {
        let (sandbox, id) = (self.sandboxes_of(&met)?, met.id);
        self.attach_egress(&*sandbox, id).await?;
        self.skills.place(&*sandbox, self.session.sandbox_fence(id)).await?;
        self.make_ready(&*sandbox, id).await?;
        self.files.place(&*sandbox, self.session.sandbox_fence(id)).await?;
        Ok(self.handle(sandbox, id))
    }

    /// Attaches the sandbox to the egress proxy of this lease, once. A sandbox without egress still works.
    async fn attach_egress(&self, sandbox: &dyn Sandbox, id: SandboxId) -> Result<(), Error> {
        let opened = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if *opened() == Some(id) {
            return Ok(());
        }
        let SandboxSession { sandboxes, fence, .. } = &self.session;
        let key = sandboxes.store.data_key(fence.org).await?;
        match self.egress.open(sandbox, self.session.sandbox_fence(id), &key).await {
            Ok(()) => *opened() = Some(id),
            Err(Fault::Stale) => return Err(Error::Stale),
            Err(fault) => {
                tracing::warn!(session.id = %self.session.fence.session, %fault, "a sandbox has no way out")
            }
        }
        Ok(())
    }

    /// Runs the environment's `post_start` hook, once in each sandbox, and clones the session's sources.
    /// The sandbox stores the hook's command by its id, so a repetition, now or after a takeover, returns
    /// the outcome of the first run. The state of the sources is in the log.
    async fn make_ready(&self, sandbox: &dyn Sandbox, id: SandboxId) -> Result<(), Error> {
        let prepared = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if *prepared() == Some(id) {
            return Ok(());
        }
        if let Some(script) = &self.session.spec.post_start {
            match hook::run(sandbox, self.session.sandbox_fence(id), "post_start", script).await {
                Ok(None) => {}
                Ok(Some(failure)) => {
                    return Err(Error::PreparationFailure(PreparationFailure::LifecycleHook, failure));
                }
                Err(Fault::Stale) => return Err(Error::Stale),
                Err(fault) => return Err(Error::Unavailable(fault.to_string())),
            }
        }
        self.bring_sources(sandbox, id).await?;
        *prepared() = Some(id);
        Ok(())
    }

    fn handle(&self, sandbox: Arc<dyn Sandbox>, id: SandboxId) -> SandboxHandle {
        SandboxHandle { sandbox, fence: self.session.sandbox_fence(id) }
    }
}
