//! Sandboxes, checkpoints, root file systems, operations of callers.

pub mod checkpoint;
pub mod operation;
pub mod output;
pub mod rootfs;
pub mod sandbox;
pub mod sandbox_summary;
