//! Versions of skills.

use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::domain::SkillId;

/// A version of a skill. It never changes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SkillView {
    pub id: SkillId,
    /// Name of the skill, as `SKILL.md` has it.
    pub name: String,
    /// Number of the version, starting at 1 for each name.
    pub version: i32,
    /// When and for what an agent uses it, as `SKILL.md` has it.
    pub description: String,
    /// SHA-256 of its files in hex; equal folders have equal ones.
    pub sha256: String,
    /// Size of its archive.
    pub bytes: u64,
    /// Number of its files.
    pub files: u32,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}
