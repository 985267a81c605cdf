//! Which events a caller's command makes of a session, or why it is refused.
//!
//! Pure: state, command and stamp in, events out. Called by `journal::execute`,
//! which holds the session's row; whatever must happen besides (a wake, a
//! delivery, a clean-up) is read from the events there.

mod archive;
mod cancel;
mod context;
mod create;
mod heartbeat;
mod lifecycle;
mod operate;
mod patch;
mod steer;

use serde_json::{Map, Value};

use super::{
    context::ContextChange,
    event::{Actor, Body, CancelMode, Draft, TurnCompleted},
    ids::*,
    operation::Request,
    registry::Tool,
    session::Session,
    tool::ToolCall,
    turn::YieldReason,
    usage::Usage,
};
use crate::base::{
    Origin,
    limit::{SESSION_HEIGHT_MAX, SESSION_TREE_MAX},
};

pub use create::{NewSession, create};
pub use patch::Change;

/// What a caller wants of a session.
#[derive(Clone, Debug)]
pub enum Command {
    /// Give it input.
    Steer(Input),
    /// End what runs and what waits.
    Cancel,
    /// Close it for good.
    Archive {
        /// Calls of the running turn that have no result yet.
        open_calls: Vec<ToolCall>,
    },
    /// Keep the sandbox; in the log only where one is named.
    Heartbeat { sandbox: Option<SandboxId> },
    /// Ask something of the sandbox; a command is in the log from here on.
    Operate { operation: OperationId, request: Request },
    /// Have the sandbox there; whether it is.
    Start { has_sandbox: bool },
    /// End what runs, and be done until further notice.
    Stop { reason: Option<String> },
    /// Let nothing begin.
    Pause,
    /// Go on.
    Resume,
    /// Look at what waits.
    Wake,
    /// Change what commands start with.
    ChangeContext(ContextChange),
    /// Remember a tool; the one that had its name.
    RegisterTool { tool: Tool, known: Option<Tool> },
    /// Change what may change.
    Patch(Change),
}

/// A message to the agent.
#[derive(Clone, Debug, Default)]
pub struct Input {
    pub text: String,
    /// The whole input where it was an object.
    pub object: Option<Value>,
    /// The envelope without `text` and `refs`.
    pub envelope: Option<Map<String, Value>>,
    pub refs: Map<String, Value>,
    /// End the running turn first.
    pub interrupt: bool,
}

impl Input {
    /// Input as a caller sends it: text, or an object that carries it as `text`.
    pub fn of(input: Value) -> Self {
        match input {
            Value::String(text) => Self { text, ..Self::default() },
            object => {
                let text = object.get("text").and_then(Value::as_str).map(str::to_owned);
                let refs = object.get("refs").and_then(Value::as_object).cloned().unwrap_or_default();
                Self {
                    text: text.unwrap_or_else(|| object.to_string()),
                    object: Some(object),
                    refs,
                    ..Self::default()
                }
            }
        }
    }
}

/// Who asks, and where new ids come from.
#[derive(Clone, Debug)]
pub struct Stamp {
    pub actor: Actor,
    pub origin: Origin,
}

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The session is closed.
    #[error("the session is archived and read-only; create a new one")]
    Archived,
    /// The session has no agent that could read a message.
    #[error("the session was created without an agent, so nobody reads its messages")]
    NoAgent,
    /// A limit of the session is used up; its name.
    #[error("the session's limit `{0}` is used up; raise it to go on")]
    BudgetExceeded(&'static str),
    /// A cap on what may be spent is used up; its name.
    #[error("the cap `{0}` is spent; raise it, or wait until its days are over")]
    CapSpent(&'static str),
    /// The organization has nothing left to spend.
    #[error("the organization's balance is used up; top it up to go on")]
    Unpaid,
    /// A caller paused it.
    #[error("the session is paused; resume it first")]
    Paused,
    /// A caller stopped it.
    #[error("the session is stopped; start it first")]
    Stopped,
    /// A limit of a session above is used up; its name, and whose it is.
    #[error("the limit `{0}` of {1}, which is above this session, is used up; raise it to go on")]
    AboveExceeded(&'static str, SessionId),
    /// The parent that was named is closed.
    #[error("the parent session is archived, so nothing is started under it")]
    ParentArchived,
    /// The parent that was named has as many above it as may be.
    #[error("the parent session has {SESSION_HEIGHT_MAX} above it, and none may have more")]
    TooDeep,
    /// A tree has as many sessions as may be.
    #[error(
        "there are {SESSION_TREE_MAX} sessions below the topmost one, and no more may be; delete some that are over"
    )]
    TooManyBelow,
    /// Sessions below the one that is to be deleted are open.
    #[error(
        "sessions below this one are not archived, and its limits bind them; archive or delete them first"
    )]
    OpenBelow,
    /// A turn runs, whose files would go from under it.
    #[error("a turn of the session runs; cancel it or wait for its end")]
    TurnRunning,
}

/// The events of a command, in order; none when it changes nothing.
///
/// # Errors
/// The [`Rejection`] says what the caller should do instead.
pub fn decide(session: &Session, command: Command, stamp: &Stamp) -> Result<Vec<Draft>, Rejection> {
    match command {
        Command::Steer(input) => steer::decide(session, input, stamp),
        Command::Cancel => Ok(cancel::decide(session, stamp)),
        Command::Archive { open_calls } => Ok(archive::decide(session, open_calls, stamp)),
        Command::Heartbeat { sandbox } => heartbeat::decide(session, sandbox, stamp),
        Command::Operate { operation, request } => operate::decide(session, operation, &request, stamp),
        Command::Start { has_sandbox } => lifecycle::start(session, has_sandbox, stamp),
        Command::Stop { reason } => lifecycle::stop(session, reason, stamp),
        Command::Pause => lifecycle::pause(session, stamp),
        Command::Resume => lifecycle::resume(session, stamp),
        Command::Wake => lifecycle::wake(session),
        Command::ChangeContext(change) => context::change(session, change, stamp),
        Command::RegisterTool { tool, known } => context::register(session, tool, known.as_ref(), stamp),
        Command::Patch(change) => patch::decide(session, change, stamp),
    }
}

impl Stamp {
    /// An event by this actor, at its type's own level.
    pub fn draft(&self, turn_id: Option<TurnId>, body: Body) -> Draft {
        Draft {
            id: self.origin.id(),
            actor: self.actor.clone(),
            level: body.level(),
            turn_id,
            step_id: None,
            refs: Map::new(),
            body,
        }
    }
}

/// The end of a turn that a caller ended before a worker could.
fn canceled(turn_id: TurnId, usage: Usage) -> Body {
    Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id,
        yield_reason: YieldReason::Canceled,
        result_event_id: None,
        usage,
        active_seconds: 0,
        error: None,
        limit: None,
        failed: false,
    }))
}

/// The request that a running turn ends; none when one was made before.
fn cancel_request(session: &Session, mode: CancelMode, stamp: &Stamp) -> Option<Draft> {
    let running = session.running.as_ref()?;
    (session.cancel_turn_id != Some(running.id))
        .then(|| stamp.draft(Some(running.id), Body::TurnCancelRequested { turn_id: running.id, mode }))
}
