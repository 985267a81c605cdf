//! Writer of a pack.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    io::{self, Write},
};

use sha2::{Digest, Sha256};
use zstd::{bulk::Compressor, zstd_safe::compress_bound};

use super::{
    frame::{CHUNK_BYTES_MAX, HEADER, LEVEL},
    node::{Child, DirectoryNode, StoredTree, TreeBounds, encode},
};
use crate::{
    base::seal::sha256,
    domain::tree::{Chunk, Entry, Place, Tree, join_path, pairs, split_path},
    snapshot::Error,
};

/// Writes one pack: contents first, then the changed directories of a tree. It blocks, by its output and its work.
///
/// A large change is several packs: all but the last end with [`Writer::close`].
pub struct Writer<W> {
    number: u32,
    out: W,
    bytes: u64,
    hasher: Sha256,
    compressor: Compressor<'static>,
    /// The frame that is written, to reuse its memory.
    frame: Vec<u8>,
    known: HashMap<[u8; 32], Chunk>,
}

/// A pack that is complete.
#[derive(Debug)]
pub struct FinishedPack<W> {
    /// The output, flushed.
    pub out: W,
    /// Size of the pack.
    pub bytes: u64,
    /// SHA-256 of the pack.
    pub digest: [u8; 32],
    /// The chunks that the next pack of the same change need not contain.
    pub known: HashMap<[u8; 32], Chunk>,
}

impl<W> FinishedPack<W> {
    /// Returns whether nothing was new. Then no place is in this pack, and it need not be stored.
    pub fn is_empty(&self) -> bool {
        self.bytes == HEADER.len() as u64
    }
}

impl<W: Write> Writer<W> {
    /// Begins the pack with this number of the session.
    ///
    /// `known` has the chunks that are not written again: those of the previous tree ([`StoredTree::chunks`]), whose packs
    /// stay.
    ///
    /// # Errors
    /// `Unavailable` if the output fails.
    pub fn new(number: u32, known: HashMap<[u8; 32], Chunk>, out: W) -> Result<Self, Error> {
        let mut compressor = Compressor::new(LEVEL).map_err(unavailable)?;
        compressor.include_checksum(true).map_err(unavailable)?;
        let (hasher, frame) = (Sha256::new(), Vec::new());
        let mut writer = Self { number, out, bytes: 0, hasher, compressor, frame, known };
        writer.put(&HEADER)?;
        Ok(writer)
    }

    /// Number of bytes of the pack so far. The caller bounds them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a content as one chunk, unless it is known.
    ///
    /// # Errors
    /// `TooLarge` above [`CHUNK_BYTES_MAX`], `Unavailable` if the output fails: then the pack is lost.
    pub fn add_content(&mut self, content: &[u8]) -> Result<Chunk, Error> {
        let size = u32::try_from(content.len()).ok().filter(|_| content.len() <= CHUNK_BYTES_MAX);
        let size = size.ok_or_else(|| Error::TooLarge("a chunk may have at most 8 MiB".to_owned()))?;
        let digest = sha256(content);
        if let Some(chunk) = self.known.get(&digest) {
            return Ok(*chunk);
        }
        let chunk = Chunk { digest, size, place: self.add_frame(content)? };
        self.known.insert(digest, chunk);
        Ok(chunk)
    }

    /// Adds the directories of a tree that changed since the previous one. Ends the pack.
    ///
    /// Chunks of the tree must be in this pack or in earlier ones, and all nodes of the previous tree must stay stored.
    ///
    /// # Errors
    /// `TooLarge` if the tree has more entries or longer paths than can be read again, `Unavailable` if the output fails.
    pub fn finish(
        mut self,
        tree: Tree,
        previous: Option<&StoredTree>,
    ) -> Result<(FinishedPack<W>, StoredTree), Error> {
        let nodes = self.add_directories(&tree, previous)?;
        Ok((self.close()?, StoredTree::new(tree, nodes)))
    }

    /// Ends a pack that has contents only.
    ///
    /// # Errors
    /// `Unavailable` if the output fails.
    pub fn close(mut self) -> Result<FinishedPack<W>, Error> {
        self.out.flush().map_err(unavailable)?;
        let digest = self.hasher.finalize().into();
        Ok(FinishedPack { out: self.out, bytes: self.bytes, digest, known: self.known })
    }

