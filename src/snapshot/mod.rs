//! Snapshots of files: packs of contents and directories, and line diffs.
//!
//! A snapshot is a tree (`domain::tree`) whose directories and contents are in packs of the session. Packs are written from
//! the files of a sandbox after a step, and read to restore, to compare and to serve files.

pub mod diff;
mod objects;
pub mod pack;

pub use objects::{put_object, read_object};

/// A pack or a tree could not be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The stored bytes are not those that were written. They stay so.
    #[error("the pack is damaged: {0}")]
    Damaged(String),
    /// More than a tree may have. The same tree is refused again.
    #[error("{0}")]
    TooLarge(String),
    /// The bytes cannot be read or written now; a retry may succeed.
    #[error("the pack cannot be read or written: {0}")]
    Unavailable(String),
}
