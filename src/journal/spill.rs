//! Event bodies too large for a row: complete in a blob, truncated in the row.
//!
//! A leased turn stores the blob before it appends. A caller's command stores the complete body in the table
//! `event_content`, in its transaction, and so does a turn whose blob store does not answer; a worker moves
//! it to the blob store. A failed append leaves an unreferenced blob, which is removed with its session.

use bytes::Bytes;
use futures::{StreamExt, stream};
use serde_json::{Map, Value};

use super::{Error, Journal};
use crate::{
    base::{
        limit::{EVENT_BODY_BYTES_MAX, EVENT_CONTENT_CLAIM_TTL, EVENT_CONTENTS_CLAIMED},
        text,
    },
    blob,
    domain::{
        EventId, OrgId, SessionId,
        event::{Body, Draft},
    },
    store::{self, column, event::Packed, event_content::EventContent},
};

/// Maximum length of a string in a truncated body, in bytes; tried in this order.
const STRING_BYTES: [usize; 3] = [4_096, 512, 64];

/// Prepares events for insertion. Their complete bodies must be stored too.
pub(super) fn pack(org: OrgId, session: SessionId, drafts: Vec<Draft>) -> Result<Vec<Packed>, Error> {
    drafts
        .into_iter()
        .map(|draft| {
            let (body, whole) = split(&draft)?;
            let bytes = whole.as_ref().map_or(body.len(), String::len);
            Ok(Packed {
                content_ref: whole.as_ref().map(|_| content_key(org, session, draft.id)),
                body_bytes: i32::try_from(bytes).unwrap_or(i32::MAX),
                draft,
                body,
                whole,
            })
        })
        .collect()
}

/// Takes the complete bodies of truncated events.
pub(super) fn take_contents(org: OrgId, session: SessionId, events: &mut [Packed]) -> Vec<EventContent> {
    events
        .iter_mut()
        .filter_map(|event| {
            Some(EventContent { org, session, event: event.draft.id, body: event.whole.take()? })
        })
        .collect()
}

/// Blob key of the complete body of an event.
fn content_key(org: OrgId, session: SessionId, event: EventId) -> String {
    format!("{}/{}/events/{}", org.uuid(), session.uuid(), event.uuid())
}

impl Journal {
    /// Stores the complete bodies of events before they are appended.
    pub(super) async fn store_contents(
        &self,
        org: OrgId,
        session: SessionId,
        events: &mut [Packed],
    ) -> Result<(), Error> {
        let mut waiting = Vec::new();
        for content in take_contents(org, session, events) {
            if let Err(error) = self.put_content(&content).await {
                tracing::warn!(%error, session.id = %session, "a body is stored in the database until the blob store answers");
                waiting.push(content);
            }
        }
        if !waiting.is_empty() {
            self.store.insert_event_contents(org, &waiting).await?;
        }
        Ok(())
    }

    /// Moves complete bodies from the database to the blob store. Returns their number.
    ///
    /// # Errors
    /// If one could not be stored; it is tried again after `EVENT_CONTENT_CLAIM_TTL`.
    pub async fn move_contents(&self) -> Result<usize, Error> {
        let claimed =
            self.store.claim_event_contents(EVENT_CONTENTS_CLAIMED, EVENT_CONTENT_CLAIM_TTL).await?;
        let count = claimed.len();
        let mut moved = stream::iter(claimed)
            .map(|content| async move { self.move_content(&content).await })
            .buffer_unordered(count.max(1));
        let mut outcome = Ok(count);
        while let Some(result) = moved.next().await {
            outcome = outcome.and_then(|count| result.map(|()| count));
        }
        outcome
    }

