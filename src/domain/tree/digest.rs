//! The digest of a tree, and the id of a snapshot that is derived from it.

use std::{collections::HashMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Entry, Kind, Tree, split_path};
use crate::base::text::hex;

/// First bytes of what is hashed for a directory. Another way to hash gets another prefix.
const PREFIX: &[u8] = b"sojourn tree 1\n";
/// Digits of an id: 128 bits.
const DIGITS: usize = 32;

/// The id of a snapshot.
///
/// It is equal for trees that have equal paths, types, modes, contents and targets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotId(String);

/// A text that is no id of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a snapshot has 32 lower-case hexadecimal digits")]
pub struct InvalidSnapshotId;

impl SnapshotId {
    /// Returns the id that a digest begins with.
    pub fn of(digest: &[u8; 32]) -> Self {
        Self(hex(&digest[..DIGITS / 2]))
    }

    /// Returns the hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for SnapshotId {
    type Error = InvalidSnapshotId;

    fn try_from(text: String) -> Result<Self, InvalidSnapshotId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_id = text.len() == DIGITS && text.bytes().all(is_digit);
        is_id.then_some(Self(text)).ok_or(InvalidSnapshotId)
    }
}

impl FromStr for SnapshotId {
    type Err = InvalidSnapshotId;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshotId> {
        text.to_owned().try_into()
    }
}

impl From<SnapshotId> for String {
    fn from(id: SnapshotId) -> Self {
        id.0
    }
}

/// An entry of a directory, with the digest of what is below it if it is a directory itself.
struct Child<'a> {
    name: &'a [u8],
    entry: &'a Entry,
    below: [u8; 32],
}

impl Tree {
    /// Hashes names, types, modes, contents and targets, as a Merkle tree.
    ///
    /// Times and places do not count, so a tree that was restored or repacked has the same digest.
    pub fn digest(&self) -> [u8; 32] {
        let mut children: HashMap<&[u8], Vec<Child<'_>>> = HashMap::new();
        // Backwards, a directory comes after everything below it.
        for (path, entry) in self.iter().rev() {
            let below = match entry.kind {
                Kind::Directory => directory(&children.remove(path).unwrap_or_default()),
                Kind::File { .. } | Kind::Link { .. } => [0; 32],
            };
            let (above, name) = split_path(path);
            children.entry(above).or_default().push(Child { name, entry, below });
        }
        let roots: &[u8] = b"";
        directory(&children.remove(roots).unwrap_or_default())
    }

    /// Returns the id of a snapshot of this tree.
    pub fn id(&self) -> SnapshotId {
        SnapshotId::of(&self.digest())
    }
}

/// Hashes the entries of one directory, which are in descending order of their names.
fn directory(children: &[Child<'_>]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(PREFIX);
    for child in children.iter().rev() {
        let (kind, content) = match &child.entry.kind {
            Kind::File { digest, .. } => (0_u8, digest.as_slice()),
            Kind::Directory => (1, child.below.as_slice()),
            Kind::Link { target } => (2, target.as_slice()),
        };
        hasher.update([kind]);
        hasher.update(child.entry.mode.to_le_bytes());
        for part in [child.name, content] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize().into()
}
