//! Reader of trees.

use std::{collections::BTreeMap, mem};

use bytes::Bytes;
use futures::future::try_join_all;

use super::{
    frame::{Expander, damaged},
    node::{DirectoryNode, StoredTree, TreeBounds, decode},
    span::spans,
};
use crate::{
    base::seal::sha256,
    domain::tree::{Place, Tree, join_path},
    snapshot::Error,
};

/// Reads that wait for the store at the same time.
const READS_AT_ONCE: usize = 4;

/// Reads the tree whose root node is at `root`. `read` returns the bytes of a place.
///
/// Directories are read level by level, and those that are near each other in a pack at once. The node of each directory is
/// compared with the digest in its parent, and the root node with a checksum only: compare [`Tree::id`] with the id of the
/// snapshot. Nothing is left of a future that is dropped.
///
/// # Errors
/// `Damaged` if the bytes are not those of a tree, `TooLarge` if the tree has more than any may have, and those of `read`.
pub async fn read_tree<R, F>(root: Place, read: R) -> Result<StoredTree, Error>
where
    R: Fn(Place) -> F,
    F: Future<Output = Result<Bytes, Error>>,
{
    let mut builder = Builder::new()?;
    let mut level = vec![Wanted { path: Vec::new(), place: root, digest: None }];
    // Paths are bounded, so levels are.
    while !level.is_empty() {
        level.sort_by_key(|wanted| wanted.place);
        let places: Vec<_> = level.iter().map(|wanted| wanted.place).collect();
        let mut waiting = mem::take(&mut level).into_iter();
        for batch in spans(&places)?.chunks(READS_AT_ONCE) {
            let stored = try_join_all(batch.iter().map(|span| read(span.place))).await?;
            for (span, stored) in batch.iter().zip(stored) {
                for wanted in waiting.by_ref().take(span.members.len()) {
                    let frame = span.part(&stored, wanted.place)?;
                    builder.add(wanted, frame, &mut level)?;
                }
                // A large level takes some milliseconds.
                tokio::task::yield_now().await;
            }
        }
    }
    Ok(StoredTree::new(builder.tree, builder.nodes))
}

/// A directory whose node is not read yet.
struct Wanted {
    path: Vec<u8>,
    place: Place,
    /// As its parent has it; the root node has none.
    digest: Option<[u8; 32]>,
}

/// A tree of which some levels are read.
struct Builder {
    tree: Tree,
    nodes: BTreeMap<Vec<u8>, DirectoryNode>,
    bounds: TreeBounds,
    expander: Expander,
}

impl Builder {
    fn new() -> Result<Self, Error> {
        let (tree, nodes, bounds) = (Tree::new(), BTreeMap::new(), TreeBounds::default());
        Ok(Self { tree, nodes, bounds, expander: Expander::new()? })
    }

    /// Adds the entries of a directory, and the directories among them to the next level.
    fn add(&mut self, wanted: Wanted, frame: &[u8], level: &mut Vec<Wanted>) -> Result<(), Error> {
        let Wanted { path: above, place, digest: expected } = wanted;
        let bytes = self.expander.expand(frame, self.bounds.node_bytes_left())?;
        let digest = sha256(&bytes);
        if expected.is_some_and(|expected| expected != digest) {
            return Err(damaged("a directory node does not match its digest"));
        }
        self.bounds.add_node(bytes.len())?;
        decode(&bytes, |name, entry, node| {
            let path = join_path(&above, name);
            self.bounds.add_entry(&path)?;
            if let Some((place, digest)) = node {
                level.push(Wanted { path: path.clone(), place, digest: Some(digest) });
            }
            self.tree.insert(path, entry).map_err(damaged)
        })?;
        let size = u32::try_from(bytes.len()).map_err(damaged)?;
        self.nodes.insert(above, DirectoryNode { place, digest, bytes: size });
        Ok(())
    }
}
