//! Decides which events a caller's command appends, or why it is refused.
//!
//! Pure: state, command and stamp in, events out. Called by `journal::execute`, which holds the
//! session's row lock and derives further effects (a wake, a delivery, a clean-up) from the events.

mod archive;
mod cancel;
mod context;
mod create;
mod heartbeat;
mod input;
mod lifecycle;
mod operate;
mod patch;
mod rejection;
mod stamp;
mod steer;

use super::{
    context::ContextChange, event::Draft, ids::*, operation::Request, registry::Tool, session::Session,
    tool::ToolCall,
};

use stamp::{cancel_request, canceled};

pub use create::{NewSession, create};
pub use input::Input;
pub use patch::Change;
pub use rejection::Rejection;
pub use stamp::Stamp;

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
