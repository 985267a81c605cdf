//! Skills: folders with instructions and files that an agent reads when a task needs them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{custom_tool::AgentTool, ids::SkillId};
use crate::base::limit::{SKILL_NAME_BYTES_MAX, SKILLS_MAX};

/// Directory of the skills in a sandbox.
pub const SKILLS_DIR: &str = "/skills";
/// File with the instructions of a skill.
pub const SKILL_FILE: &str = "SKILL.md";

/// A skill that an agent names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SkillChoice {
    /// Name of the skill.
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9-]+$")]
    pub skill: String,
    /// Its version. A new session pins the newest one for `latest`, the default.
    #[serde(default)]
    pub version: SkillVersion,
}

/// A version of a skill: its number, or `latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected the number of a version, or `latest`")]
pub enum SkillVersion {
    Number(i32),
    Newest(Newest),
}

/// The newest version at the time at which a session is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = LatestSkillVersion)]
pub enum Newest {
    Latest,
}

impl Default for SkillVersion {
    fn default() -> Self {
        Self::Newest(Newest::Latest)
    }
}

impl SkillVersion {
    /// Returns its number; `None` for `latest`.
    pub fn number(self) -> Option<i32> {
        match self {
            Self::Number(number) => Some(number),
            Self::Newest(Newest::Latest) => None,
        }
    }
}

/// A version of a skill that a session has. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinnedSkill {
    #[schema(value_type = String)]
    pub skill_id: SkillId,
    pub name: String,
    pub version: i32,
    /// When and for what the agent uses it.
    pub description: String,
    /// SHA-256 of its files in hex.
    pub sha256: String,
}

/// Returns whether this can be the name of a skill.
pub fn is_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=SKILL_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_word)
}

/// Tools with which an agent can read the files of its skills.
pub const READING_TOOLS: [&str; 2] = ["read", "bash"];

/// Returns whether an agent with these tools can read its skills; without a list it has all tools.
pub fn are_readable(tools: Option<&[AgentTool]>) -> bool {
    tools.is_none_or(|tools| tools.iter().any(|tool| READING_TOOLS.contains(&tool.name())))
}

/// Adds the skills of a parent session to those of its child, if its agent can read any.
pub fn join(pinned: &mut Vec<PinnedSkill>, inherited: Vec<PinnedSkill>, tools: Option<&[AgentTool]>) {
    if !are_readable(tools) {
        return;
    }
    for skill in inherited {
        if pinned.len() < SKILLS_MAX && pinned.iter().all(|other| other.name != skill.name) {
            pinned.push(skill);
        }
    }
}

/// Returns the first problem of a list of skills: its index, the field, and words for the caller.
pub fn problem(skills: &[SkillChoice]) -> Option<(usize, &'static str, String)> {
    skills.iter().enumerate().find_map(|(index, choice)| {
        let name = &choice.skill;
        if !is_name(name) {
            let words = format!("`skill` must have 1 to {SKILL_NAME_BYTES_MAX} characters of a-z, 0-9 and -");
            return Some((index, "skill", words));
        }
        if skills[..index].iter().any(|other| other.skill == *name) {
            return Some((index, "skill", format!("`{name}` is listed twice")));
        }
        let is_none = choice.version.number().is_some_and(|number| number < 1);
        is_none.then(|| (index, "version", "`version` must be 1 or more, or `latest`".to_owned()))
    })
}

/// Returns the part of a system prompt that names skills; empty without skills.
pub fn told(skills: &[PinnedSkill]) -> String {
    if skills.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n\n# Skills\n\nEach skill is a folder with instructions for one kind of task. Before you work on a task that fits \
         the description of a skill, read its {SKILL_FILE} and follow it. Read its other files only when you need them.\n"
    );
    for skill in skills {
        let words: Vec<_> = skill.description.split_whitespace().collect();
        let path = format!("{SKILLS_DIR}/{}/{SKILL_FILE}", skill.name);
        text += &format!("\n- {} ({path}): {}", skill.name, words.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::base::Id;

    #[test]
    fn skills_that_cannot_exist_are_refused() {
        let of = |skills: Value| {
            problem(&serde_json::from_value::<Vec<_>>(skills).expect("skills"))
                .map(|found| (found.0, found.1))
        };
        assert_eq!(of(json!([{ "skill": "pdf" }, { "skill": "a-1", "version": 3 }])), None);
        for name in ["", "PDF", "a b", "a/b", "..", &"a".repeat(65)] {
            assert_eq!(of(json!([{ "skill": name }])), Some((0, "skill")), "{name}");
        }
        assert_eq!(of(json!([{ "skill": "a" }, { "skill": "a", "version": 2 }])), Some((1, "skill")));
        assert_eq!(of(json!([{ "skill": "a", "version": 0 }])), Some((0, "version")));
        assert!(serde_json::from_value::<SkillChoice>(json!({ "skill": "a", "version": "newest" })).is_err());
    }

    #[test]
    fn a_prompt_names_each_skill_in_one_line() {
        assert_eq!(told(&[]), "");
        let skill = PinnedSkill {
            skill_id: Id::from_uuid(uuid::Uuid::nil()),
            name: "pdf".to_owned(),
            version: 1,
            description: "Reads PDFs.\n\n# Not a heading".to_owned(),
            sha256: String::new(),
        };
        let text = told(&[skill]);
        assert!(text.ends_with("\n- pdf (/skills/pdf/SKILL.md): Reads PDFs. # Not a heading"), "{text}");
    }
}
