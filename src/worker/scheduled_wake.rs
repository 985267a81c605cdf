//! The timers of a leased session: a row for each call, then an event that tells of it.
//!
//! A worker that dies between the two leaves a timer that nobody was told of; whoever
//! takes the call over finds the row, writes the event and answers with the same time.

use async_trait::async_trait;

use super::leased_sandbox::LeasedSandbox;
use crate::{
    base::{
        Timestamp,
        limit::{SCHEDULED_WAKE_AHEAD_MAX, SCHEDULED_WAKES_PENDING_MAX},
    },
    domain::{Body, scheduled_wake::When},
    harness,
    store::scheduled_wake::{NewScheduledWake, Set},
    tool::{Timers, ToolFault, shown},
};

#[async_trait]
impl Timers for LeasedSandbox {
    async fn set(
        &self,
        call_id: &str,
        when: When,
        note: &str,
    ) -> Result<Result<Timestamp, String>, ToolFault> {
        let wake = NewScheduledWake {
            call_id,
            when,
            note,
            ahead_max: SCHEDULED_WAKE_AHEAD_MAX,
            pending_max: SCHEDULED_WAKES_PENDING_MAX,
        };
        let set = self.session.worker.store.set_scheduled_wake(self.session.fence, wake).await;
        let at = match set.map_err(|error| ToolFault::Away(error.to_string()))? {
            Set::At(at) => at,
            Set::Stale => return Err(ToolFault::Stale),
            Set::Past(now) => return Ok(Err(format!("That time is over: it is {}.", shown(now)))),
            Set::TooFar(now) => {
                let days = SCHEDULED_WAKE_AHEAD_MAX.as_secs() / 86_400;
                return Ok(Err(format!("It is {}; at most {days} days ahead are possible.", shown(now))));
            }
            Set::Full => {
                return Ok(Err(format!(
                    "This session waits for {SCHEDULED_WAKES_PENDING_MAX} times already, and may not for more."
                )));
            }
        };
        self.tell_of(call_id, at, note).await?;
        Ok(Ok(at))
    }
}

impl LeasedSandbox {
    /// Writes the event of a timer, unless the worker before has.
    async fn tell_of(&self, call_id: &str, at: Timestamp, note: &str) -> Result<(), ToolFault> {
        let away = |error: &dyn std::fmt::Display| ToolFault::Away(error.to_string());
        let log = self.writer.log().await.map_err(|error| away(&error))?;
        let is_told = log.iter().any(
            |event| matches!(&event.draft.body, Body::WakeScheduled { call_id: told, .. } if told == call_id),
        );
        if is_told {
            return Ok(());
        }
        let body = Body::WakeScheduled { call_id: call_id.to_owned(), at, note: note.to_owned() };
        self.session.say(vec![body]).await.map_err(|fault| match fault {
            harness::ToolFault::Stale => ToolFault::Stale,
            fault => away(&fault),
        })
    }
}
