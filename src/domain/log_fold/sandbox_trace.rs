//! Whether a call may have run in a sandbox that is gone, read from the end of the log.
//!
//! The worker that recovers a call asks after it has recorded the loss of the sandbox, so the fold that its turn
//! began with is too old. The events in question are near the end: the call is of the newest response.

use crate::domain::{Body, Event};

/// Types of the events that [`SandboxTrace`] reads.
pub const SANDBOX_TRACE: [&str; 7] = [
    "sandbox.created",
    "sandbox.lost",
    "sandbox.terminated",
    "tool.call",
    "tool.started",
    "action.required",
    "turn.waiting",
];

/// Search for the sandboxes that a call may have met. The newest event comes first.
pub struct SandboxTrace<'a> {
    call_id: &'a str,
    /// Whether a sandbox existed at the end of the log.
    is_there: Option<bool>,
    /// Whether a sandbox was created or lost after the call could begin.
    met: bool,
    /// Whether the event that let the call begin was read.
    announced: bool,
}

impl<'a> SandboxTrace<'a> {
    /// Creates the search for a call.
    pub fn new(call_id: &'a str) -> Self {
        Self { call_id, is_there: None, met: false, announced: false }
    }

    /// Processes the event before the last one. Returns whether the call may have run, once that is certain.
    pub fn take(&mut self, event: &Event) -> Option<bool> {
        match &event.draft.body {
            // The event of its creation may be missing; its loss implies that it existed.
            Body::SandboxCreated { .. } | Body::SandboxLost { .. } => {
                self.is_there.get_or_insert(matches!(event.draft.body, Body::SandboxCreated { .. }));
                self.met |= !self.announced;
            }
            Body::SandboxTerminated { .. } => {
                self.is_there.get_or_insert(false);
            }
            // A confirmed call cannot have run before its start.
            Body::ToolCall { call_id, .. } | Body::ToolStarted { call_id } => {
                self.announced |= call_id == self.call_id;
            }
            // A turn waits when no call runs.
            Body::TurnWaiting { .. } => self.announced = true,
            // After a question of its server, the call goes on with another request.
            Body::ActionRequired(action) => {
                self.announced |= action.continuation.is_some() && action.call_id == self.call_id;
            }
            _ => {}
        }
        match self.is_there {
            Some(true) => Some(true),
            Some(false) if self.announced => Some(self.met),
            Some(false) | None => None,
        }
    }

    /// Returns the answer at the beginning of the log.
    pub fn finish(self) -> bool {
        self.is_there == Some(true) || (self.announced && self.met)
    }
}

/// Returns whether a command of this call may have started, if no sandbox can be queried.
pub fn may_have_run(log: &[Event], call_id: &str) -> bool {
    let mut trace = SandboxTrace::new(call_id);
    log.iter().rev().find_map(|event| trace.take(event)).unwrap_or_else(|| trace.finish())
}
