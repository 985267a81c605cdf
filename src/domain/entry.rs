//! An event as it is stored in the log: parsed envelope, unparsed body.
//!
//! Most readers pass the body on unchanged (a page, a stream, a webhook). The domain rules parse it
//! with [`Entry::event`].

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
    /// The event type, such as `agent.message`; may be a type that this version does not know.
    pub kind: String,
    pub level: Level,
    /// JSON of the actor.
    pub actor: String,
    pub turn_id: Option<TurnId>,
    pub step_id: Option<StepId>,
    /// JSON of the refs, if there are any.
    pub refs: Option<String>,
    /// JSON of the body, truncated if the whole body is in a blob.
    pub body: String,
    /// Blob key of the whole body, if it is in a blob.
    pub content_ref: Option<String>,
    /// Size of the whole body in bytes.
    pub body_bytes: i32,
    /// For input, the time at which a turn consumed it, as of the read of the row.
    pub processed_at: Option<Timestamp>,
}

impl Entry {
    /// Parses the event, from `whole_body` if the body is in a blob.
    ///
    /// # Errors
    /// If the row was written by a version whose events this version does not know.
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
