//! The turn loop: what the agent does between its input and its yield.
//!
//! Called by `worker` under a lease. It sees only ports ([`Model`], [`Tools`],
//! [`Journal`]) and time, never HTTP or SQL, so a simulation can run it. What to
//! do next is read from the log alone, so a turn that another worker began goes on
//! where its log ends.

mod aborted;
pub mod history;
mod interrupt;
mod limits;
mod next;
mod spend;
mod step;
mod tools;
pub mod turn;

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::{
    Event, Session,
    budget::{Budget, Most},
    event::Draft,
    piece::Piece,
    spend::Verdict,
    tool::{Replay, ToolCall, ToolSpec},
};

pub use crate::{
    model::{Delta, Model},
    tool::{Call, CallResult, ExecSummary, Fault},
};
pub use turn::{Ports, Turn, run};

/// The log, as a leased turn may write it.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends in one go and returns the events with their places.
    async fn record(&self, drafts: Vec<Draft>) -> Result<Vec<Event>, Halt>;
    /// The whole log so far.
    async fn log(&self) -> Result<Vec<Event>, Halt>;
    /// The session as it is now: its limits may have been raised.
    async fn session(&self) -> Result<Session, Halt>;
    /// Whether anybody listens to answers while they grow.
    fn is_heard(&self) -> bool {
        false
    }
    /// Tells a piece of a growing answer. It is never written down.
    fn tell(&self, _piece: Piece) {}
    /// The limits that the session shares with those above and below it, as they are now.
    async fn budgets(&self, _session: &Session) -> Result<Vec<Budget>, Halt> {
        Ok(Vec::new())
    }
    /// Asks for the next model call, which may use as much as `most` says, and keeps
    /// that for it until the append that tells of its end; of shared limits too where the
    /// session has any. `most` is called only where something binds; `is_unbound` says that no cap or balance does.
    async fn reserve(
        &self,
        most: &(dyn Fn() -> Most + Send + Sync),
        is_shared: bool,
        is_unbound: bool,
    ) -> Result<Verdict, Halt>;
    /// The same for a command of the tool call `call_id`, which may cost `most`, until
    /// [`Journal::release_exec`].
    async fn reserve_exec(&self, _call_id: &str, _most: u64, _is_shared: bool) -> Result<Verdict, Halt> {
        Ok(Verdict::Granted { close: Vec::new() })
    }
    /// Pays for what was begun when the session was closed, where it was: nothing can be
    /// appended any more.
    async fn pay_late(&self, _drafts: Vec<Draft>) -> Result<(), Halt> {
        Ok(())
    }
    /// Frees what was kept for commands, after their cost was recorded.
    async fn release_exec(&self, _call_id: &str) -> Result<(), Halt> {
        Ok(())
    }
}

/// The tools of the session, with its sandbox behind them.
#[async_trait]
pub trait Tools: Send + Sync {
    /// The tools that the model may call, in catalogue order.
    fn specs(&self) -> &[ToolSpec];
    /// Checks a call; or words for the model: an unknown tool, arguments that are not valid. Needs no
    /// sandbox.
    fn check(&self, call: &ToolCall) -> Result<Call, String>;
    /// Runs a call whose `tool.call` is in the log. Dropping the future leaves a command running;
    /// [`Tools::cancel`] ends it.
    async fn run(&self, call: &Call) -> Result<CallResult, Fault>;
    /// Settles a call whose worker died: by its replay class, never twice when unsafe.
    async fn recover(&self, call: &Call) -> Result<CallResult, Fault>;
    /// Ends whatever the call started. Returns when nothing of it is left, with the command that it
    /// was, where its sandbox reports how that ended.
    async fn cancel(&self, call: &ToolCall) -> Option<ExecSummary>;
    /// How long the command of a call has been running under this lease; `None` for a call without a
    /// command, or one that has not begun.
    fn running(&self, _call: &ToolCall) -> Option<Duration> {
        None
    }
}

impl dyn Tools + '_ {
    /// What a crash in the middle of a call would mean; a tool that does not exist
    /// runs nothing.
    pub fn replay(&self, tool: &str) -> Replay {
        let spec = self.specs().iter().find(|spec| spec.name == tool);
        spec.map_or(Replay::ReadOnly, |spec| spec.replay)
    }
}

/// Why a turn stops without an end of its own. The log says where to go on.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// The lease is another's; nothing may be written any more.
    #[error("the lease was lost")]
    Stale,
    /// Input arrived before the turn started: begin again with the new window.
    #[error("the session moved on before the turn started")]
    Moved,
    /// The worker was asked to stop: the next one goes on.
    #[error("the worker drains")]
    Drained,
    /// Nothing to do before this has passed: give the slot to others.
    #[error("waits for the provider")]
    Wait(Duration),
    /// The database or a blob is out of reach; the lease decides who goes on.
    #[error("the record is out of reach: {0}")]
    Unavailable(String),
}

/// What may stop a turn from outside, in order of urgency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The lease was lost: drop everything.
    pub lost: bool,
    /// A caller asked the turn to end.
    pub cancel: bool,
    /// The worker is asked to stop: hand back at the next checkpoint.
    pub drain: bool,
}
