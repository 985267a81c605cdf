//! Create: the first event, and the input that starts the first turn.

use super::{Input, Stamp};
use crate::domain::{
    context::ContextChange,
    event::{Body, Draft},
    session::Created,
};

/// What a new session starts with.
#[derive(Clone, Debug)]
pub struct NewSession {
    pub created: Created,
    /// What its commands start with.
    pub context: ContextChange,
    /// Without input no turn starts.
    pub input: Option<Input>,
}

/// The first events of a log.
pub fn create(new: NewSession, stamp: &Stamp) -> Vec<Draft> {
    let first = stamp.draft(None, Body::SessionCreated(Box::new(new.created)));
    let has_context = new.context != ContextChange::default();
    let context = has_context.then(|| stamp.draft(None, Body::SessionContextUpdated(new.context)));
    let message = new.input.map(|input| {
        let body = Body::UserMessage { text: input.text, input: input.object, envelope: input.envelope };
        let mut message = stamp.draft(Some(stamp.origin.id()), body);
        message.refs = input.refs;
        message
    });
    [Some(first), context, message].into_iter().flatten().collect()
}
