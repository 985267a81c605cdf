//! A time at which an agent wants to be woken, and what it is told then. Pure.

use std::time::Duration;

use serde_json::{Map, json};

use super::{
    decide::Input,
    event::{Actor, ActorKind},
};
use crate::base::Timestamp;

/// The tool by which an agent schedules its own wake.
pub const SCHEDULED_WAKE: &str = "schedule_wake";

/// When to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    At(Timestamp),
    After(Duration),
}

/// What the session is told when the timer of a call goes off.
pub fn message(call_id: &str, note: &str) -> Input {
    let envelope =
        Map::from_iter([("id".to_owned(), json!(call_id)), ("source".to_owned(), json!(SCHEDULED_WAKE))]);
    let text = format!("You asked to be woken now. Your note:\n\n{note}");
    Input { text, envelope: Some(envelope), ..Input::default() }
}

/// The author of that message.
pub fn actor(call_id: &str) -> Actor {
    Actor { id: Some(call_id.to_owned()), display: Some(SCHEDULED_WAKE.to_owned()), kind: ActorKind::Trigger }
}
