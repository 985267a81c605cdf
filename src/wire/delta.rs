//! Stream frame for a piece of a model response.
//!
//! It has the shape of an event but is not stored in the log.

use serde::Serialize;

use crate::domain::{SessionId, StepId, TurnId, piece::ResponseDelta};

/// A frame of type `agent.message.delta`. It has no SSE id and does not advance the cursor; `seq` is that
/// of the last event before it.
#[derive(Debug, Serialize)]
pub struct DeltaView<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    seq: i64,
    session: SessionId,
    turn_id: TurnId,
    step_id: StepId,
    attempt: i32,
    body: DeltaBody<'a>,
}

#[derive(Debug, Serialize)]
struct DeltaBody<'a> {
    /// `text` or `thinking`.
    kind: &'static str,
    /// Index of the content block within the response.
    block: usize,
    text: &'a str,
}

impl<'a> DeltaView<'a> {
    /// Builds the frame that stream readers receive for a piece.
    pub fn of(piece: &'a ResponseDelta) -> Self {
        let kind = if piece.is_thinking { "thinking" } else { "text" };
        Self {
            kind: "agent.message.delta",
            seq: piece.seq,
            session: piece.session,
            turn_id: piece.turn,
            step_id: piece.step,
            attempt: piece.attempt,
            body: DeltaBody { kind, block: piece.block, text: &piece.text },
        }
    }
}
