//! Typed ids: a prefix and the 26 Crockford base32 characters of a UUIDv7.
//!
//! `ses_01jd...` on the wire, `uuid` in the database. Parsing is strict (lower case only, no
//! aliases, no overflow), so an id has exactly one text form.

use std::{cmp::Ordering, fmt, hash, marker::PhantomData, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// The kind of resource that an id refers to; defines the id's prefix.
pub trait Kind: 'static {
    /// The prefix before the underscore, such as `ses`.
    const PREFIX: &'static str;
}

/// An id of one kind. Ids of different kinds are different types and do not compare.
pub struct Id<K: Kind>(Uuid, PhantomData<fn() -> K>);

/// The string is not an id of the expected kind.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an id of the form {prefix}_ followed by 26 lower-case base32 characters")]
pub struct ParseIdError {
    prefix: &'static str,
}

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ENCODED_CHARS: usize = 26;

impl<K: Kind> Id<K> {
    /// Wraps a UUID that the database already stores.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid, PhantomData)
    }

    /// Returns the 128 bits, for a database column.
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl<K: Kind> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.as_u128();
        let mut out = [0u8; ENCODED_CHARS];
        for (index, slot) in out.iter_mut().enumerate() {
            // 26 characters hold 130 bits; the first one carries only three.
            let shift = 5 * (ENCODED_CHARS - 1 - index);
            *slot = ALPHABET[((bits >> shift) & 31) as usize];
        }
        let text = std::str::from_utf8(&out).expect("the alphabet is ASCII");
        write!(f, "{}_{text}", K::PREFIX)
    }
}

impl<K: Kind> FromStr for Id<K> {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let error = ParseIdError { prefix: K::PREFIX };
        let Some(body) = text.strip_prefix(K::PREFIX).and_then(|rest| rest.strip_prefix('_')) else {
            return Err(error);
        };
        if body.len() != ENCODED_CHARS || !matches!(body.as_bytes()[0], b'0'..=b'7') {
            return Err(error);
        }
        let mut bits = 0u128;
        for byte in body.bytes() {
            let Some(value) = ALPHABET.iter().position(|&character| character == byte) else {
                return Err(error);
            };
            bits = (bits << 5) | value as u128;
        }
        Ok(Self::from_uuid(Uuid::from_u128(bits)))
    }
}

impl<K: Kind> Clone for Id<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Kind> Copy for Id<K> {}
impl<K: Kind> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<K: Kind> Eq for Id<K> {}
impl<K: Kind> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<K: Kind> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}
impl<K: Kind> hash::Hash for Id<K> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<K: Kind> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl<K: Kind> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
impl<'de, K: Kind> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Session;
    impl Kind for Session {
        const PREFIX: &'static str = "ses";
    }

    proptest::proptest! {
        #[test]
        fn an_id_survives_its_spelling(bits: u128) {
            let id = Id::<Session>::from_uuid(Uuid::from_u128(bits));
            assert_eq!(id.to_string().parse::<Id<Session>>(), Ok(id));
        }
    }

    #[test]
    fn only_one_spelling_is_accepted() {
        let id = Id::<Session>::from_uuid(Uuid::from_u128(u128::MAX)).to_string();
        assert_eq!(id, "ses_7zzzzzzzzzzzzzzzzzzzzzzzzz");
        for bad in [
            "ses_8zzzzzzzzzzzzzzzzzzzzzzzzz",
            "ses_7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "ses_7zzzzzzzzzzzzzzzzzzzzzzzz",
            "ses_ilou00000000000000000000000",
            "agt_7zzzzzzzzzzzzzzzzzzzzzzzzz",
            "ses7zzzzzzzzzzzzzzzzzzzzzzzzz",
            "",
        ] {
            assert!(bad.parse::<Id<Session>>().is_err(), "{bad} was accepted");
        }
    }
}
