//! The session's box: attached when a tool first needs it, not before.

use std::{sync::Arc, time::Instant};

use tokio::sync::Mutex;

use super::{Worker, hook, outlet::Outlet, surroundings::Wish};
use crate::{
    base::{
        backoff::Backoff,
        limit::{SANDBOX_BACKOFF, SANDBOX_START_ATTEMPTS_MAX},
    },
    domain::{Actor, Body, SandboxId, event::Draft},
    harness::{ToolFault, history},
    journal::{Halted, TurnWriter},
    sandbox::{Fault, Grip, Sandbox, Spec},
    store::{self, record::Fence, sandbox::LiveSandbox},
    tool,
};

const BACKOFF: Backoff = Backoff { first: SANDBOX_BACKOFF.0, longest: SANDBOX_BACKOFF.1 };

/// What a turn holds of its session's box.
pub(super) struct Hands {
    worker: Worker,
    fence: Fence,
    writer: TurnWriter,
    outlet: Arc<Outlet>,
    wish: Wish,
    /// The box whose way out is open.
    opened: std::sync::Mutex<Option<SandboxId>>,
    /// The box whose hook has run.
    ready: std::sync::Mutex<Option<SandboxId>>,
    attached: Mutex<Option<SandboxId>>,
}

impl Hands {
    pub(super) fn new(worker: Worker, fence: Fence, writer: TurnWriter, outlet: Arc<Outlet>) -> Self {
        Self {
            worker,
            fence,
            writer,
            outlet,
            wish: Wish::default(),
            opened: std::sync::Mutex::default(),
            ready: std::sync::Mutex::default(),
            attached: Mutex::new(None),
        }
    }

    /// The same, with a box like this where one is made.
    pub(super) fn wishing(self, wish: Wish) -> Self {
        Self { wish, ..self }
    }

    /// The box, made when there is none.
    pub(super) async fn attached(&self) -> Result<tool::Hands, ToolFault> {
        let sandbox = self.provider()?;
        let mut attached = self.attached.lock().await;
        let id = match *attached {
            Some(id) => id,
            None => match self.greet(&*sandbox).await? {
                Some(id) => id,
                None => self.make(&*sandbox).await?,
            },
        };
        *attached = Some(id);
        self.open_way_out(&*sandbox, id).await?;
        self.make_ready(&*sandbox, id).await?;
        Ok(self.hands(sandbox, id))
    }

    /// The box, if there is one.
    pub(super) async fn if_attached(&self) -> Option<tool::Hands> {
        let sandbox = self.provider().ok()?;
        let id = match *self.attached.lock().await {
            Some(id) => id,
            // A command of an earlier worker may still run there.
            None => self.greet(&*sandbox).await.ok()??,
        };
        Some(self.hands(sandbox, id))
    }

    /// Whether the box that an earlier worker used is still there.
    pub(super) async fn survived(&self) -> Result<bool, ToolFault> {
        let sandbox = self.provider()?;
        let mut attached = self.attached.lock().await;
        if attached.is_none() {
            *attached = self.greet(&*sandbox).await?;
        }
        Ok(attached.is_some())
    }

    /// Whether a command of this call may ever have been started, read from the log as
    /// it is now: the loss of its box may just have been written.
    pub(super) async fn may_have_run(&self, call_id: &str) -> Result<bool, ToolFault> {
        let log = self.writer.log().await.map_err(|error| ToolFault::Away(error.to_string()))?;
        Ok(history::may_have_run(&log, call_id))
    }

    /// Writes down that the box is gone; the next use makes another. Of several calls
    /// that lost it together, the first one writes.
    pub(super) async fn lost(&self, id: SandboxId, reason: &str) -> Result<(), ToolFault> {
        let mut attached = self.attached.lock().await;
        match attached.take_if(|attached| *attached == id) {
            Some(id) => self.write_off(id, reason).await,
            None => Ok(()),
        }
    }

    /// How long to wait before asking a box again.
    pub(super) fn delay(&self, backoff: &Backoff, attempt: u32) -> std::time::Duration {
        backoff.delay(attempt, self.worker.journal.origin())
    }

    /// Joins the box to this turn's proxy, once. A box without a way out still works.
    async fn open_way_out(&self, sandbox: &dyn Sandbox, id: SandboxId) -> Result<(), ToolFault> {
        let opened = || self.opened.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *opened() == Some(id) {
            return Ok(());
        }
        match self.outlet.open(sandbox, self.grip(id)).await {
            Ok(()) => *opened() = Some(id),
            Err(Fault::Stale) => return Err(ToolFault::Stale),
            Err(fault) => {
                tracing::warn!(session.id = %self.fence.session, %fault, "a sandbox has no way out")
            }
        }
        Ok(())
    }

    /// Runs the environment's hook, once in each box: the box remembers the command, so
    /// whoever asks again, now or after a takeover, gets the outcome of the first.
    async fn make_ready(&self, sandbox: &dyn Sandbox, id: SandboxId) -> Result<(), ToolFault> {
        let Some(script) = &self.wish.post_start else { return Ok(()) };
        let ready = || self.ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *ready() == Some(id) {
            return Ok(());
        }
        match hook::run(sandbox, self.grip(id), script).await {
            Ok(None) => *ready() = Some(id),
            Ok(Some(failure)) => return Err(ToolFault::Hook(failure)),
            Err(Fault::Stale) => return Err(ToolFault::Stale),
            Err(fault) => return Err(ToolFault::Unavailable(fault.to_string())),
        }
        Ok(())
    }

    fn provider(&self) -> Result<Arc<dyn Sandbox>, ToolFault> {
        self.worker.sandbox.clone().map_err(ToolFault::Unavailable)
    }

