//! Changes between two trees.

use std::{cmp::Ordering, iter};

use serde::{Deserialize, Serialize};

use super::{Entry, Kind, Tree};

/// Kind of a change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Nothing was there before.
    Added,
    /// The content of the file, or the target of the link, is another.
    Modified,
    /// Nothing is there any more.
    Deleted,
    /// A file, a directory or a link became another of these.
    TypeChanged,
    /// Only the permission bits are others.
    ModeChanged,
}

/// A path that differs between two trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChange<'a> {
    pub path: Vec<u8>,
    pub change: Change,
    /// The entry in the tree before; `None` if it was added.
    pub before: Option<&'a Entry>,
    /// The entry in the tree after; `None` if it was deleted.
    pub after: Option<&'a Entry>,
}

/// The entries of two trees at one path; at least one of them is there.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub path: &'a [u8],
    pub before: Option<&'a Entry>,
    pub after: Option<&'a Entry>,
}

/// Compares two trees, and returns what differs, ordered by path.
///
/// Nothing differs exactly if their digests are equal. A directory that was added or deleted is a change only if it is
/// empty: otherwise the entries below it tell. Times and places never count.
pub fn compare<'a>(before: &'a Tree, after: &'a Tree) -> Vec<PathChange<'a>> {
    let changes = pairs(before, after).filter_map(|pair| {
        let change = match (pair.before, pair.after) {
            (Some(old), Some(new)) => changed(old, new)?,
            (None, Some(new)) => is_shown(after, pair.path, new).then_some(Change::Added)?,
            (Some(old), None) => is_shown(before, pair.path, old).then_some(Change::Deleted)?,
            (None, None) => return None,
        };
        Some(PathChange { path: pair.path.to_vec(), change, before: pair.before, after: pair.after })
    });
    changes.collect()
}

/// Iterates over the paths of two trees, ordered by their bytes.
pub fn pairs<'a>(before: &'a Tree, after: &'a Tree) -> impl Iterator<Item = Pair<'a>> {
    let (mut olds, mut news) = (before.iter().peekable(), after.iter().peekable());
    iter::from_fn(move || {
        let order = match (olds.peek(), news.peek()) {
            (Some((old, _)), Some((new, _))) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        let old = if order.is_le() { olds.next() } else { None };
        let new = if order.is_ge() { news.next() } else { None };
        let (path, _) = old.or(new)?;
        Some(Pair { path, before: old.map(|(_, entry)| entry), after: new.map(|(_, entry)| entry) })
    })
}

fn changed(old: &Entry, new: &Entry) -> Option<Change> {
    let is_modified = match (&old.kind, &new.kind) {
        (Kind::File { digest: old, .. }, Kind::File { digest: new, .. }) => old != new,
        (Kind::Link { target: old }, Kind::Link { target: new }) => old != new,
        (Kind::Directory, Kind::Directory) => false,
        (Kind::File { .. } | Kind::Link { .. } | Kind::Directory, _) => return Some(Change::TypeChanged),
    };
    if is_modified {
        return Some(Change::Modified);
    }
    (old.mode != new.mode).then_some(Change::ModeChanged)
}

/// Returns whether an entry that only this tree has is a change of its own.
fn is_shown(tree: &Tree, path: &[u8], entry: &Entry) -> bool {
    !entry.is_directory() || tree.is_childless(path)
}
