//! Directory nodes: their bytes, and the stored tree that they make.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::frame::{CHUNK_BYTES_MAX, damaged};
use crate::{
    domain::tree::{Chunk, Entry, Kind, Place, Tree},
    snapshot::Error,
};

/// Version of the bytes of a node.
const VERSION: u8 = 1;
const FILE: u8 = 0;
const DIRECTORY: u8 = 1;
const LINK: u8 = 2;

/// Max entries of a tree in packs, above what a snapshot may have, so that this limit can change.
const ENTRIES_MAX: usize = 200_000;
/// Max size of all nodes of a tree before compression, in bytes: about 130 for a file of one chunk.
const NODES_BYTES_MAX: usize = 64 << 20;
/// Max length of all paths of a tree, in bytes: a deep directory repeats its path in each entry.
const PATHS_BYTES_MAX: usize = 64 << 20;

/// A directory as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryNode {
    pub place: Place,
    /// SHA-256 of the node before compression. It covers times and places too.
    pub digest: [u8; 32],
    /// Size of the node before compression.
    pub bytes: u32,
}

/// A tree that is in packs, with the node of each directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTree {
    tree: Tree,
    /// By the path of the directory; that of the root node is empty.
    nodes: BTreeMap<Vec<u8>, DirectoryNode>,
}

impl StoredTree {
    /// `nodes` has one of each directory of the tree, and the root node.
    pub(super) fn new(tree: Tree, nodes: BTreeMap<Vec<u8>, DirectoryNode>) -> Self {
        Self { tree, nodes }
    }

    /// Returns the tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the place of the root node, from which the tree can be read again.
    pub fn root(&self) -> Place {
        self.nodes[&b""[..]].place
    }

    /// Iterates over the nodes with the paths of their directories, ordered by them. The path of the root node is empty.
    pub fn nodes(&self) -> impl Iterator<Item = (&[u8], &DirectoryNode)> {
        self.nodes.iter().map(|(path, node)| (path.as_slice(), node))
    }

    /// Returns the chunks of all files, by their digests. The next pack need not contain them.
    pub fn chunks(&self) -> HashMap<[u8; 32], Chunk> {
        self.all_chunks().map(|chunk| (chunk.digest, *chunk)).collect()
    }

    /// Returns the numbers of the packs without which the tree cannot be read.
    pub fn packs(&self) -> BTreeSet<u32> {
        let of_nodes = self.nodes.values().map(|node| node.place.pack);
        of_nodes.chain(self.all_chunks().map(|chunk| chunk.place.pack)).collect()
    }

    fn all_chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.tree.iter().flat_map(|(_, entry)| match &entry.kind {
            Kind::File { chunks, .. } => chunks.as_slice(),
            Kind::Directory | Kind::Link { .. } => &[],
        })
    }
}

/// How much a tree takes so far. Writer and reader count alike, so what was written can be read.
#[derive(Default)]
pub(super) struct TreeBounds {
    entries: usize,
    path_bytes: usize,
    node_bytes: usize,
}

impl TreeBounds {
    /// Counts an entry.
    pub(super) fn add_entry(&mut self, path: &[u8]) -> Result<(), Error> {
        self.entries += 1;
        self.path_bytes += path.len();
        if self.entries > ENTRIES_MAX {
            return Err(Error::TooLarge(format!("a tree may have at most {ENTRIES_MAX} entries")));
        }
        if self.path_bytes > PATHS_BYTES_MAX {
            let max = PATHS_BYTES_MAX >> 20;
            return Err(Error::TooLarge(format!("the paths of a tree may have at most {max} MiB")));
        }
        Ok(())
    }

    /// Counts a node of this size.
    pub(super) fn add_node(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > self.node_bytes_left() {
            let max = NODES_BYTES_MAX >> 20;
            return Err(Error::TooLarge(format!("the directories of a tree may have at most {max} MiB")));
        }
        self.node_bytes += bytes;
        Ok(())
    }

    /// Returns the size that a further node may have.
    pub(super) fn node_bytes_left(&self) -> usize {
        NODES_BYTES_MAX - self.node_bytes
    }
}

/// An entry of a directory that is encoded.
pub(super) struct Child<'a> {
    pub(super) name: &'a [u8],
    pub(super) entry: &'a Entry,
    /// The node, if it is a directory.
    pub(super) node: Option<DirectoryNode>,
}

