//! Trees: the files of a sandbox at one time, by path.
//!
//! A tree has types, modes, times and digests, and no content: a file names its chunks, which are in packs of its session.
//! `snapshot` writes and reads packs. A tree is always whole: each entry has its parent, and each path stays below a root.

mod compare;
mod digest;

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included},
};

pub use compare::{Change, Pair, PathChange, compare, pairs};
pub use digest::{InvalidSnapshotId, SnapshotId};

/// Max length of a path, in bytes: `PATH_MAX` of Linux. Also that of the target of a link.
pub const TREE_PATH_BYTES_MAX: usize = 4_096;

/// An entry that no tree can have, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the entry is invalid: {0}")]
pub struct InvalidEntry(&'static str);

/// The files of a sandbox at one time.
///
/// A path begins with the name of its root (`workspace`, `home`) and has no leading slash; the roots are entries too.
/// Paths are ordered by their bytes, so a directory comes before everything below it, but `a-b` between `a` and `a/b`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<Vec<u8>, Entry>,
}

/// A file, a directory or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Time of the last change of the content, in nanoseconds since 1970.
    pub mtime_ns: i64,
    pub kind: Kind,
}

/// Type of an entry, with what only this type has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File {
        /// Bytes of the content: the sum of the sizes of its chunks.
        size: u64,
        /// SHA-256 of the content.
        digest: [u8; 32],
        /// The content in order; an empty file has none.
        chunks: Vec<Chunk>,
    },
    Directory,
    /// A symbolic link.
    Link {
        target: Vec<u8>,
    },
}

/// A part of the content of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// SHA-256 of its bytes.
    pub digest: [u8; 32],
    /// Number of its bytes, at least 1.
    pub size: u32,
    /// Place of its stored bytes.
    pub place: Place,
}

/// A range of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Number of the pack in its session.
    pub pack: u32,
    /// First byte in the pack.
    pub offset: u64,
    /// Number of stored bytes, which are compressed.
    pub bytes: u32,
}

/// Number of the files of a tree and the bytes of their contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSize {
    pub files: u64,
    pub bytes: u64,
}

impl Tree {
    /// Creates a tree without entries.
    pub const fn new() -> Self {
        Self { entries: BTreeMap::new() }
    }

    /// Adds an entry, or replaces the one at this path. Parents are added first.
    ///
    /// # Errors
    /// If the path is not one below a root, its parent is no directory of the tree, a directory that has entries would
    /// become something else, or the entry contradicts itself.
    pub fn insert(&mut self, path: Vec<u8>, entry: Entry) -> Result<(), InvalidEntry> {
        check_path(&path)?;
        entry.check()?;
        let (above, _) = split_path(&path);
        if !above.is_empty() && !self.get(above).is_some_and(Entry::is_directory) {
            return Err(InvalidEntry("its parent is no directory of the tree"));
        }
        let was_directory = self.get(&path).is_some_and(Entry::is_directory);
        if was_directory && !entry.is_directory() && !self.is_childless(&path) {
            return Err(InvalidEntry("it replaces a directory that has entries"));
        }
        self.entries.insert(path, entry);
        Ok(())
    }

    /// Removes the entry at a path and everything below it.
    pub fn remove(&mut self, path: &[u8]) {
        let below: Vec<_> = self.below(path).map(|(path, _)| path.to_vec()).collect();
        for path in &below {
            self.entries.remove(path);
        }
        self.entries.remove(path);
    }

    /// Returns the entry at a path.
    pub fn get(&self, path: &[u8]) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Iterates over all entries, ordered by the bytes of their paths.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &Entry)> {
        self.entries.iter().map(|(path, entry)| (path.as_slice(), entry))
    }

    /// Iterates over everything below a directory, without the directory.
    pub fn below<'a>(&'a self, path: &[u8]) -> impl Iterator<Item = (&'a [u8], &'a Entry)> + use<'a> {
        let start = [path, b"/"].concat();
        // The byte after the slash.
        let end = [path, b"0"].concat();
        let range = (Included(start.as_slice()), Excluded(end.as_slice()));
        self.entries.range::<[u8], _>(range).map(|(path, entry)| (path.as_slice(), entry))
    }

    /// Returns whether nothing is below a path.
    pub fn is_childless(&self, path: &[u8]) -> bool {
        self.below(path).next().is_none()
    }

    /// Number of entries, roots included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the tree has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Counts the files and the bytes of their contents. Equal contents count each time.
    pub fn size(&self) -> TreeSize {
        self.entries.values().fold(TreeSize::default(), |sum, entry| match entry.kind {
            Kind::File { size, .. } => {
                TreeSize { files: sum.files + 1, bytes: sum.bytes.saturating_add(size) }
            }
            Kind::Directory | Kind::Link { .. } => sum,
        })
    }
}

impl Entry {
    /// Returns whether the entry is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory)
    }

    fn check(&self) -> Result<(), InvalidEntry> {
        if self.mode > 0o7777 {
            return Err(InvalidEntry("its mode has more than permission bits"));
        }
        match &self.kind {
            Kind::Directory => Ok(()),
            Kind::File { size, chunks, .. } => {
                let sizes = chunks.iter().map(|chunk| u64::from(chunk.size));
                let is_whole = sizes.clone().all(|size| size > 0) && sizes.sum::<u64>() == *size;
                is_whole.then_some(()).ok_or(InvalidEntry("its chunks do not have its size"))
            }
            Kind::Link { target } => {
                let is_path = (1..=TREE_PATH_BYTES_MAX).contains(&target.len()) && !target.contains(&0);
                is_path.then_some(()).ok_or(InvalidEntry("its target is no path"))
            }
        }
    }
}

/// Splits a path into its parent, which is empty for a root, and its name.
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// Joins the path of a directory, which is empty for a root, and the name of an entry.
pub fn join_path(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, name].join(&b'/') }
}

fn check_path(path: &[u8]) -> Result<(), InvalidEntry> {
    if path.len() > TREE_PATH_BYTES_MAX {
        return Err(InvalidEntry("its path is longer than 4,096 bytes"));
    }
    let is_name = |name: &[u8]| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0);
    let is_path = path.split(|byte| *byte == b'/').all(is_name);
    is_path.then_some(()).ok_or(InvalidEntry("its path is not one below a root"))
}

#[cfg(test)]
pub(crate) mod tests;
