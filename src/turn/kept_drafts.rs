//! Events of a turn whose append may have failed: a model's answer is paid for, and a command has run.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    domain::{Body, event::Draft},
    harness::Halt,
    journal::{AppendError, Halted, Writer},
};

use super::halt::{halt, unavailable};

/// Events that a lease has not seen in the log. Its next epoch appends them if they are not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptDrafts(Arc<Mutex<Vec<Draft>>>);

impl KeptDrafts {
    /// Keeps the events of an append whose outcome is unknown.
    pub(super) fn keep(&self, drafts: impl IntoIterator<Item = Draft>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(drafts);
    }

    /// Reports the events that no epoch of this lease will append any more.
    pub(crate) fn report_lost(&self) {
        let events = self.take().len();
        if events > 0 {
            tracing::error!(events, "events of a turn are lost with its lease; its work is done again");
        }
    }

    fn take(&self) -> Vec<Draft> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends the kept events of the writer's turn that are not in the log. Returns whether they end the turn.
    ///
    /// The writer must have a later epoch than the one that failed: then an append in progress cannot succeed
    /// any more.
    pub(crate) async fn append(&self, writer: &Writer) -> Result<bool, Halt> {
        let mut drafts = self.take();
        drafts.retain(|draft| draft.turn_id == writer.turn());
        if drafts.is_empty() {
            return Ok(false);
        }
        let log = match writer.log().await {
            Ok(log) => log,
            Err(error) => {
                self.keep(drafts);
                return Err(unavailable(error));
            }
        };
        drafts.retain(|draft| log.iter().all(|event| event.draft.id != draft.id));
        let ends_turn = drafts.iter().any(|draft| matches!(draft.body, Body::TurnCompleted(_)));
        if drafts.is_empty() {
            return Ok(false);
        }
        match writer.append(drafts).await {
            Ok(_) => Ok(ends_turn),
            Err(AppendError { halted, drafts }) => {
                if matches!(halted, Halted::Failed(_)) {
                    self.keep(drafts);
                }
                Err(halt(halted))
            }
        }
    }
}
