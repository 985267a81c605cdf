//! How full a disk is.
//!
//! Called by the node, before it makes a sandbox or an image, and by `lifecycle` before it makes a checkpoint.

use std::path::PathBuf;

use rustix::fs::statvfs;

/// Free space that a disk keeps.
#[derive(Clone, Debug)]
pub struct FreeSpace {
    /// A directory on the disk.
    pub path: PathBuf,
    /// Below this many free bytes, no sandbox, checkpoint or image is made.
    pub kept_bytes: u64,
}

impl FreeSpace {
    /// Free bytes for this process; `None` when they cannot be read.
    pub fn bytes(&self) -> Option<u64> {
        let disk = statvfs(&self.path).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Whether less is free than is kept.
    pub fn is_low(&self) -> bool {
        self.bytes().is_some_and(|free| free < self.kept_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_low_below_what_it_keeps() {
        let space = |kept_bytes| FreeSpace { path: "/".into(), kept_bytes };
        assert!(!space(0).is_low() && space(u64::MAX).is_low());
    }
}