/// Encodes a node. The entries are in ascending order of their names.
pub(super) fn encode<'a>(children: impl Iterator<Item = Child<'a>>) -> Vec<u8> {
    let mut out = vec![VERSION];
    for Child { name, entry, node } in children {
        put_short(name, &mut out);
        out.push(match entry.kind {
            Kind::File { .. } => FILE,
            Kind::Directory => DIRECTORY,
            Kind::Link { .. } => LINK,
        });
        out.extend(entry.mode.to_le_bytes());
        out.extend(entry.mtime_ns.to_le_bytes());
        match &entry.kind {
            Kind::File { size, digest, chunks } => {
                out.extend(size.to_le_bytes());
                out.extend(digest);
                let count = u32::try_from(chunks.len()).expect("files have fewer chunks than 2^32");
                out.extend(count.to_le_bytes());
                for chunk in chunks {
                    out.extend(chunk.digest);
                    out.extend(chunk.size.to_le_bytes());
                    put_place(chunk.place, &mut out);
                }
            }
            Kind::Directory => {
                let node = node.expect("a directory is encoded after those below it");
                put_place(node.place, &mut out);
                out.extend(node.digest);
            }
            Kind::Link { target } => put_short(target, &mut out),
        }
    }
    out
}

/// Decodes a node, and passes on each entry with its name and, of a directory, place and digest of its node.
///
/// Names are checked as far as their order and slashes; a [`Tree`] checks the rest.
pub(super) fn decode(
    bytes: &[u8],
    mut each: impl FnMut(&[u8], Entry, Option<(Place, [u8; 32])>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut rest = Rest(bytes);
    if rest.array::<1>()? != [VERSION] {
        return Err(damaged("a directory node of another version"));
    }
    let mut last: &[u8] = b"";
    while !rest.0.is_empty() {
        let name = rest.short()?;
        if name <= last || name.contains(&b'/') {
            return Err(damaged("names of a directory node are out of order"));
        }
        last = name;
        let [kind] = rest.array::<1>()?;
        let mode = u32::from_le_bytes(rest.array()?);
        let mtime_ns = i64::from_le_bytes(rest.array()?);
        let (kind, node) = match kind {
            FILE => (rest.file()?, None),
            DIRECTORY => (Kind::Directory, Some((rest.place()?, rest.array()?))),
            LINK => (Kind::Link { target: rest.short()?.to_vec() }, None),
            _ => return Err(damaged("an entry of an unknown type")),
        };
        each(name, Entry { mode, mtime_ns, kind }, node)?;
    }
    Ok(())
}

fn put_short(bytes: &[u8], out: &mut Vec<u8>) {
    let length = u16::try_from(bytes.len()).expect("a path of a tree has at most 4,096 bytes");
    out.extend(length.to_le_bytes());
    out.extend(bytes);
}

fn put_place(place: Place, out: &mut Vec<u8>) {
    out.extend(place.pack.to_le_bytes());
    out.extend(place.offset.to_le_bytes());
    out.extend(place.bytes.to_le_bytes());
}

/// Bytes that are not decoded yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], Error> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn short(&mut self) -> Result<&'a [u8], Error> {
        let length = u16::from_le_bytes(self.array()?);
        let (first, rest) = self.0.split_at_checked(length.into()).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(first)
    }

    fn place(&mut self) -> Result<Place, Error> {
        let pack = u32::from_le_bytes(self.array()?);
        let offset = u64::from_le_bytes(self.array()?);
        let bytes = u32::from_le_bytes(self.array()?);
        Ok(Place { pack, offset, bytes })
    }

    fn file(&mut self) -> Result<Kind, Error> {
        let size = u64::from_le_bytes(self.array()?);
        let digest = self.array()?;
        let count = u32::from_le_bytes(self.array()?);
        let mut chunks = Vec::new();
        for _ in 0..count {
            let digest = self.array()?;
            let size = u32::from_le_bytes(self.array()?);
            if usize::try_from(size).map_err(damaged)? > CHUNK_BYTES_MAX {
                return Err(damaged("a chunk is larger than it may be"));
            }
            chunks.push(Chunk { digest, size, place: self.place()? });
        }
        Ok(Kind::File { size, digest, chunks })
    }
}

fn cut_short() -> Error {
    damaged("a directory node is cut short")
}
