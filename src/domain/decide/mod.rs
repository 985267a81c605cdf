//! Decides which events a caller's command appends, or why it is refused.
//!
//! Pure: state, command and stamp in, events out. Called by `journal::execute`, which holds the
//! session's row lock and derives further effects (a wake, a delivery, a clean-up) from the events.

mod answer;
mod archive;
mod cancel;
mod compact;
mod context;
mod create;
mod heartbeat;
mod input;
mod lifecycle;
mod operate;
mod patch;
mod rejection;
mod retry;
mod stamp;
mod steer;

use super::{
    action::{ActionAnswer, ActionState, Consequences},
    compaction::CompactionRequest,
    context::ContextChange,
    event::{CancelMode, Draft},
    ids::*,
    open_work::OpenWork,
    operation::Request,
    registry::Tool,
    session::Session,
};

use stamp::{canceled, end_or_request, withdrawn};

pub use create::{NewSession, create};
pub use input::{Input, InputMode};
pub use patch::Change;
pub use rejection::Rejection;
pub use stamp::Stamp;
pub use steer::QueuedMessage;

/// A caller's command on a session.
#[derive(Clone, Debug)]
pub enum Command {
    /// Send input.
    Steer(Input),
    /// End the running and the queued turn; or cancel a session that never had one.
    Cancel,
    /// End the running turn only.
    Interrupt,
    /// Summarize the history.
    Compact(CompactionRequest),
    /// Queue the last turn again, which failed.
    Retry(TurnId),
    /// Close the session permanently.
    Archive,
    /// Answer an action, whose state is `state`.
    Answer { state: ActionState, answer: ActionAnswer, consequences: Consequences, claim: Option<ClaimId> },
    /// Check that an action can be claimed.
    ClaimAction(ActionState),
    /// End a granted rule.
    RevokeGrant { grant_event_id: EventId },
    /// The running turn reads what steers it, of these messages of the queued turn.
    ReadSteers(Vec<QueuedMessage>),
    /// Close actions whose time has passed.
    ExpireActions(Vec<ActionId>),
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

impl Command {
    /// Returns whether the command may end a turn that waits. Then it is decided on the turn's open
    /// work; an archive also on that of a turn which a worker runs.
    pub fn may_end_turn(&self) -> bool {
        match self {
            Self::Cancel | Self::Interrupt | Self::Archive | Self::Stop { .. } => true,
            Self::Steer(input) => input.mode == InputMode::Interrupt,
            _ => false,
        }
    }
}

/// Returns the events of a command, in order; none if it changes nothing.
///
/// `open` is the open work of the running turn, if [`Command::may_end_turn`].
///
/// # Errors
/// The [`Rejection`] states what the caller should do instead.
pub fn decide(
    session: &Session,
    open: &OpenWork,
    command: Command,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    match command {
        Command::Steer(input) => steer::decide(session, open, input, stamp),
        Command::Cancel => Ok(cancel::decide(session, open, stamp)),
        Command::Interrupt => Ok(end_or_request(session, open, CancelMode::Interrupt, stamp)),
        Command::Compact(request) => compact::decide(session, request, stamp),
        Command::Retry(turn) => retry::decide(session, turn, stamp),
        Command::Archive => Ok(archive::decide(session, open, stamp)),
        Command::Answer { state, answer, consequences, claim } => {
            answer::decide(session, &state, (answer, consequences), claim, stamp)
        }
        Command::RevokeGrant { grant_event_id } => answer::revoke(session, grant_event_id, stamp),
        Command::ClaimAction(state) => answer::claim(session, &state),
        Command::ReadSteers(queued) => Ok(steer::read(session, &queued, stamp)),
        Command::ExpireActions(expired) => Ok(answer::expire(session, &expired, stamp)),
        Command::Heartbeat { sandbox } => heartbeat::decide(session, sandbox, stamp),
        Command::Operate { operation, request } => operate::decide(session, operation, &request, stamp),
        Command::Start { has_sandbox } => lifecycle::start(session, has_sandbox, stamp),
        Command::Stop { reason } => lifecycle::stop(session, open, reason, stamp),
        Command::Pause => lifecycle::pause(session, stamp),
        Command::Resume => lifecycle::resume(session, stamp),
        Command::Wake => lifecycle::wake(session),
        Command::ChangeContext(change) => context::change(session, change, stamp),
        Command::RegisterTool { tool, known } => context::register(session, tool, known.as_ref(), stamp),
        Command::Patch(change) => patch::decide(session, change, stamp),
    }
}
