//! Bounds of root file systems: image size, and build time and memory.

use std::time::Duration;

/// Packages of one environment, of all package managers together.
pub const PACKAGES_MAX: usize = 100;
/// Max length of a package name with its version, in bytes.
pub const PACKAGE_BYTES_MAX: usize = 200;
/// Max number of files of an image, and their total bytes.
pub const IMAGE_FILES_MAX: u64 = 2_000_000;
pub const IMAGE_BYTES_MAX: u64 = 32 << 30;
/// Max number of layers of an image, and the bytes of its manifest.
pub const IMAGE_LAYERS_MAX: usize = 128;
pub const IMAGE_MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Top-level directories of an image; each becomes a mount in every sandbox.
pub const IMAGE_DIRECTORIES_MAX: usize = 32;
/// Timeout to build a root file system.
pub const ROOTFS_TIMEOUT: Duration = Duration::from_secs(1_800);
/// Max size of a root file system with packages, in bytes; the installers' scratch files count.
pub const ROOTFS_BYTES_MAX: u64 = 8 << 30;
/// Memory (bytes) and processes of the container in which packages are installed.
pub const ROOTFS_MEMORY_BYTES: u64 = 2 << 30;
pub const ROOTFS_PIDS: u32 = 1_024;
/// Bytes stored of a build's output; the end of the output is kept.
pub const ROOTFS_LOG_BYTES_MAX: usize = 16 << 10;
/// A build that writes more output than this many bytes is terminated.
pub const ROOTFS_OUTPUT_BYTES_MAX: u64 = 16 << 20;
/// Interval at which new build output is reported.
pub const ROOTFS_LOG_INTERVAL: Duration = Duration::from_secs(2);
/// Denied hosts that the failure of an installation lists; an installer may try any number of
/// hosts.
pub const ROOTFS_DENIED_MAX: usize = 16;
/// Root file systems that one node builds concurrently.
pub const ROOTFS_CONCURRENT_MAX: usize = 2;
/// Of the running and queued builds of a node, the most that one organization may have.
pub const ROOTFS_PER_ORGANIZATION_MAX: i64 = 4;
/// Builds that a node starts for one organization within an hour, of up to `ROOTFS_BYTES_MAX` each: only root file
/// systems that were not used for an hour are removed when there are many.
pub const ROOTFS_BUILDS_PER_HOUR_MAX: i64 = 12;
/// Bytes on one node of the root file systems with packages that an organization had built there, unless the operator
/// sets another maximum: at least two of `ROOTFS_BYTES_MAX`.
pub const ORG_IMAGES_BYTES_MAX: u64 = 20 << 30;
/// Interval at which a node polls for builds, and a session for its root file system.
pub const ROOTFS_POLL: Duration = Duration::from_secs(1);
/// A failed build also answers equal requests for this long.
pub const ROOTFS_FAILURE_TTL: Duration = Duration::from_secs(600);
/// Root file systems with packages that a node stores; the least recently used is removed first.
pub const ROOTFS_DERIVED_MAX: usize = 24;
/// A root file system that no sandbox has used for this long is removed.
pub const ROOTFS_MAX_IDLE: Duration = Duration::from_secs(14 * 86_400);
/// A root file system used within this time is never removed, even if space is short.
pub const ROOTFS_MIN_AGE: Duration = Duration::from_secs(3_600);
/// Max size of a file that refers to an image of a registry, in bytes.
pub const IMAGE_REFERENCE_BYTES_MAX: u64 = 1_024;
/// Max size of the file with the credentials for registries, in bytes.
pub const REGISTRY_AUTH_FILE_BYTES_MAX: u64 = 1 << 20;
/// Timeout of a connection to a registry: lookup, connect and TLS handshake.
pub const REGISTRY_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a token, an index or a manifest of a registry.
pub const REGISTRY_DOCUMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// A registry that sends nothing for this long has stalled. The whole pull ends after `ROOTFS_TIMEOUT`.
pub const REGISTRY_READ_TIMEOUT: Duration = Duration::from_secs(60);
