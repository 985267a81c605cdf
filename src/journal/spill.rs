//! Event bodies too large for a row: complete in a blob, truncated in the row.
//!
//! The blob is written before the append, so an event never references a missing blob. A failed
//! append leaves an unreferenced blob, which is removed with its session.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{Error, Journal};
use crate::{
    base::{limit::EVENT_BODY_BYTES_MAX, text},
    domain::{OrgId, SessionId, event::Draft},
    store::{column, event::Packed},
};

/// Maximum length of a string in a truncated body, in bytes; tried in this order.
const STRING_BYTES: [usize; 3] = [4_096, 512, 64];

impl Journal {
    /// Prepares events for insertion.
    pub(super) async fn pack(
        &self,
        org: OrgId,
        session: SessionId,
        drafts: Vec<Draft>,
    ) -> Result<Vec<Packed>, Error> {
        let mut packed = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let (body, whole) = split(&draft)?;
            let content_ref = match whole {
                Some(whole) => {
                    let key = format!("{}/{}/events/{}", org.uuid(), session.uuid(), draft.id.uuid());
                    self.blobs.put(&key, Bytes::from(whole.clone())).await?;
                    Some((key, whole.len()))
                }
                None => None,
            };
            let bytes = content_ref.as_ref().map_or(body.len(), |(_, bytes)| *bytes);
            packed.push(Packed {
                draft,
                body,
                content_ref: content_ref.map(|(key, _)| key),
                body_bytes: i32::try_from(bytes).unwrap_or(i32::MAX),
            });
        }
        Ok(packed)
    }
}

/// Returns the body for the row and, if that one is truncated, the complete body.
fn split(draft: &Draft) -> Result<(String, Option<String>), Error> {
    let Value::Object(mut tagged) =
        serde_json::to_value(&draft.body).map_err(|error| crate::store::Error::Corrupt(error.to_string()))?
    else {
        unreachable!("a body serializes as an object with type and body");
    };
    let body = tagged.remove("body").unwrap_or_else(|| Value::Object(Map::new()));
    let whole = column::json(&body);
    if whole.len() <= EVENT_BODY_BYTES_MAX {
        return Ok((whole, None));
    }
    Ok((cut(body), Some(whole)))
}

/// Returns a body of the same type that fits the row.
///
/// Truncates long strings. If the body is still too large, empties arrays and drops objects, the largest first.
fn cut(mut body: Value) -> String {
    for bytes_max in STRING_BYTES {
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
