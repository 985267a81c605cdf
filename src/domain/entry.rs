//! An event as the log keeps it: the envelope read, the body not.
//!
//! Most readers pass a body on (a page, a stream, a webhook) and never look inside;
//! the rules do, and get it with [`Entry::event`].

use serde_json::Value;

use super::{
    event::{Draft, Event, Level},
    ids::*,
};
use crate::base::Timestamp;

/// One row of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub session: SessionId,
    pub seq: i64,
    pub id: EventId,
    pub ts: Timestamp,
    /// The type, as in `agent.message`; may be one that this version does not know.
    pub kind: String,
    pub level: Level,
    /// JSON of the actor.
    pub actor: String,
    pub turn_id: Option<TurnId>,
    pub step_id: Option<StepId>,
    /// JSON of the refs, when there are any.
    pub refs: Option<String>,
    /// JSON of the body, cut where the whole one is a blob.
    pub body: String,
    /// Blob key of the whole body.
    pub content_ref: Option<String>,
    /// Bytes of the whole body.
    pub body_bytes: i32,
}

impl Entry {
    /// The event as the rules read it, from its whole body where that is a blob.
    ///
    /// # Errors
    /// When the row was written by a version whose events this one does not know.
    pub fn event(&self, whole_body: Option<&str>) -> Result<Event, serde_json::Error> {
        let body: Value = serde_json::from_str(whole_body.unwrap_or(&self.body))?;
        let tagged = serde_json::json!({ "type": self.kind, "body": body });
        Ok(Event {
            seq: self.seq,
            ts: self.ts,
            draft: Draft {
                id: self.id,
                actor: serde_json::from_str(&self.actor)?,
                level: self.level,
                turn_id: self.turn_id,
                step_id: self.step_id,
                refs: self.refs.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default(),
                body: serde_json::from_value(tagged)?,
            },
        })
    }
}
