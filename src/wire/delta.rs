//! Stream frame for a piece of a model response.
//!
//! It has the shape of an event but is not stored in the log.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::{SessionId, StepId, TurnId, piece::ResponseDelta};

/// A frame of type `agent.message.delta`. It has no SSE id and does not advance the cursor; `seq` is that
/// of the last event before it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AgentMessageDelta)]
pub(crate) struct DeltaView<'a> {
    #[serde(rename = "type")]
    kind: DeltaType,
    /// `seq` of the last event before the frame.
    seq: i64,
    session: SessionId,
    turn_id: TurnId,
    step_id: StepId,
    attempt: i32,
    body: DeltaBody<'a>,
}

#[derive(Debug, Serialize, ToSchema)]
enum DeltaType {
    #[serde(rename = "agent.message.delta")]
    AgentMessageDelta,
}

#[derive(Debug, Serialize, ToSchema)]
struct DeltaBody<'a> {
    kind: DeltaKind,
    /// Index of the content block within the response.
    block: usize,
    text: &'a str,
}

/// Kind of a piece of a response.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum DeltaKind {
    Text,
    Thinking,
}

impl<'a> DeltaView<'a> {
    /// Builds the frame that stream readers receive for a piece.
    pub(crate) fn of(piece: &'a ResponseDelta) -> Self {
        let kind = if piece.is_thinking { DeltaKind::Thinking } else { DeltaKind::Text };
        Self {
            kind: DeltaType::AgentMessageDelta,
            seq: piece.seq,
            session: piece.session,
            turn_id: piece.turn,
            step_id: piece.step,
            attempt: piece.attempt,
            body: DeltaBody { kind, block: piece.block, text: &piece.text },
        }
    }
}
