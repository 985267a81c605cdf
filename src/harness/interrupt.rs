//! Interrupts of a turn: a lost lease, a cancel, its deadline, a drain.
//!
//! Checked between two actions, and raced against each action. A cancel and a deadline end the
//! turn; the other two leave it to the next worker.

use std::time::Duration;

use futures::future::join_all;

use super::{
    Halt,
    limits::{self, ExceededLimit},
    turn::Run,
};
use crate::{
    base::Timestamp,
    domain::{
        Actor,
        event::{Aborted, Body, Draft, Outcome},
        mcp::MCP_PREFIX,
        session::Limits,
        tool::{SESSION_WAIT, ToolCall},
        turn::YieldReason,
    },
    tool::ExecSummary,
};

/// Reason why an action was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    Lost,
    Canceled,
    Deadline,
    Drained,
}

impl Interrupt {
    /// Returns the reason of an aborted model call; `None` if nothing may be appended.
    pub(super) fn cuts(self) -> Option<Aborted> {
        match self {
            Self::Lost => None,
            Self::Canceled => Some(Aborted::Canceled),
            Self::Deadline => Some(Aborted::Deadline),
            Self::Drained => Some(Aborted::Drained),
        }
    }
}

impl Run<'_> {
    /// Checks the signals between two actions.
    pub(super) async fn checkpoint(&mut self) -> Result<Option<Interrupt>, Halt> {
        let signals = *self.ports.signals.borrow();
        if signals.lost {
            return Err(Halt::Stale);
        }
        // A cancel from before the lease is only in the session's row, in no signal.
        if signals.cancel || self.session.cancel_turn_id == Some(self.turn.id) {
            return Ok(Some(Interrupt::Canceled));
        }
        if self.is_late() {
            // The limit may have been raised in the meantime; the row is authoritative.
            self.session = self.ports.journal.session().await?;
            if self.is_late() {
                return Ok(Some(Interrupt::Deadline));
            }
        }
        if signals.drain { Err(Halt::Drained) } else { Ok(None) }
    }

    /// Returns whether a cancel or deadline ends the turn now, from local state only.
    pub(super) fn is_to_end(&self) -> bool {
        self.ports.signals.borrow().cancel || self.is_late()
    }

    /// Resolves when an action must be abandoned; a drain gives it `drain_grace`.
    ///
    /// Cancel-safe: it only reads.
    pub(super) async fn interrupted(&self, drain_grace: Duration) -> Interrupt {
        let (mut signals, mut draining) = (self.ports.signals.clone(), self.ports.signals.clone());
        let signaled = async {
            match signals.wait_for(|signals| signals.lost || signals.cancel).await {
                Ok(signals) if !signals.lost => Interrupt::Canceled,
                // The sender was dropped with the lease.
                Ok(_) | Err(_) => Interrupt::Lost,
            }
        };
        let drained = async {
            if draining.wait_for(|signals| signals.drain).await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(drain_grace).await;
        };
        tokio::select! {
            biased; // a late cancel still takes precedence
            interrupt = signaled => interrupt,
            () = self.late() => Interrupt::Deadline,
            () = drained => Interrupt::Drained,
        }
    }

    /// Resolves when the deadline has passed; re-reads the limits at that time.
    async fn late(&self) {
        let mut limits = self.session.created.limits;
        while let Some(deadline) = self.deadline_by(limits) {
            let left = deadline - self.ports.origin.now();
            if !left.is_positive() {
                return;
            }
            tokio::time::sleep(left.try_into().unwrap_or_default()).await;
            // If the database is unavailable, a raised limit cannot be seen.
            let Ok(session) = self.ports.journal.session().await else { return };
            limits = session.created.limits;
        }
        std::future::pending().await
    }

    /// Ends the turn for an interrupt, after the events `before`. Whatever the turn started is
    /// ended first.
    pub(super) async fn give_up(&mut self, interrupt: Interrupt, before: Vec<Draft>) -> Result<bool, Halt> {
        let (reason, exceeded) = match interrupt {
            Interrupt::Lost => return Err(Halt::Stale),
            Interrupt::Drained => {
                if !before.is_empty() {
                    self.record(before).await?;
                }
                return Err(Halt::Drained);
            }
            Interrupt::Canceled => (YieldReason::Canceled, None),
            Interrupt::Deadline => {
                self.session = self.ports.journal.session().await?;
                (YieldReason::DeadlineExceeded, Some(self.late_by()))
            }
        };
        let why = if reason == YieldReason::Canceled { "canceled" } else { "ended by its deadline" };
        let stopped = self.stop().await;
        let results = |run: &Self| {
            let results = stopped.iter().flat_map(|(call, ran)| run.stopped_results(call, ran.as_ref(), why));
            before.iter().cloned().chain(results).collect()
        };
        self.end_with(reason, exceeded, results).await
    }

    /// Ends the turn after the results of its open calls, which are made again if a caller has answered meanwhile.
    pub(super) async fn end_with(
        &mut self,
        reason: YieldReason,
        exceeded: Option<ExceededLimit>,
        results: impl Fn(&Self) -> Vec<Draft>,
    ) -> Result<bool, Halt> {
        loop {
            let read_to = self.fold.read_to();
            let results = results(self);
            let ended = match &exceeded {
                Some(trip) => self.end_by(trip.clone(), results).await,
                None => self.end(reason, None, None, results).await,
            };
            match ended {
                Err(Halt::Moved) => self.ports.journal.catch_up(&mut self.fold).await?,
                ended => return ended,
            }
            if self.fold.read_to() == read_to {
                return Err(Halt::Moved);
            }
        }
    }

    /// Ends whatever the open calls started, and returns their results.
    pub(super) async fn stop_calls(&self, why: &str) -> Vec<Draft> {
        let stopped = self.stop().await;
        stopped.iter().flat_map(|(call, ran)| self.stopped_results(call, ran.as_ref(), why)).collect()
    }

    /// Ends whatever the open calls started. Returns each with the command that it was.
    async fn stop(&self) -> Vec<(ToolCall, Option<ExecSummary>)> {
        // Includes calls of an earlier attempt, which may not have started.
        let open = self.fold.open_calls(self.turn.id);
        // Concurrently, because each command may take time to terminate.
        let ran = join_all(open.iter().map(|call| self.ports.tools.cancel(call))).await;
        open.into_iter().zip(ran).collect()
    }

    /// Returns the deadline of the turn.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.deadline_by(self.session.created.limits)
    }

    fn deadline_by(&self, limits: Limits) -> Option<Timestamp> {
        let seconds = limits.turn_seconds.into_iter().chain(self.duration_left(limits)).min()?;
        // Time in which it waited for callers does not count.
        let seconds = seconds.saturating_sub(self.seconds_before());
        let span = time::Duration::try_from(Duration::from_secs(seconds)).ok()?.checked_add(self.waited())?;
        self.started_at()?.checked_add(span)
    }

    /// Returns the seconds that this turn may take before the session's limit is used up.
    fn duration_left(&self, limits: Limits) -> Option<u64> {
        limits.duration_seconds.map(|allowed| allowed.saturating_sub(self.session.duration_seconds()))
    }

    /// Returns the limit whose deadline came first.
    fn late_by(&self) -> ExceededLimit {
        let (limits, used) = (self.session.created.limits, self.active_seconds());
        let left = self.duration_left(limits);
        match limits.duration_seconds {
            Some(allowed) if left <= limits.turn_seconds.or(left) => {
                limits::budget("duration_seconds", used + self.session.duration_seconds(), allowed)
            }
            _ => {
                let allowed = limits.turn_seconds.unwrap_or(used);
                let reason = YieldReason::DeadlineExceeded;
                ExceededLimit { limit: "turn_seconds", used, allowed, reason, session: None }
            }
        }
    }

    fn is_late(&self) -> bool {
        self.deadline().is_some_and(|deadline| self.ports.origin.now() >= deadline)
    }

    /// Returns the result of a call that was stopped with its turn, and the event of the command
    /// that it ran until then.
    pub(super) fn stopped_results(
        &self,
        call: &ToolCall,
        ran: Option<&ExecSummary>,
        why: &str,
    ) -> Vec<Draft> {
        if let Some(done) = self.unanswered(call, why) {
            return self.result_events(call, done);
        }
        let exec = ran.map(|exec| self.exec_event(call, exec.clone()));
        let body = Body::ToolResult {
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            output: if call.tool == SESSION_WAIT {
                format!("The turn was {why} before the sessions had nothing to do; they go on.")
            } else if call.tool.starts_with(MCP_PREFIX) {
                format!("The turn was {why} before the server of this tool answered; it may have acted.")
            } else {
                format!("The turn was {why} before this tool finished; everything it started was stopped.")
            },
            is_error: true,
            outcome: Outcome::Unknown,
            duration_ms: 0,
            content: Vec::new(),
        };
        exec.into_iter().chain([self.draft(body, Actor::system())]).collect()
    }
}
