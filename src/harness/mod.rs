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

pub use crate::model::{Delta, Model};
pub use turn::{Ports, Turn, run};

/// The log, as a leased turn may write it.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends in one go and returns the events with their places.
    async fn record(&self, drafts: Vec<Draft>) -> Result<Vec<Event>, Halt>;
    /// The whole log so far.
    async fn log(&self) -> Result<Vec<Event>, Halt>;
    /// Takes back the log of a turn that ended.
    fn keep(&self, _log: Vec<Event>) {}
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
    /// session has any. `most` is asked only where something binds.
    async fn reserve(
        &self,
        most: &(dyn Fn() -> Most + Send + Sync),
        is_shared: bool,
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
    /// What the model may call, in catalogue order.
    fn specs(&self) -> &[ToolSpec];
    /// Words for the model when a call cannot run as it is: an unknown tool,
    /// arguments that do not fit. Known without a sandbox.
    fn refused(&self, call: &ToolCall) -> Option<String>;
    /// The longest that a command may run which the call starts; `None` where it starts
    /// none that costs anything.
    fn longest(&self, call: &ToolCall) -> Option<Duration>;
    /// Runs a call whose `tool.call` is in the log. Dropping the future leaves a
    /// command running; [`Tools::cancel`] ends it.
    async fn run(&self, call: &ToolCall) -> Result<Done, ToolFault>;
    /// Settles a call whose worker died: by its replay class, never twice when unsafe.
    async fn recover(&self, call: &ToolCall) -> Result<Done, ToolFault>;
    /// Ends whatever the call started. Returns when nothing of it is left, with the command
    /// that it was, where its sandbox says how that ended.
    async fn cancel(&self, call: &ToolCall) -> Option<(Executed, Duration)>;
    /// For how long the command of a call has been at work under this lease; none of what
    /// starts none, or has not begun.
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

/// What a tool has to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Text for the model, already capped.
    pub output: String,
    pub is_error: bool,
    /// Whether it ran at all, as far as anyone can know.
    pub outcome: crate::domain::event::Outcome,
    pub duration: Duration,
    /// What was run in the sandbox, if anything.
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

/// Why a tool could not be run; what the model can be told is [`Done`] instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ToolFault {
    /// The lease is another's: stop.
    #[error("another worker holds the sandbox")]
    Stale,
    /// No sandbox could be had after bounded tries: the turn ends.
    #[error("no sandbox could be had: {0}")]
    Unavailable(String),
    /// The sandbox is not what the session needs: the turn ends, trying again would not help.
    #[error("the sandbox could not be made ready: {1}")]
    Unready(Unready, String),
    /// The record is out of reach: what became of the call is asked later.
    #[error("the record is out of reach: {0}")]
    Away(String),
}

/// What a session's sandbox lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unready {
    /// A lifecycle hook of the environment failed.
    LifecycleHook,
    /// A repository may not be read with what there is for it.
    RepoAccess,
    /// A repository cannot be cloned as it is named.
    Source,
}

impl Unready {
    /// The error of a turn that ends by it.
    pub fn code(self) -> &'static str {
        match self {
            Self::LifecycleHook => "lifecycle_hook_failed",
            Self::RepoAccess => "missing_repo_access",
            Self::Source => "source_failed",
        }
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
