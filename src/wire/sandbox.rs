//! Request and response bodies of a session's sandbox and its checkpoints.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::{CheckpointId, SandboxId};

/// The sandbox of a session: the current one, or the last one.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Sandbox)]
pub struct SandboxView {
    pub id: SandboxId,
    pub state: SandboxState,
    /// Checkpoint that contains all its files; null once a file may have changed since.
    #[schema(required)]
    pub checkpoint_id: Option<CheckpointId>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// Time at which it is replaced by another sandbox with the same files; null means never.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub expires_at: Option<OffsetDateTime>,
}

/// A wait for capacity for a sandbox.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = SandboxWait)]
pub struct SandboxWaitView {
    /// The resource that is missing: `queue`, `node_cpu`, `node_memory`, `node_pids`, `node_disk`, `node_disk_low`,
    /// `organization_sandboxes`, `organization_memory` or `organization_checkpoints`.
    pub shortage: String,
    /// Number of sessions that are served before this one, plus 1; as of the last second.
    pub queue_position: i32,
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
}

/// Saved files of a session.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Checkpoint)]
pub(crate) struct CheckpointView {
    pub id: CheckpointId,
    /// The sandbox that the files come from.
    pub sandbox_id: SandboxId,
    /// SHA-256 of the stored archive, hex-encoded.
    pub digest: String,
    /// Size of the stored archive in bytes.
    pub bytes: u64,
    /// True if a caller requested it; the newest 8 of these are retained.
    pub by_hand: bool,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Checkpoint to restore.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Restore {
    #[garde(length(bytes, min = 1, max = 64))]
    pub checkpoint_id: String,
}

/// State of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// The sandbox is being created.
    Starting,
    /// Commands can run in it.
    Running,
    /// Its processes are stopped in memory until the sandbox is needed.
    Frozen,
    /// It is being removed; its files are retained.
    Stopping,
    /// It was removed; the next sandbox restores its files.
    Hibernated,
    /// It failed. The next sandbox gets the files of its disk, or of the newest checkpoint.
    Lost,
}