    fn hands(&self, sandbox: Arc<dyn Sandbox>, id: SandboxId) -> tool::Hands {
        let web = Arc::clone(&self.outlet) as _;
        tool::Hands { sandbox, grip: self.grip(id), env: Vec::new(), cwd: String::new(), web }
    }

    fn grip(&self, sandbox: SandboxId) -> Grip {
        Grip { sandbox, epoch: self.fence.epoch }
    }

    /// Says hello to the box that the rows know of; `None` when there is none.
    async fn greet(&self, sandbox: &dyn Sandbox) -> Result<Option<SandboxId>, ToolFault> {
        let live =
            self.worker.store.live_sandbox(self.fence.tenant, self.fence.session).await.map_err(away)?;
        let Some(live) = live else { return Ok(None) };
        if live.node != self.worker.node {
            // Claimed from another node: that one has been silent for too long.
            self.write_off(live.sandbox, "its node is gone").await?;
            return Ok(None);
        }
        match sandbox.attach(self.grip(live.sandbox)).await {
            Ok(()) if live.is_announced => Ok(Some(live.sandbox)),
            Ok(()) => {
                // Its maker died before it could say that the box is there.
                self.announce(live.sandbox, 0).await?;
                Ok(Some(live.sandbox))
            }
            Err(Fault::Stale) => Err(ToolFault::Stale),
            Err(Fault::Gone) => {
                if live.is_announced || self.was_announced(live.sandbox).await? {
                    self.write_off(live.sandbox, "it was gone when its session went on").await?;
                } else {
                    // Its maker died on the way: nothing ran in it, and nobody heard of it.
                    self.end_row(live.sandbox).await?;
                }
                Ok(None)
            }
            Err(fault @ (Fault::NotFound(_) | Fault::Refused(_) | Fault::Unavailable(_))) => {
                // It does not answer: it is ended, so that no second one lives beside it.
                sandbox
                    .destroy(live.sandbox)
                    .await
                    .map_err(|fault| ToolFault::Unavailable(fault.to_string()))?;
                self.write_off(live.sandbox, &fault.to_string()).await?;
                Ok(None)
            }
        }
    }

    async fn make(&self, sandbox: &dyn Sandbox) -> Result<SandboxId, ToolFault> {
        let origin = self.worker.journal.origin();
        let started = Instant::now();
        for attempt in 1.. {
            let id: SandboxId = origin.id();
            let row = LiveSandbox {
                tenant: self.fence.tenant,
                session: self.fence.session,
                sandbox: id,
                node: self.worker.node,
                is_announced: false,
            };
            if !self.worker.store.begin_sandbox(row, self.fence.epoch).await.map_err(away)? {
                return Err(ToolFault::Stale);
            }
            let spec = Spec {
                sandbox: id,
                tenant: self.fence.tenant,
                session: self.fence.session,
                limits: self.wish.limits,
                env: self.wish.env.clone(),
            };
            match sandbox.create(&spec, self.fence.epoch).await {
                Ok(()) => {
                    let duration_ms = started.elapsed().as_millis() as u64;
                    self.announce(id, duration_ms).await?;
                    return Ok(id);
                }
                Err(fault) => {
                    self.end_row(id).await?;
                    if matches!(fault, Fault::Stale) {
                        return Err(ToolFault::Stale);
                    }
                    tracing::warn!(session.id = %self.fence.session, attempt, %fault, "a sandbox did not start");
                    if attempt >= SANDBOX_START_ATTEMPTS_MAX {
                        return Err(ToolFault::Unavailable(fault.to_string()));
                    }
                    tokio::time::sleep(BACKOFF.delay(attempt, origin)).await;
                }
            }
        }
        unreachable!("the loop above only ends by returning")
    }

    /// Whether the log says that the box is there: its maker may have died before the
    /// row said so, too.
    async fn was_announced(&self, id: SandboxId) -> Result<bool, ToolFault> {
        let log = self.writer.log().await.map_err(|error| ToolFault::Away(error.to_string()))?;
        let says = |body: &Body| matches!(body, Body::SandboxCreated { sandbox_id, .. } if *sandbox_id == id);
        Ok(log.iter().any(|event| says(&event.draft.body)))
    }

    /// Says that the box is there, before anything runs in it.
    async fn announce(&self, id: SandboxId, duration_ms: u64) -> Result<(), ToolFault> {
        self.say(Body::SandboxCreated { sandbox_id: id, duration_ms }).await?;
        self.worker.store.announced_sandbox(self.fence.tenant, id).await.map_err(away)
    }

    /// Says that a box is gone before its row is: whoever finds no row finds that.
    async fn write_off(&self, id: SandboxId, reason: &str) -> Result<(), ToolFault> {
        self.say(Body::SandboxLost { sandbox_id: id, reason: reason.to_owned() }).await?;
        self.end_row(id).await
    }

    async fn end_row(&self, id: SandboxId) -> Result<(), ToolFault> {
        self.worker.store.end_sandbox(self.fence.tenant, self.fence.session, id).await.map_err(away)
    }

    async fn say(&self, body: Body) -> Result<(), ToolFault> {
        let draft = Draft {
            id: self.worker.journal.origin().id(),
            actor: Actor::system(),
            level: body.level(),
            turn_id: Some(self.writer.turn()),
            step_id: None,
            refs: serde_json::Map::new(),
            body,
        };
        match self.writer.record(vec![draft]).await {
            Ok(_) => Ok(()),
            Err(Halted::Stale | Halted::Moved) => Err(ToolFault::Stale),
            Err(Halted::Failed(error)) => Err(ToolFault::Away(error.to_string())),
        }
    }
}

fn away(error: store::Error) -> ToolFault {
    ToolFault::Away(error.to_string())
}
