//! Turn loop of the harness: runs an agent from its input to its yield.
//!
//! Called by `worker` under a lease. It uses only ports ([`Model`], [`Tools`], [`Journal`]) and
//! time, never HTTP or SQL, so a simulation can run it. The next action is computed from the log
//! alone, so a turn of another worker continues where its log ends.

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

pub use crate::model::{Delta, Model};
pub use turn::{Ports, Turn, run};

/// The log, as a leased turn may append to it.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends atomically and returns the events with their `seq` and time.
    async fn record(&self, drafts: Vec<Draft>) -> Result<Vec<Event>, Halt>;
    /// Returns the whole log so far.
    async fn log(&self) -> Result<Vec<Event>, Halt>;
    /// Takes back the log of a turn that ended, for the log cache.
    fn keep(&self, _log: Vec<Event>) {}
    /// Returns the current session; its limits may have been raised.
    async fn session(&self) -> Result<Session, Halt>;
    /// Returns whether any reader streams response deltas.
    fn is_heard(&self) -> bool {
        false
    }
    /// Sends a delta of a response; it is never stored.
    fn tell(&self, _piece: Piece) {}
    /// Returns the current limits that the session shares with its ancestors and descendants.
    async fn budgets(&self, _session: &Session) -> Result<Vec<Budget>, Halt> {
        Ok(Vec::new())
    }
    /// Reserves the money for the next model call until the append that records its end.
    ///
    /// Also reserves amounts of shared limits, if the session has any. `most` is the max usage of
    /// the call; it is evaluated only if a limit applies.
    async fn reserve(
        &self,
        most: &(dyn Fn() -> Most + Send + Sync),
        is_shared: bool,
    ) -> Result<Verdict, Halt>;
    /// Reserves `most` micro-USD for a command of the tool call `call_id`, until
    /// [`Journal::release_exec`].
    async fn reserve_exec(&self, _call_id: &str, _most: u64, _is_shared: bool) -> Result<Verdict, Halt> {
        Ok(Verdict::Granted { close: Vec::new() })
    }
    /// Records the cost of work that was in progress when the session was archived; its log takes
    /// no more events.
    async fn pay_late(&self, _drafts: Vec<Draft>) -> Result<(), Halt> {
        Ok(())
    }
    /// Releases the reservations for commands after their cost was recorded.
    async fn release_exec(&self, _call_id: &str) -> Result<(), Halt> {
        Ok(())
    }
}

/// The tools of the session and the sandbox that runs them.
#[async_trait]
pub trait Tools: Send + Sync {
    /// Returns the tools that the model may call, in catalog order.
    fn specs(&self) -> &[ToolSpec];
    /// Returns an error for the model if a call is invalid: an unknown tool, or arguments that do
    /// not match. Needs no sandbox.
    fn refused(&self, call: &ToolCall) -> Option<String>;
    /// Returns the max run time of the command that the call starts; `None` if it starts none that
    /// costs anything.
    fn longest(&self, call: &ToolCall) -> Option<Duration>;
    /// Runs a call whose `tool.call` is in the log. Dropping the future leaves a command running;
    /// [`Tools::cancel`] ends it.
    async fn run(&self, call: &ToolCall) -> Result<Done, ToolFault>;
    /// Settles a call of a crashed worker by its replay class; never runs an unsafe call twice.
    async fn recover(&self, call: &ToolCall) -> Result<Done, ToolFault>;
    /// Ends everything that the call started, and returns once it is gone. Returns the command, if
    /// the sandbox reports how it ended.
    async fn cancel(&self, call: &ToolCall) -> Option<(Executed, Duration)>;
    /// Returns how long the command of a call has run under this lease; `None` if the call starts
    /// none or has not begun.
    fn running(&self, _call: &ToolCall) -> Option<Duration> {
        None
    }
}

impl dyn Tools + '_ {
    /// Returns the replay class of a tool; an unknown tool runs nothing.
    pub fn replay(&self, tool: &str) -> Replay {
        let spec = self.specs().iter().find(|spec| spec.name == tool);
        spec.map_or(Replay::ReadOnly, |spec| spec.replay)
    }
}

/// Result of a tool that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Text for the model, already truncated.
    pub output: String,
    pub is_error: bool,
    /// Whether it ran, as far as can be known.
    pub outcome: crate::domain::event::Outcome,
    pub duration: Duration,
    /// The command that ran in the sandbox, if any.
    pub exec: Option<Executed>,
}

/// A command that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Executed {
    pub command: String,
    pub exit_code: i32,
    pub summary: String,
    pub bytes: u64,
    pub cause: String,
}

/// Reason why a tool could not run. Errors that the model can handle are [`Done`] instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ToolFault {
    /// Another worker has the lease: stop.
    #[error("another worker holds the sandbox")]
    Stale,
    /// No sandbox was available after bounded tries: the turn ends.
    #[error("no sandbox is available: {0}")]
    Unavailable(String),
    /// The sandbox could not be prepared: the turn ends, a retry would not help.
    #[error("the sandbox could not be prepared: {1}")]
    Unready(Unready, String),
    /// The database is unavailable: the outcome of the call is queried later.
    #[error("the database is unavailable: {0}")]
    Away(String),
}

/// Missing requirement of a session's sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unready {
    /// A lifecycle hook of the environment failed.
    LifecycleHook,
    /// The available credential may not read a repository.
    RepoAccess,
    /// A repository cannot be cloned as configured.
    Source,
}

impl Unready {
    /// Returns the error code of a turn that ends for this reason.
    pub fn code(self) -> &'static str {
        match self {
            Self::LifecycleHook => "lifecycle_hook_failed",
            Self::RepoAccess => "missing_repo_access",
            Self::Source => "source_failed",
        }
    }
}

/// Reason why a turn stops without its own end; the log shows where to continue.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// Another worker has the lease; nothing may be appended any more.
    #[error("the lease was lost")]
    Stale,
    /// Input arrived before the turn started: start again with the new window.
    #[error("the session changed before the turn started")]
    Moved,
    /// The worker is shutting down; the next worker continues the turn.
    #[error("the worker is draining")]
    Drained,
    /// Nothing can be done before this duration has passed: release the slot.
    #[error("waiting for the provider")]
    Wait(Duration),
    /// The database or a blob is unavailable; the lease decides which worker continues.
    #[error("the database or the blob store is unavailable: {0}")]
    Unavailable(String),
}

/// External signals that stop a turn, in order of urgency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The lease was lost: drop everything.
    pub lost: bool,
    /// A caller requested that the turn end.
    pub cancel: bool,
    /// The worker is shutting down: release the turn at the next checkpoint.
    pub drain: bool,
}
