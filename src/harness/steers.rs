//! Messages that steer the running turn: read before each model call, and instead of the end of the turn.

use super::{Halt, next::Finish, turn::Run};
use crate::domain::{event::Draft, turn::YieldReason};

impl Run<'_> {
    /// Reads the messages that steer the turn, if there are any.
    pub(super) async fn read_steers(&mut self) -> Result<(), Halt> {
        // The row of the session names the newest one.
        let is_behind = self.session.steer_head > self.fold.read_to().steers;
        if is_behind || self.fold.is_steered(self.turn.id) {
            self.ports.journal.read_steers(&mut self.fold).await?;
        }
        Ok(())
    }

    /// Returns whether the turn continues instead of its end, because a message steers it.
    pub(super) fn continues(&self, finish: Finish) -> bool {
        finish == Finish::Completed && self.fold.is_steered(self.turn.id)
    }

    /// Ends the turn as completed, after the events `before`, unless a message that it has not read steers it.
    pub(super) async fn end_unless_steered(&mut self, before: Vec<Draft>) -> Result<bool, Halt> {
        let response = before.clone();
        match self.end(YieldReason::Completed, None, None, before).await {
            Err(Halt::Moved) => {
                // The response stays; the worker continues from there.
                if !response.is_empty() {
                    self.record(response).await?;
                }
                Err(Halt::Moved)
            }
            ended => ended,
        }
    }
}
