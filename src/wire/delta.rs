//! A piece of an answer on the wire: shaped like an event, and none.

use serde::Serialize;

use crate::domain::{SessionId, StepId, TurnId, piece::Piece};

/// A frame of type `agent.message.delta`. It has no id and moves no cursor: `seq` is
/// that of the event that it follows.
#[derive(Debug, Serialize)]
pub struct DeltaView<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    seq: i64,
    session: SessionId,
    turn_id: TurnId,
    step_id: StepId,
    attempt: i32,
    body: Said<'a>,
}

#[derive(Debug, Serialize)]
struct Said<'a> {
    /// `text` or `thinking`.
    kind: &'static str,
    /// Which block of the answer it belongs to.
    block: usize,
    text: &'a str,
}

impl<'a> DeltaView<'a> {
    /// What readers of a stream are told of a piece.
    pub fn of(piece: &'a Piece) -> Self {
        let kind = if piece.is_thinking { "thinking" } else { "text" };
        Self {
            kind: "agent.message.delta",
            seq: piece.seq,
            session: piece.session,
            turn_id: piece.turn,
            step_id: piece.step,
            attempt: piece.attempt,
            body: Said { kind, block: piece.block, text: &piece.text },
        }
    }
}
