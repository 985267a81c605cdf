//! Bounds of snapshots of files, and of the objects in the blob store that have them.

use std::time::Duration;

/// Files, directories and links of a sandbox of which a snapshot is taken. A tree of so many takes about 40 MB of memory.
pub const SNAPSHOT_PATHS_MAX: u64 = 100_000;
/// Bytes of the files that changed since the snapshot before; they are read from the sandbox.
pub const SNAPSHOT_CHANGED_BYTES_MAX: u64 = 4 << 30;
/// Bytes of all files of a snapshot.
pub const SNAPSHOT_BYTES_MAX: u64 = 16 << 30;
/// Size from which on a pack takes no further content, in bytes: it is in memory until it is stored. A larger change is
/// several packs.
pub const SNAPSHOT_PACK_BYTES_MAX: u64 = 512 << 20;

/// Largest object, in bytes: a pack, with its last content and its directories.
pub const OBJECT_BYTES_MAX: u64 = 2 * SNAPSHOT_PACK_BYTES_MAX;
/// Parts in which an object is stored and read, in bytes; each has `BLOB_TIMEOUT`. At least 5 MiB, as S3 demands.
pub const OBJECT_PART_BYTES: usize = 8 << 20;
/// Parts of an object that are stored at the same time.
pub const OBJECT_PARTS_AT_ONCE: usize = 4;
/// Time for which an object stays that nothing has referred to yet: longer than a process may be frozen between an upload
/// and the append that refers to it.
pub const OBJECT_UNUSED_TTL: Duration = Duration::from_secs(24 * 3_600);
/// Time for which a worker that claims an object may delete its blob; afterwards an upload may store it again. Another
/// worker claims it after twice that time.
pub const OBJECT_REMOVAL_TTL: Duration = Duration::from_secs(60);
