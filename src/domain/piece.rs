//! A delta of a model response that is still streaming; sent, never stored.

use serde::{Deserialize, Serialize};

use super::ids::*;

/// Text that a model produced since the previous delta. Processes send it to each other as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseDelta {
    pub session: SessionId,
    pub turn: TurnId,
    /// The id of the step, if the response completes.
    pub step: StepId,
    pub attempt: i32,
    /// `seq` of the newest event at that time; the delta sorts directly after it.
    pub seq: i64,
    /// Index of the block of the response.
    pub block: usize,
    pub is_thinking: bool,
    pub text: String,
}