    async fn move_content(&self, content: &EventContent) -> Result<(), Error> {
        self.put_content(content).await?;
        if self.store.delete_event_content(content).await? {
            return Ok(());
        }
        // Another worker stored it, or the session was deleted and nothing removes the blob.
        match self.store.load_session(content.org, content.session).await {
            Err(store::Error::NotFound) => {
                Ok(self.blobs.delete(&content_key(content.org, content.session, content.event)).await?)
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn put_content(&self, content: &EventContent) -> Result<(), blob::Error> {
        let key = content_key(content.org, content.session, content.event);
        self.blobs.put(&key, Bytes::from(content.body.clone())).await
    }

    /// Reads the complete body of a truncated event; `None` if it is lost.
    pub async fn content(
        &self,
        org: OrgId,
        session: SessionId,
        event: EventId,
        key: &str,
    ) -> Result<Option<Bytes>, Error> {
        // First the database: a worker stores a blob before it deletes the row.
        if let Some(body) = self.store.event_content(org, session, event).await? {
            return Ok(Some(body.into()));
        }
        match self.blobs.get(key).await {
            Ok(content) => Ok(Some(content)),
            Err(blob::Error::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the body for the row and, if that one is truncated, the complete body.
fn split(draft: &Draft) -> Result<(String, Option<String>), Error> {
    let Value::Object(mut tagged) =
        serde_json::to_value(&draft.body).map_err(|error| crate::store::Error::Corrupt(error.to_string()))?
    else {
        unreachable!("a body serializes as an object with type and body");
    };
    let mut body = tagged.remove("body").unwrap_or_else(|| Value::Object(Map::new()));
    let whole = column::json(&body);
    if whole.len() <= EVENT_BODY_BYTES_MAX {
        return Ok((whole, None));
    }
    if let Body::ActionRequired(_) = &draft.body {
        // All or nothing: nobody decides about a part of a call, or runs it.
        body["input"] = Value::Null;
    }
    Ok((cut(body), Some(whole)))
}

/// Returns a body of the same type that fits the row.
///
/// Truncates long strings, if that is needed. If the body is still too large, empties arrays and drops objects, the largest first.
fn cut(mut body: Value) -> String {
    for bytes_max in [usize::MAX].into_iter().chain(STRING_BYTES) {
        shorten(&mut body, bytes_max);
        let text = column::json(&body);
        if text.len() <= EVENT_BODY_BYTES_MAX {
            return text;
        }
    }
    let mut text = column::json(&body);
    for name in by_size(&body) {
        if text.len() <= EVENT_BODY_BYTES_MAX {
            break;
        }
        // The schema of every type requires its arrays, but no object that can be large.
        match body.get_mut(&name) {
            Some(Value::Array(items)) => items.clear(),
            Some(_) | None => drop(body.as_object_mut().and_then(|fields| fields.remove(&name))),
        }
        text = column::json(&body);
    }
    text
}

/// Names of the arrays and objects in a body, the largest first.
fn by_size(body: &Value) -> Vec<String> {
    let fields = body.as_object().into_iter().flatten();
    let mut sizes: Vec<_> = fields
        .filter(|(_, value)| matches!(value, Value::Array(_) | Value::Object(_)))
        .map(|(name, value)| (column::json(value).len(), name.clone()))
        .collect();
    sizes.sort_by(|one, other| other.cmp(one));
    sizes.into_iter().map(|(_, name)| name).collect()
}

fn shorten(value: &mut Value, bytes_max: usize) {
    match value {
        Value::String(string) if string.len() > bytes_max => {
            string.truncate(text::truncate(string, bytes_max).len());
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shorten(item, bytes_max)),
        Value::Object(fields) => fields.values_mut().for_each(|field| shorten(field, bytes_max)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cut_body_fits_and_keeps_its_short_fields() {
        let long = "é".repeat(EVENT_BODY_BYTES_MAX);
        let many: Vec<_> = (0..2_000).map(|_| json!({"text": long[..200]})).collect();
        for body in [json!({"call_id": "c1", "output": long}), json!({"call_id": "c1", "raw": many})] {
            let text = cut(body);
            assert!(text.len() <= EVENT_BODY_BYTES_MAX);
            let cut: Value = serde_json::from_str(&text).expect("still JSON");
            assert_eq!(cut["call_id"], "c1");
        }
    }

    #[test]
    fn a_cut_body_loses_its_largest_fields_only() {
        let many: Vec<_> = (0..2_000).map(|at| json!({"text": format!("block {at} of many more")})).collect();
        let input: Map<_, _> = (0..2_000).map(|at| (format!("field {at}"), json!("some text"))).collect();
        let body =
            json!({"raw": many, "blocks": many, "usage": {"steps": 1}, "input": input, "stop": "end_turn"});
        let cut: Value = serde_json::from_str(&cut(body)).expect("still JSON");
        assert_eq!(cut, json!({"raw": [], "blocks": [], "usage": {"steps": 1}, "stop": "end_turn"}));
    }
}
