//! Tools with which an agent works with sessions below its own. They need no sandbox.
//!
//! They call the port [`Services`]. A call that changes something has one effect, also when it is repeated after a crash.

mod cancel;
mod message;
mod read;
mod start;
mod wait;

use super::{CallResult, Fault, Invocation, Services, Tool, parse};

pub use message::SessionMessage;
pub use read::{SessionEvent, SessionEvents};
pub use start::Child;
pub use wait::{SessionReport, SessionWait};

/// The tools, in the order of the catalogue.
pub(super) const TOOLS: [Tool; 5] = [start::TOOL, wait::TOOL, read::TOOL, message::TOOL, cancel::TOOL];
