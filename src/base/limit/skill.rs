//! Bounds of skills.

/// Skills of an agent, or of a session.
pub const SKILLS_MAX: usize = 20;
/// Longest name of a skill, in bytes.
pub const SKILL_NAME_BYTES_MAX: usize = 64;
/// Longest description of a skill, in characters.
pub const SKILL_DESCRIPTION_CHARS_MAX: usize = 1_024;
/// Largest archive of a skill, in bytes.
pub const SKILL_BYTES_MAX: usize = 30 << 20;
/// Files of a skill.
pub const SKILL_FILES_MAX: usize = 500;
/// Longest path of a file within a skill, in bytes.
pub const SKILL_PATH_BYTES_MAX: usize = 512;
/// Directories above a file within a skill, and the file itself.
pub const SKILL_DEPTH_MAX: usize = 16;
/// Archives of skills that a process reads at the same time, and of those the ones of one organization.
pub const SKILLS_READ_AT_ONCE: (usize, usize) = (4, 2);
/// Largest header of a `SKILL.md`, in bytes. The time to read one grows with the square of its nested brackets.
pub const SKILL_HEADER_BYTES_MAX: usize = 16 << 10;
/// Bytes of all versions of all skills of an organization.
pub const ORG_SKILLS_BYTES_MAX: u64 = 5 << 30;
