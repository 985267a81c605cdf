//! Opaque page cursors, bound to an organization and a query.
//!
//! A cursor holds the position and a MAC tag over organization, query and position. A cursor of
//! another organization or another query fails verification, so it cannot be used to read other
//! data.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Serialize, de::DeserializeOwned};
use subtle::ConstantTimeEq;

use super::seal::MasterKey;

const TAG_BYTES: usize = 16;

/// The cursor is malformed or belongs to another query.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("cursor was not returned by this query")]
pub(crate) struct CursorError;

/// Encodes a position for one `scope` (organization, list and filters).
pub(crate) fn encode<P: Serialize>(key: &MasterKey, scope: &str, position: &P) -> String {
    let body = serde_json::to_vec(position).expect("a position is plain data");
    let tag = tag(key, scope, &body);
    URL_SAFE_NO_PAD.encode([&tag[..TAG_BYTES], &body].concat())
}

/// Decodes a position that [`encode`] returned for the same `scope`.
pub(crate) fn decode<P: DeserializeOwned>(
    key: &MasterKey,
    scope: &str,
    cursor: &str,
) -> Result<P, CursorError> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| CursorError)?;
    let (given, body) = bytes.split_at_checked(TAG_BYTES).ok_or(CursorError)?;
    let expected = tag(key, scope, body);
    if !bool::from(expected[..TAG_BYTES].ct_eq(given)) {
        return Err(CursorError);
    }
    serde_json::from_slice(body).map_err(|_| CursorError)
}

fn tag(key: &MasterKey, scope: &str, body: &[u8]) -> [u8; 32] {
    // The length prefix separates `scope` from `body`.
    let length = (scope.len() as u64).to_be_bytes();
    key.cursor_tag(&[length.as_slice(), scope.as_bytes(), body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    #[test]
    fn a_cursor_is_bound_to_its_query() {
        let key = MasterKey::generate(&Origin::system());
        let cursor = encode(&key, "org_1/sessions", &42u64);
        assert_eq!(decode::<u64>(&key, "org_1/sessions", &cursor), Ok(42));
        assert_eq!(decode::<u64>(&key, "org_2/sessions", &cursor), Err(CursorError));
        for bad in ["", "x", "AAAA", "not base64!", &cursor[1..]] {
            assert_eq!(decode::<u64>(&key, "org_1/sessions", bad), Err(CursorError));
        }
    }
}
