//! The timers of a leased session: a row for each call, then an event that tells of it.
//!
//! A worker that dies between the two leaves a timer that nobody was told of; whoever
//! takes the call over finds the row, writes the event and answers with the same time.

use async_trait::async_trait;

use super::hands::Hands;
use crate::{
    base::{
        Timestamp,
        limit::{REVISIT_AHEAD_MAX, REVISITS_PENDING_MAX},
    },
    domain::{Body, revisit::When},
    harness,
    store::revisit::{Set, Wish},
    tool::{Timers, ToolFault, shown},
};

#[async_trait]
impl Timers for Hands {
    async fn set(
        &self,
        call_id: &str,
        when: When,
        note: &str,
    ) -> Result<Result<Timestamp, String>, ToolFault> {
        let wish =
            Wish { call_id, when, note, ahead_max: REVISIT_AHEAD_MAX, pending_max: REVISITS_PENDING_MAX };
        let set = self.keeper.worker.store.set_revisit(self.keeper.fence, wish).await;
        let at = match set.map_err(|error| ToolFault::Away(error.to_string()))? {
            Set::At(at) => at,
            Set::Stale => return Err(ToolFault::Stale),
            Set::Past(now) => return Ok(Err(format!("That time is over: it is {}.", shown(now)))),
            Set::TooFar(now) => {
                let days = REVISIT_AHEAD_MAX.as_secs() / 86_400;
                return Ok(Err(format!("It is {}; at most {days} days ahead are possible.", shown(now))));
            }
            Set::Full => {
                return Ok(Err(format!(
                    "This session waits for {REVISITS_PENDING_MAX} times already, and may not for more."
                )));
            }
        };
        self.tell_of(call_id, at, note).await?;
        Ok(Ok(at))
    }
}

impl Hands {
    /// Writes the event of a timer, unless the worker before has.
    async fn tell_of(&self, call_id: &str, at: Timestamp, note: &str) -> Result<(), ToolFault> {
        let away = |error: &dyn std::fmt::Display| ToolFault::Away(error.to_string());
        let log = self.writer.log().await.map_err(|error| away(&error))?;
        let is_told = log.iter().any(|event| {
            matches!(&event.draft.body, Body::RevisitScheduled { call_id: told, .. } if told == call_id)
        });
        if is_told {
            return Ok(());
        }
        let body = Body::RevisitScheduled { call_id: call_id.to_owned(), at, note: note.to_owned() };
        self.keeper.say(vec![body]).await.map_err(|fault| match fault {
            harness::ToolFault::Stale => ToolFault::Stale,
            fault => away(&fault),
        })
    }
}
