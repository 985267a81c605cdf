//! A piece of an answer that is still growing: told, and never written down.

use super::ids::*;

/// What a model has said since the piece before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub session: SessionId,
    pub turn: TurnId,
    /// The step that its answer will be, if it becomes one.
    pub step: StepId,
    pub attempt: i32,
    /// The newest event when it was said: it comes right behind that.
    pub seq: i64,
    /// Which block of the answer it belongs to.
    pub block: usize,
    pub is_thinking: bool,
    pub text: String,
}
