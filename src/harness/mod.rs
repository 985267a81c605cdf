//! Turn loop of the harness: runs an agent from its input to its yield.
//!
//! Called by `turn` under a lease. It uses only ports ([`Model`], [`Tools`], [`Journal`]) and
//! time, never HTTP or SQL, so a simulation can run it. The next action is computed from the log
//! alone, so a turn of another worker continues where its log ends.

mod aborted;
mod actions;
mod compaction;
mod files;
mod interrupt;
mod limits;
mod loops;
mod mcp;
mod models;
mod next;
mod output;
mod spend;
mod steers;
mod step;
mod tools;
pub(crate) mod turn;
mod wait;

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    base::Timestamp,
    domain::{
        Event, FileId, Session,
        budget::{Budget, MaxUsage},
        content::{Content, FileRef},
        custom_tool::CustomTool,
        event::{Body, Draft},
        log_fold::{LogFold, McpLists, ReadTo},
        permission::{Grant, PolicyDecision},
        piece::ResponseDelta,
        question::Question,
        spend::Verdict,
        tool::{Replay, ToolCall, ToolSpec},
    },
};

pub use crate::{
    model::{Delta, Model},
    tool::{Call, CallResult, ExecSummary, Fault},
};
pub use actions::unanswered;
pub use turn::{Ports, Turn, TurnModel, run};

/// The log, as a leased turn may append to it.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends atomically and returns the events with their `seq` and time. `read_to` is how far the turn has read what
    /// callers sent it: events that withdraw actions or wait for them, or end the turn as completed, are `Moved` if
    /// an action has ended since, or a message steers the turn.
    async fn record(&self, drafts: Vec<Draft>, read_to: ReadTo) -> Result<Vec<Event>, Halt>;
    /// Adds the events that follow the fold in the log, also those that others appended.
    ///
    /// After an error, the fold has some of them.
    async fn catch_up(&self, fold: &mut LogFold) -> Result<(), Halt>;
    /// Closes actions of the turn whose time has passed by the clock of the database. Returns whether an action has
    /// ended after the event at `read_to_seq`.
    async fn actions_ended(&self, _read_to_seq: i64) -> Result<bool, Halt> {
        Ok(false)
    }
    /// Lets the turn read the messages of the queued turn that steer it, and adds to the fold what follows it in the
    /// log.
    async fn read_steers(&self, fold: &mut LogFold) -> Result<(), Halt> {
        self.catch_up(fold).await
    }
    /// Reads the files of parts in the form in which a model gets them. One that is gone is missing.
    async fn files(&self, _parts: Vec<Content>) -> Result<HashMap<FileId, Bytes>, Halt> {
        Ok(HashMap::new())
    }
    /// Returns the current session; its limits may have been raised.
    async fn session(&self) -> Result<Session, Halt>;
    /// Returns whether any reader streams response deltas.
    fn has_readers(&self) -> bool {
        false
    }
    /// Sends a delta of a response; it is never stored.
    fn tell(&self, _piece: ResponseDelta) {}
    /// Returns the current limits that the session shares with its ancestors and descendants.
    async fn budgets(&self, _session: &Session) -> Result<Vec<Budget>, Halt> {
        Ok(Vec::new())
    }
    /// Reserves the most that the next model call may use, until the event of its end is appended.
    ///
    /// Reserves in shared limits too if the session has any. `most` is called only if a limit
    /// applies. `is_unbound` means that no cap or balance applies.
    async fn reserve(
        &self,
        most: &(dyn Fn() -> MaxUsage + Send + Sync),
        is_shared: bool,
        is_unbound: bool,
    ) -> Result<Verdict, Halt>;
    /// Reserves `most` micro-USD for a command of the tool call `call_id`, until
    /// [`Journal::release_exec`].
    async fn reserve_exec(&self, _call_id: &str, _most: u64, _is_shared: bool) -> Result<Verdict, Halt> {
        Ok(Verdict::Granted { close: Vec::new() })
    }
    /// Records the cost of work that was in progress when the session was archived; its log takes
    /// no more events.
    async fn bill_late(&self, _drafts: Vec<Draft>) -> Result<(), Halt> {
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
    /// The tools that the model may call, in catalogue order.
    fn specs(&self) -> Arc<[ToolSpec]>;
    /// Lists the tools of the MCP servers whose list is due for a turn that started at `since`, or that changed.
    /// Returns the event of each, and why the turn cannot go on now.
    async fn list_mcp(&self, _known: &McpLists, _since: Timestamp) -> (Vec<Body>, Option<Halt>) {
        (Vec::new(), None)
    }
    /// Offers these tools of MCP servers from now on.
    fn offer_mcp(&self, _known: &McpLists) {}
    /// Returns a server that the agent needs and that could not list its tools.
    fn missing_mcp(&self, _known: &McpLists, _since: Timestamp) -> Option<String> {
        None
    }
    /// Checks a call; or words for the model: an unknown tool, arguments that are not valid. Needs no
    /// sandbox.
    fn check(&self, call: &ToolCall) -> Result<Call, String>;
    /// Returns the tool of a call that a caller runs, if its arguments fit.
    fn caller_tool(&self, _call: &ToolCall) -> Option<&CustomTool> {
        None
    }
    /// Returns the questions of a call that waits for their answers, and the seconds that it waits.
    fn questions(&self, _call: &ToolCall) -> Option<(Vec<Question>, u64)> {
        None
    }
    /// Returns the first faults of an output that a call submits, none if it fits the schema of the turn; `None` for
    /// another call.
    fn output_faults(&self, call: &ToolCall) -> Option<Vec<String>>;
    /// Evaluates the permissions of the session, with what was `granted` in it, for a call. Allows a call whose
    /// arguments do not fit, because it does not run.
    fn decision(&self, _call: &ToolCall, _granted: &[Grant]) -> PolicyDecision {
        PolicyDecision::default()
    }
    /// Names the files that the sandbox has to have before a call runs in it.
    fn want_files(&self, _files: &[FileRef]) {}
    /// Returns the hash of a call and of what it runs with, which a confirmation is bound to.
    fn args_hash(&self, _call: &ToolCall) -> String {
        String::new()
    }
    /// Reads what the response of a person to the server of a call needs, so that the call does not fail for the database.
    async fn open_response(&self, _call: &Call) -> Result<(), Halt> {
        Ok(())
    }
    /// Runs a call whose `tool.call` is in the log. Dropping the future leaves a command running;
    /// [`Tools::cancel`] ends it.
    async fn run(&self, call: &Call) -> Result<CallResult, Fault>;
    /// Settles a call of a crashed worker by its replay class; never runs an unsafe call twice.
    async fn recover(&self, call: &Call) -> Result<CallResult, Fault>;
    /// Ends whatever the call started. Returns when nothing of it is left, with the command that it
    /// was, where its sandbox reports how that ended.
    async fn cancel(&self, call: &ToolCall) -> Option<ExecSummary>;
    /// Run time of a call's command under this lease so far; `None` for a call without a command, or one
    /// that has not started.
    fn running(&self, _call: &ToolCall) -> Option<Duration> {
        None
    }
}

impl dyn Tools + '_ {
    /// Returns the replay class of a tool; an unknown tool runs nothing.
    pub fn replay(&self, tool: &str) -> Replay {
        let specs = self.specs();
        specs.iter().find(|spec| spec.name == tool).map_or(Replay::ReadOnly, |spec| spec.replay)
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
    #[error("waiting for the provider or the sandbox")]
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
