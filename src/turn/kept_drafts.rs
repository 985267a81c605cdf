//! Events of a turn whose append may have failed: a model's answer is paid for, and a command has run.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    domain::{Body, Event, EventId, event::Draft, log_fold::ReadTo},
    harness::Halt,
    journal::{AppendError, Halted, Writer},
};

use super::halt::{halt, unavailable};

/// Events that a lease has not seen in the log. Its next epoch appends them if they are not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptDrafts(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    drafts: Vec<Draft>,
    /// The last event that the lease appended before them.
    after: Option<EventId>,
    /// How far the turn had read what callers sent it.
    read_to: ReadTo,
}

impl KeptDrafts {
    /// Keeps the events of an append whose outcome is unknown.
    pub(super) fn keep(&self, drafts: impl IntoIterator<Item = Draft>, read_to: ReadTo) {
        let mut kept = self.lock();
        kept.drafts.extend(drafts);
        kept.read_to = read_to;
    }

    /// Remembers the last event of an append that succeeded.
    pub(super) fn appended(&self, events: &[Event]) {
        if let Some(last) = events.last() {
            self.lock().after = Some(last.draft.id);
        }
    }

    /// Reports the events that no epoch of this lease will append any more.
    pub(crate) fn report_lost(&self) {
        let events = self.take().len();
        if events > 0 {
            tracing::error!(events, "events of a turn are lost with its lease; its work is done again");
        }
    }

    fn take(&self) -> Vec<Draft> {
        mem::take(&mut self.lock().drafts)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the kept events of the writer's turn that are not in the log. Returns whether they end the turn
    /// or its lease; `None` if there were none.
    ///
    /// The writer must have a later epoch than the one that failed: then an append in progress cannot succeed
    /// any more.
    pub(crate) async fn append(&self, writer: &Writer) -> Result<Option<bool>, Halt> {
        let mut drafts = self.take();
        drafts.retain(|draft| draft.turn_id == writer.turn());
        if drafts.is_empty() {
            return Ok(None);
        }
        let Kept { after, read_to, .. } = *self.lock();
        let ids: Vec<_> = drafts.iter().map(|draft| draft.id).chain(after).collect();
        let known = match writer.known(&ids).await {
            Ok(known) => known,
            Err(error) => {
                self.keep(drafts, read_to);
                return Err(unavailable(error));
            }
        };
        let has = |id: EventId| known.contains(&id);
        if after.is_some_and(|after| !has(after)) {
            // A failover lost the events before them: the turn continues from what is left.
            tracing::error!(events = drafts.len(), "events of a turn are lost with those before them");
            return Ok(None);
        }
        drafts.retain(|draft| !has(draft.id));
        let is_end = |draft: &Draft| matches!(draft.body, Body::TurnCompleted(_) | Body::TurnWaiting { .. });
        let ends_turn = drafts.iter().any(is_end);
        if drafts.is_empty() {
            return Ok(None);
        }
        match writer.append(drafts, read_to).await {
            Ok(_) => Ok(Some(ends_turn)),
            Err(AppendError { halted, mut drafts }) => {
                let completes = |draft: &Draft| draft.body.depends_on_steers();
                match halted {
                    Halted::Failed(_) => self.keep(drafts, read_to),
                    // A message steers the turn instead of its end; the response stays.
                    Halted::Moved if drafts.iter().any(completes) => {
                        drafts.retain(|draft| !completes(draft));
                        self.keep(drafts, read_to);
                    }
                    Halted::Moved | Halted::Stale => {}
                }
                Err(halt(halted))
            }
        }
    }
}
