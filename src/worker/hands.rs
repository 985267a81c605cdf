//! The session's box: attached when a tool first needs it, not before.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{Worker, keeper::Keeper};
use crate::{
    base::backoff::Backoff,
    domain::SandboxId,
    harness::{ToolFault, history},
    journal::TurnWriter,
    sandbox::Sandbox,
    store::record::Fence,
    tool,
};

/// What a turn holds of its session's box.
pub(super) struct Hands {
    keeper: Keeper,
    writer: TurnWriter,
    attached: Mutex<Option<SandboxId>>,
}

impl Hands {
    pub(super) fn new(worker: Worker, fence: Fence, writer: TurnWriter) -> Self {
        let keeper = Keeper { worker, fence, turn: Some(writer.turn()) };
        Self { keeper, writer, attached: Mutex::new(None) }
    }

    /// The box, made when there is none.
    pub(super) async fn attached(&self) -> Result<tool::Hands, ToolFault> {
        let sandbox = self.keeper.provider()?;
        let mut attached = self.attached.lock().await;
        let id = match *attached {
            Some(id) => id,
            None => match self.keeper.greet(&*sandbox).await? {
                Some(id) => id,
                None => self.keeper.make(&*sandbox).await?,
            },
        };
        *attached = Some(id);
        Ok(self.hands(sandbox, id))
    }

    /// The box, if there is one.
    pub(super) async fn if_attached(&self) -> Option<tool::Hands> {
        let sandbox = self.keeper.provider().ok()?;
        let id = match *self.attached.lock().await {
            Some(id) => id,
            // A command of an earlier worker may still run there.
            None => self.keeper.greet(&*sandbox).await.ok()??,
        };
        Some(self.hands(sandbox, id))
    }

    /// Whether the box that an earlier worker used is still there.
    pub(super) async fn survived(&self) -> Result<bool, ToolFault> {
        let sandbox = self.keeper.provider()?;
        let mut attached = self.attached.lock().await;
        if attached.is_none() {
            *attached = self.keeper.greet(&*sandbox).await?;
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
            Some(id) => self.keeper.write_off(id, reason).await,
            None => Ok(()),
        }
    }

    /// How long to wait before asking a box again.
    pub(super) fn delay(&self, backoff: &Backoff, attempt: u32) -> std::time::Duration {
        backoff.delay(attempt, self.keeper.worker.journal.origin())
    }

    fn hands(&self, sandbox: Arc<dyn Sandbox>, id: SandboxId) -> tool::Hands {
        tool::Hands { sandbox, grip: self.keeper.grip(id), env: Vec::new(), cwd: String::new() }
    }
}
