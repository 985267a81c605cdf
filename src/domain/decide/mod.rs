//! Decides which events a caller's command appends, or why it is refused.
//!
//! Pure: state, command and stamp in, events out. Called by `journal::execute`, which holds the
//! session's row lock and derives further effects (a wake, a delivery, a clean-up) from the events.

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
    limit::{SESSION_DEPTH_MAX, SESSION_DESCENDANTS_MAX},
};

pub use create::{NewSession, create};
pub use patch::Change;

/// A caller's command on a session.
#[derive(Clone, Debug)]
pub enum Command {
    /// Send input.
    Steer(Input),
    /// End the running and the queued turn; or cancel a session that never had one.
    Cancel,
    /// Close the session permanently.
    Archive {
        /// Tool calls of the running turn that have no result yet.
        open_calls: Vec<ToolCall>,
    },
    /// Extend the sandbox's life; logged only if `sandbox` is set.
    Heartbeat { sandbox: Option<SandboxId> },
    /// Run an operation on the sandbox; an exec is logged from here on.
    Operate { operation: OperationId, request: Request },
    /// Start the sandbox; `has_sandbox` is whether one exists.
    Start { has_sandbox: bool },
    /// End the running turn and stop the session.
    Stop { reason: Option<String> },
    /// Prevent new work from starting.
    Pause,
    /// Continue a paused session.
    Resume,
    /// Re-evaluate pending work.
    Wake,
    /// Change the context of commands.
    ChangeContext(ContextChange),
    /// Register a tool; `known` is the tool that had this name.
    RegisterTool { tool: Tool, known: Option<Tool> },
    /// Change title, slug, metadata or limits.
    Patch(Change),
}

/// A message to the agent.
#[derive(Clone, Debug, Default)]
pub struct Input {
    pub text: String,
    /// The whole input, if it was an object.
    pub object: Option<Value>,
    /// The envelope without `text` and `refs`.
    pub envelope: Option<Map<String, Value>>,
    pub refs: Map<String, Value>,
    /// Whether to interrupt the running turn first.
    pub interrupt: bool,
}

impl Input {
    /// Parses input: a string, or an object with a `text` field.
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

/// The actor of a command, and the source of new ids.
#[derive(Clone, Debug)]
pub struct Stamp {
    pub actor: Actor,
    pub origin: Origin,
}

/// Reason why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The session is archived.
    #[error("the session is archived and read-only; create a new one")]
    Archived,
    /// The session has no agent.
    #[error("the session was created without an agent, so no agent reads its messages")]
    NoAgent,
    /// A limit of the session is used up; its name.
    #[error("the session's limit `{0}` is used up; raise it to continue")]
    BudgetExceeded(&'static str),
    /// A spend cap is used up; its name.
    #[error("the spend cap `{0}` is used up; raise it or wait for the cap's window to pass")]
    CapExceeded(&'static str),
    /// The organization's balance is used up.
    #[error("the organization's balance is used up; top it up to continue")]
    BalanceExhausted,
    /// The session is paused.
    #[error("the session is paused; resume it first")]
    Paused,
    /// The session is stopped.
    #[error("the session is stopped; start it first")]
    Stopped,
    /// The sandbox of a session without an agent could not be replaced.
    #[error("the session failed because its sandbox could not be replaced; start it to try again")]
    Failed,
    /// A limit of an ancestor session is used up; its name, and the ancestor.
    #[error("the limit `{0}` of the ancestor session {1} is used up; raise it to continue")]
    AncestorLimitExceeded(&'static str, SessionId),
    /// The parent session is archived.
    #[error("the parent session is archived, so it cannot have new child sessions")]
    ParentArchived,
    /// The parent session already has the max number of ancestors.
    #[error("sessions can be nested at most {SESSION_DEPTH_MAX} levels deep")]
    TooDeep,
    /// A session tree has the max number of sessions.
    #[error("the root session has {SESSION_DESCENDANTS_MAX} descendants, the maximum; delete finished ones")]
    TooManyDescendants,
    /// The session to delete has open descendants.
    #[error("child sessions of this session are not archived; archive or delete them first")]
    OpenDescendants,
    /// A turn is running and uses the files that the command would replace.
    #[error("a turn of the session is running; cancel it or wait until it ends")]
    TurnRunning,
}

/// Returns the events of a command, in order; none if it changes nothing.
///
/// # Errors
/// The [`Rejection`] states what the caller should do instead.
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
    /// Creates an event by this actor, at the default level of its type.
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

/// The end of a turn that a caller ends before a worker does.
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

/// Requests the end of the running turn; `None` if that was requested before.
fn cancel_request(session: &Session, mode: CancelMode, stamp: &Stamp) -> Option<Draft> {
    let running = session.running.as_ref()?;
    (session.cancel_turn_id != Some(running.id))
        .then(|| stamp.draft(Some(running.id), Body::TurnCancelRequested { turn_id: running.id, mode }))
}
