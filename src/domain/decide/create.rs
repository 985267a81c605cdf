//! Create: the first event, and the input that starts the first turn.

use super::{Input, Stamp};
use crate::domain::{
    context::ContextChange,
    event::{Body, Draft},
    session::Created,
};

/// Initial data of a new session.
#[derive(Clone, Debug)]
pub struct NewSession {
    pub created: Created,
    /// Initial context of its commands.
    pub context: ContextChange,
    /// First message; without input no turn starts.
    pub input: Option<Input>,
}

/// Returns the first events of a log.
pub fn create(new: NewSession, stamp: &Stamp) -> Vec<Draft> {
    let first = stamp.draft(None, Body::SessionCreated(Box::new(new.created)));
    let has_context = new.context != ContextChange::default();
    let context = has_context.then(|| stamp.draft(None, Body::SessionContextUpdated(new.context)));
    let message = new.input.map(|input| input.message(stamp.origin.id(), stamp));
    [Some(first), context, message].into_iter().flatten().collect()
}
