//! Packs: immutable objects with new contents and changed directories.
//!
//! A pack is the magic and the version (8 bytes), then zstd frames one after the other, each with its size and a checksum. A
//! frame is a chunk of a file, or a directory node. Nothing in a pack says where a frame begins: a node has the places of its
//! chunks and of the nodes of its directories, and the row of a snapshot that of its root node.
//!
//! A node is a version byte and its entries in ascending order of their names, integers in little endian:
//!
//! | field | bytes |
//! |---|---|
//! | name | length (2), bytes |
//! | type | 1: 0 file, 1 directory, 2 link |
//! | mode, mtime | 4, 8 (signed nanoseconds) |
//! | of a file | size (8), SHA-256 (32), number of chunks (4), each with SHA-256 (32), size (4), place (16) |
//! | of a directory | place (16) and SHA-256 (32) of its node before compression |
//! | of a link | length of the target (2), bytes |
//!
//! A place is the number of the pack (4), offset (8) and stored bytes (4). The entries of the root node are the roots.

mod file;
mod frame;
mod node;
mod reader;
mod span;
mod writer;

pub use file::FileWriter;
pub use frame::{CHUNK_BYTES_MAX, Expander};
pub use node::{DirectoryNode, StoredTree};
pub use reader::read_tree;
pub use span::{Span, spans};
pub use writer::{FinishedPack, Writer};

#[cfg(test)]
mod tests;