    /// Writes the nodes of changed directories, and returns those of all.
    fn add_directories(
        &mut self,
        tree: &Tree,
        previous: Option<&StoredTree>,
    ) -> Result<BTreeMap<Vec<u8>, DirectoryNode>, Error> {
        let changed = changed_directories(tree, previous);
        let mut children: HashMap<&[u8], Vec<(&[u8], &Entry)>> = HashMap::new();
        let (mut nodes, mut bounds) = (BTreeMap::new(), TreeBounds::default());
        for (path, entry) in tree.iter() {
            bounds.add_entry(path)?;
            let (above, name) = split_path(path);
            if changed.contains(above) {
                children.entry(above).or_default().push((name, entry));
            }
        }
        let unchanged = previous.into_iter().flat_map(StoredTree::nodes);
        let unchanged = unchanged.filter(|(path, _)| !changed.contains(path));
        for (path, node) in unchanged.filter(|(path, _)| is_directory(tree, path)) {
            bounds.add_node(node.bytes as usize)?;
            nodes.insert(path.to_vec(), *node);
        }
        // A node has the places of those below it, so the deepest are first. Those of one depth are read together.
        let mut order: Vec<_> = changed.into_iter().collect();
        order.sort_by_key(|path| (Reverse(depth(path)), *path));
        for path in order {
            let children = children.remove(path).unwrap_or_default();
            let bytes = encode(children.into_iter().map(|(name, entry)| {
                let node = entry.is_directory().then(|| nodes.get(&join_path(path, name)).copied());
                Child { name, entry, node: node.flatten() }
            }));
            bounds.add_node(bytes.len())?;
            let place = self.add_frame(&bytes)?;
            let size = u32::try_from(bytes.len()).expect("nodes are bounded");
            nodes.insert(path.to_vec(), DirectoryNode { place, digest: sha256(&bytes), bytes: size });
        }
        Ok(nodes)
    }

    fn add_frame(&mut self, content: &[u8]) -> Result<Place, Error> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.reserve(compress_bound(content.len()));
        self.compressor.compress_to_buffer(content, &mut frame).map_err(unavailable)?;
        let bytes = u32::try_from(frame.len()).expect("contents and nodes are bounded");
        let place = Place { pack: self.number, offset: self.bytes, bytes };
        self.put(&frame)?;
        self.frame = frame;
        Ok(place)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(unavailable)?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Returns the directories whose nodes are not those of the previous tree: an entry in them or below them is another.
fn changed_directories<'a>(tree: &'a Tree, previous: Option<&'a StoredTree>) -> HashSet<&'a [u8]> {
    static NOTHING: Tree = Tree::new();
    let before = previous.map_or(&NOTHING, StoredTree::tree);
    let mut changed = HashSet::new();
    // The root node, which has no entry.
    if previous.is_none() {
        changed.insert(&b""[..]);
    }
    for pair in pairs(before, tree).filter(|pair| pair.before != pair.after) {
        let was_directory = pair.before.is_some_and(Entry::is_directory);
        let is_new = !was_directory && pair.after.is_some_and(Entry::is_directory);
        let (above, _) = split_path(pair.path);
        let mut path = if is_new { pair.path } else { above };
        // If one is there, so are all above it.
        while changed.insert(path) && !path.is_empty() {
            (path, _) = split_path(path);
        }
    }
    // A directory of the previous tree may be gone.
    changed.retain(|path| is_directory(tree, path));
    changed
}

/// Returns whether a path is that of a directory or of the root node.
fn is_directory(tree: &Tree, path: &[u8]) -> bool {
    path.is_empty() || tree.get(path).is_some_and(Entry::is_directory)
}

/// Number of the names of a path.
fn depth(path: &[u8]) -> usize {
    if path.is_empty() { 0 } else { 1 + path.iter().filter(|byte| **byte == b'/').count() }
}

fn unavailable(error: io::Error) -> Error {
    Error::Unavailable(error.to_string())
}
