//! Messages that steer a running turn: its worker reads them from the queued turn.

use super::{Error, Halted, Unit, Writer};
use crate::{
    domain::{
        Actor, Session, SessionId,
        decide::{Command, QueuedMessage, Stamp},
        event::{Body, Event},
    },
    store::{self, record::Fence},
};

impl Writer {
    /// Appends `turn.steered` for the messages of the queued turn that steer the writer's turn, if there are any.
    ///
    /// # Errors
    /// `Stale` when the fence does not hold, `Moved` when the turn does not run any more; nothing is written then.
    pub async fn read_steers(&self) -> Result<(), Halted> {
        let Fence { org, session: id, .. } = self.fence();
        let journal = self.journal();
        let mut unit = journal.begin(org).await?;
        let session = unit.tx.lock_session(id).await.map_err(Error::from)?;
        if !unit.tx.holds(self.fence()).await.map_err(Error::from)? {
            return Err(Halted::Stale);
        }
        if session.running.as_ref().map(|running| running.id) != self.turn() {
            return Err(Halted::Moved);
        }
        let queued = unit.queued_messages(&session).await.map_err(Error::from)?;
        let stamp = Stamp { actor: Actor::system(), origin: journal.origin().clone() };
        let read = queued.iter().filter(|message| message.steers).count();
        unit.execute_locked(session, Command::ReadSteers(queued), &stamp).await?;
        unit.commit().await?;
        metrics::counter!("sojourn_messages_steered_total").increment(read as u64);
        Ok(())
    }
}

impl Unit {
    async fn queued_messages(&mut self, session: &Session) -> Result<Vec<QueuedMessage>, store::Error> {
        let Some(queued) = &session.queued else { return Ok(Vec::new()) };
        self.tx.queued_messages(session.id, queued).await
    }

    /// Records which messages were read by a turn that they had not joined, and removes a queued turn that has no other.
    pub(super) async fn note_steers(&mut self, id: SessionId, events: &[Event]) -> Result<(), store::Error> {
        for event in events {
            let Body::TurnSteered { turn_id, from_turn_id, seqs, from_is_empty } = &event.draft.body else {
                continue;
            };
            self.tx.insert_steered(id, *turn_id, seqs, event.ts).await?;
            if *from_is_empty {
                self.tx.delete_turn(id, *from_turn_id).await?;
            }
        }
        Ok(())
    }
}
