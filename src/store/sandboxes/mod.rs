//! Sandboxes, checkpoints, root file systems, operations of callers.

pub mod admission;
pub(crate) mod capacity;
pub(crate) mod checkpoint;
pub(crate) mod operation;
pub(crate) mod output;
pub(crate) mod rootfs;
pub mod sandbox;
pub(crate) mod sandbox_summary;
