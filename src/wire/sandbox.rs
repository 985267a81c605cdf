//! A session's sandbox on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::{CheckpointId, SandboxId};

/// The sandbox of a session: the one that is there, else the last one.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Sandbox)]
pub struct SandboxView {
    pub id: SandboxId,
    pub state: SandboxState,
    /// Has all its files; null as soon as something may have changed one.
    #[schema(required)]
    pub checkpoint_id: Option<CheckpointId>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it is replaced by another with the same files; null for never.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub expires_at: Option<OffsetDateTime>,
}

/// The files of a session as they were.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Checkpoint)]
pub struct CheckpointView {
    pub id: CheckpointId,
    /// The sandbox whose files these are.
    pub sandbox_id: SandboxId,
    /// SHA-256 of what is stored, in hexadecimal.
    pub digest: String,
    /// Bytes of what is stored.
    pub bytes: u64,
    /// A caller asked for it; the newest 8 of these are kept.
    pub by_hand: bool,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// Which checkpoint to go back to.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    #[garde(length(bytes, min = 1, max = 64))]
    pub checkpoint_id: String,
}

/// What a sandbox is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// It is being made.
    Starting,
    /// Commands can run in it.
    Running,
    /// Its processes stand still until it is needed.
    Frozen,
    /// It is being removed; its files are kept.
    Stopping,
    /// It was removed; the next one gets its files.
    Hibernated,
    /// It died; the next one gets the files of its disk, or of the newest checkpoint.
    Lost,
}
