//! Waits of a turn for callers and for child sessions.
//!
//! A wait holds no worker: `turn.waiting` gives the lease back in its own append, which is refused while there is
//! an answer that the turn has not read, and wakes the turn again if a session has changed since it was read.

use std::time::Duration;

use super::{Halt, turn::Run};
use crate::{
    base::{Timestamp, limit::CLOCK_DIFFERENCE_MAX},
    domain::{
        Actor, SessionId,
        event::{Body, Draft},
    },
};

impl Run<'_> {
    /// Waits until its actions have ended, without a worker. Returns whether the wait began; else there is an end
    /// to read.
    pub(super) async fn wait_for_actions(&mut self) -> Result<bool, Halt> {
        self.wait(Vec::new(), None).await
    }

    /// Waits for sessions, at most until the given time, and for the actions that are open.
    pub(super) async fn wait(
        &mut self,
        session_ids: Vec<SessionId>,
        until: Option<Timestamp>,
    ) -> Result<bool, Halt> {
        let read_to_seq = self.fold.read_to().actions;
        if self.ports.journal.actions_ended(read_to_seq).await? {
            self.ports.journal.catch_up(&mut self.fold).await?;
            return Ok(false);
        }
        let open: Vec<_> = self.own().into_iter().flat_map(|turn| turn.open_actions()).collect();
        // The time that callers take does not count in the limits of time.
        let deadline = if open.is_empty() { self.deadline() } else { None };
        let expiries = open.iter().map(|(.., expires_at)| *expires_at);
        let Some(expires_at) = expiries.chain(until).chain(deadline).min() else { return Ok(false) };
        let left = Duration::try_from(expires_at - self.ports.origin.now()).unwrap_or_default();
        if !session_ids.is_empty() && left <= CLOCK_DIFFERENCE_MAX {
            // By the clock of the database the time may be over, and the job would be ready again at once; or not yet over,
            // so that the same is found again.
            tokio::time::sleep(CLOCK_DIFFERENCE_MAX).await;
            return Ok(false);
        }
        let body = Body::TurnWaiting {
            turn_id: self.turn.id,
            action_ids: open.into_iter().map(|(id, ..)| id).collect(),
            session_ids,
            read_to_seq,
            expires_at,
            active_seconds: self.active_seconds(),
        };
        self.record(vec![self.draft(body, Actor::system())]).await?;
        Ok(true)
    }

    /// Returns the event with which a waiting turn continues; it comes first in the next append.
    pub(super) fn resumption(&self) -> Option<Draft> {
        let turn = self.own().filter(|turn| turn.is_waiting())?;
        let waited_ms = turn.current_wait_ms(self.ports.origin.now());
        Some(self.draft(Body::TurnResumed { turn_id: self.turn.id, waited_ms }, Actor::system()))
    }

    /// Returns the time that the turn has waited for callers, with the current wait.
    pub(super) fn waited(&self) -> time::Duration {
        let waited = self.own().map(|turn| turn.waited_ms + turn.current_wait_ms(self.ports.origin.now()));
        time::Duration::milliseconds(waited.and_then(|waited| i64::try_from(waited).ok()).unwrap_or_default())
    }
}
