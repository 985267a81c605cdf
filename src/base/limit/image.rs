//! Bounds of root file systems: what images may hold, what builds may take.

use std::time::Duration;

/// Packages that one environment names, of all kinds together.
pub const PACKAGES_MAX: usize = 100;
/// Longest name of a package with its version, in bytes.
pub const PACKAGE_BYTES_MAX: usize = 200;
/// Files of an image, and their bytes.
pub const IMAGE_ENTRIES_MAX: u64 = 2_000_000;
pub const IMAGE_BYTES_MAX: u64 = 32 << 30;
/// Layers of an image, and the bytes of its manifest.
pub const IMAGE_LAYERS_MAX: usize = 128;
pub const IMAGE_MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Directories at the top of an image: each is a mount of every sandbox.
pub const IMAGE_DIRECTORIES_MAX: usize = 32;
/// How long it may take to make a root file system.
pub const ROOTFS_TIMEOUT: Duration = Duration::from_secs(1_800);
/// Bytes of one with packages; the installers' scratch counts.
pub const ROOTFS_BYTES_MAX: u64 = 8 << 30;
/// Memory and processes of a container in which packages are installed.
pub const ROOTFS_MEMORY_BYTES: u64 = 2 << 30;
pub const ROOTFS_PIDS: u32 = 1_024;
/// What is kept of a build's output: its end, in bytes.
pub const ROOTFS_LOG_BYTES_MAX: usize = 16 << 10;
/// A build that says more than this is ended, in bytes.
pub const ROOTFS_OUTPUT_BYTES_MAX: u64 = 16 << 20;
/// How often what a build says is told.
pub const ROOTFS_LOG_BEAT: Duration = Duration::from_secs(2);
/// Places that an installation was kept from, as its failure names them: an installer may
/// try as many as it likes.
pub const ROOTFS_DENIED_MAX: usize = 16;
/// Root file systems that a node makes at the same time.
pub const ROOTFS_TOGETHER_MAX: usize = 2;
/// Of these, and of those that wait on a node, how many may be of one organization.
pub const ROOTFS_PER_ORGANIZATION_MAX: i64 = 4;
/// How often a node looks what is to be made, and a session whether it is there.
pub const ROOTFS_POLL: Duration = Duration::from_secs(1);
/// How long a build that failed answers for the next one that wants the same.
pub const ROOTFS_FAILURE_KEPT: Duration = Duration::from_secs(600);
/// Root file systems with packages that a node keeps; beyond it the longest unused goes.
pub const ROOTFS_DERIVED_MAX: usize = 24;
/// One that no sandbox has had for this long is removed.
pub const ROOTFS_UNUSED: Duration = Duration::from_secs(14 * 86_400);
/// Whatever is short, one that a sandbox had within this time stays.
pub const ROOTFS_FRESH: Duration = Duration::from_secs(3_600);
