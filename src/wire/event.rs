//! Response bodies of events: an envelope around an uninterpreted body.

use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::{Actor, Entry, EventId, Level, SessionId, StepId, TurnId};

/// Type of the events that have `processed_at`.
const INPUT: &str = "user.message";

/// An event of a session's log.
///
/// The body depends on the type; clients must ignore unknown types.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub(crate) struct EventView {
    pub id: EventId,
    /// Position in the session's log: starts at 1, without gaps.
    pub seq: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub ts: OffsetDateTime,
    pub session: SessionId,
    #[schema(value_type = Actor)]
    pub actor: Box<RawValue>,
    #[serde(rename = "type")]
    pub kind: String,
    pub level: Level,
    #[schema(value_type = Object)]
    pub body: Box<RawValue>,
    #[schema(value_type = Map<String, Value>)]
    pub refs: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_id: Option<StepId>,
    /// Path of the complete body; present if the body here was truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_truncated: Option<bool>,
    /// Size of the complete body in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<i32>,
    /// `user.message` only: time at which a turn consumed the input, null while it waited. As of the time
    /// at which the event was read for this response, stream or webhook.
    #[serde(skip_serializing_if = "Option::is_none", with = "processed")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub processed_at: Option<Option<OffsetDateTime>>,
}

impl EventView {
    /// Builds an event from a row of the log.
    ///
    /// # Errors
    /// If a column does not hold valid JSON.
    pub(crate) fn of(entry: &Entry) -> Result<Self, serde_json::Error> {
        let is_cut = entry.content_ref.is_some();
        Ok(Self {
            id: entry.id,
            seq: entry.seq,
            ts: entry.ts,
            session: entry.session,
            actor: RawValue::from_string(entry.actor.clone())?,
            kind: entry.kind.clone(),
            level: entry.level,
            body: RawValue::from_string(entry.body.clone())?,
            refs: RawValue::from_string(entry.refs.clone().unwrap_or_else(|| "{}".to_owned()))?,
            turn_id: entry.turn_id,
            step_id: entry.step_id,
            content_ref: is_cut
                .then(|| format!("/v3/sessions/{}/events/{}/content", entry.session, entry.id)),
            body_truncated: is_cut.then_some(true),
            body_bytes: is_cut.then_some(entry.body_bytes),
            processed_at: (entry.kind == INPUT).then_some(entry.processed_at),
        })
    }
}

mod processed {
    use serde::{Serializer, ser::Error};
    use time::OffsetDateTime;

    pub(super) fn serialize<S: Serializer>(
        at: &Option<Option<OffsetDateTime>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match at.flatten() {
            Some(at) => {
                let text =
                    at.format(&time::format_description::well_known::Rfc3339).map_err(S::Error::custom)?;
                serializer.serialize_str(&text)
            }
            None => serializer.serialize_none(),
        }
    }
}
