//! Scheduled wakes: a time at which an agent is woken, and its message. Pure.

use std::time::Duration;

use serde_json::{Map, json};

use super::{
    decide::Input,
    event::{Actor, ActorKind},
};
use crate::base::Timestamp;

/// The tool with which an agent schedules its own wake.
pub const SCHEDULED_WAKE: &str = "schedule_wake";

/// Time of a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    At(Timestamp),
    After(Duration),
}

/// Returns the message that the session receives when the wake is due.
pub fn message(call_id: &str, note: &str) -> Input {
    let envelope =
        Map::from_iter([("id".to_owned(), json!(call_id)), ("source".to_owned(), json!(SCHEDULED_WAKE))]);
    let text = format!("This is the wake that you scheduled. Your note:\n\n{note}");
    Input { text, envelope: Some(envelope), ..Input::default() }
}

/// Returns the actor of that message.
pub fn actor(call_id: &str) -> Actor {
    Actor { id: Some(call_id.to_owned()), display: Some(SCHEDULED_WAKE.to_owned()), kind: ActorKind::Trigger }
}
