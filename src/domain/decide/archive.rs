//! Archive: ends all turns and open calls and closes the session.
//!
//! The worker is not consulted: the journal raises the lease epoch, so the worker's later writes
//! are refused.

use super::{Stamp, canceled};
use crate::domain::{
    event::{Body, Draft, Outcome},
    session::{Session, Status},
    tool::ToolCall,
};

pub(super) fn decide(session: &Session, open_calls: Vec<ToolCall>, stamp: &Stamp) -> Vec<Draft> {
    if session.status == Status::Archived {
        return Vec::new();
    }
    let running = session.running.as_ref().map(|turn| turn.id);
    let results = open_calls.into_iter().map(|call| {
        stamp.draft(
            running,
            Body::ToolResult {
                call_id: call.call_id,
                tool: call.tool,
                output: "The session was archived while this tool ran; its outcome is unknown.".to_owned(),
                is_error: true,
                outcome: Outcome::Unknown,
                duration_ms: 0,
            },
        )
    });
    let turns = session.running.iter().chain(&session.queued);
    let ends = turns.map(|turn| stamp.draft(Some(turn.id), canceled(turn.id, turn.usage)));
    // The ends of the turns make the session idle; then it becomes archived.
    let closed = stamp.draft(None, Body::SessionStatusChanged { from: session.status, to: Status::Archived });
    results.chain(ends).chain([closed]).collect()
}
