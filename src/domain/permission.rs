//! Permissions: rules for which calls of an agent run, wait for a person, or are refused.
//!
//! `permission` evaluates them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ids::EventId, mcp::MCP_PREFIX, network::HostPattern};
use crate::base::limit::{ACTION_EXPIRES_SECONDS, NAME_BYTES_MAX, RULE_TEXT_BYTES_MAX};

/// A rule for calls of a tool. In a list, the last one that matches a call decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PermissionRule)]
pub struct Rule {
    /// Name of a tool of the service or of an MCP server, such as `mcp__github__search`, or its begin and `*`.
    pub tool: String,
    /// For `bash`: only commands whose first words are these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// For tools with a path: only paths that match, such as `/workspace/**`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// For `web_fetch`: only this host, or the hosts below `*.example.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub policy: Policy,
    /// Time in which a person must confirm a call, in seconds; 86,400 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 10, maximum = 2_592_000)]
    pub expires_seconds: Option<u64>,
}

/// What a rule says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PermissionPolicy)]
pub enum Policy {
    /// It runs.
    Allow,
    /// It runs if it only reads; else it waits for a person.
    Auto,
    /// It waits until a person confirms it.
    Ask,
    /// It does not run.
    Deny,
}

/// The lists of rules that a session is bound by. The strictest of their decisions counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Permissions {
    /// Those of the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agent: Vec<Rule>,
    /// Those of the session itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub session: Vec<Rule>,
    /// Those of the session that started it, and of the sessions above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<Vec<Rule>>,
}

/// What a person allowed for the rest of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PermissionGrant)]
pub struct Grant {
    pub rule: Rule,
    /// Hash of the tool's schema. A grant ends when the schema changes.
    pub schema_hash: String,
    /// The confirmation that granted it.
    #[schema(value_type = String)]
    pub confirmation_event_id: EventId,
}

/// What the rules say of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyDecision {
    /// Never `Auto`: that is decided.
    pub policy: Policy,
    /// The rule that decided; `None` if none is for the call.
    pub rule: Option<Rule>,
    /// Rules that a person may grant to allow this call and others like it; none if no rule can.
    pub always: Vec<Rule>,
    /// Hash of the tool's schema, which a grant is bound to, if only the turn knows it.
    pub schema_hash: Option<String>,
    /// Time in which a person must confirm it, in seconds.
    pub expires_seconds: u64,
}

impl Default for PolicyDecision {
    fn default() -> Self {
        Self {
            policy: Policy::Allow,
            rule: None,
            always: Vec::new(),
            schema_hash: None,
            expires_seconds: ACTION_EXPIRES_SECONDS.1,
        }
    }
}

/// Tools with the argument `path`.
const WITH_PATH: [&str; 5] = ["read", "write", "edit", "glob", "grep"];

impl Permissions {
    pub fn is_empty(&self) -> bool {
        self.agent.is_empty() && self.session.is_empty() && self.parents.is_empty()
    }

    /// Returns all lists that have rules.
    pub fn lists(&self) -> impl Iterator<Item = &[Rule]> {
        let own = [&self.agent, &self.session].into_iter();
        own.chain(&self.parents).map(Vec::as_slice).filter(|rules| !rules.is_empty())
    }

    /// Returns the lists of a session below this one, as far as they come from here.
    pub fn for_children(&self) -> Vec<Vec<Rule>> {
        self.lists().map(<[Rule]>::to_vec).collect()
    }
}

impl Rule {
    /// Returns whether it is for calls of a tool.
    pub fn is_of(&self, tool: &str) -> bool {
        match self.tool.strip_suffix('*') {
            Some(begin) => tool.starts_with(begin),
            None => self.tool == tool,
        }
    }

    /// Returns it in words, for the model.
    pub fn words(&self) -> String {
        let scope = match (&self.prefix, &self.path, &self.host) {
            (Some(prefix), ..) => format!(" with the prefix `{prefix}`"),
            (_, Some(path), _) => format!(" with the path `{path}`"),
            (_, _, Some(host)) => format!(" with the host `{host}`"),
            (None, None, None) => String::new(),
        };
        let policy = match self.policy {
            Policy::Allow => "allowed",
            Policy::Auto => "allowed if it only reads",
            Policy::Ask => "to be confirmed",
            Policy::Deny => "denied",
        };
        format!("`{}`{scope} is {policy}", self.tool)
    }

    /// Returns why it cannot be used, if it cannot: the field, and words for the caller. `tools` are those of the
    /// service.
    pub fn problem(&self, tools: &[String]) -> Option<(&'static str, String)> {
        // Only a turn knows the tools of its servers.
        let is_known = self.tool.starts_with(MCP_PREFIX) || tools.iter().any(|tool| self.is_of(tool));
        if self.tool.len() > NAME_BYTES_MAX || !is_known {
            let words = format!(
                "is no tool of the service, nor the begin of one of an MCP server (`{MCP_PREFIX}`); they are {}",
                tools.join(", ")
            );
            return Some(("tool", words));
        }
        let is_of_any = |names: &[&str]| names.contains(&self.tool.as_str());
        for (field, text, is_possible) in [
            ("prefix", &self.prefix, is_of_any(&["bash"])),
            ("path", &self.path, is_of_any(&WITH_PATH)),
            ("host", &self.host, is_of_any(&["web_fetch"])),
        ] {
            match text {
                Some(_) if !is_possible => {
                    return Some((field, format!("is not for the tool `{}`", self.tool)));
                }
                Some(text) if text.trim().is_empty() || text.len() > RULE_TEXT_BYTES_MAX => {
                    return Some((field, format!("must have 1 to {RULE_TEXT_BYTES_MAX} bytes")));
                }
                _ => {}
            }
        }
        if let Some(host) = &self.host
            && let Err(bad) = HostPattern::parse(host)
        {
            return Some(("host", bad.to_string()));
        }
        let (min, _, max) = ACTION_EXPIRES_SECONDS;
        match self.expires_seconds {
            Some(_) if !matches!(self.policy, Policy::Ask | Policy::Auto) => {
                Some(("expires_seconds", "is only for the policies `ask` and `auto`".to_owned()))
            }
            Some(seconds) if !(min..=max).contains(&seconds) => {
                Some(("expires_seconds", format!("must be {min} to {max}")))
            }
            _ => None,
        }
    }

    /// Returns whether all calls that it allows are also allowed by `wider`, as far as their texts tell.
    pub fn is_within(&self, wider: &Self) -> bool {
        let begins = |own: &Option<String>, wider: &Option<String>| match (own, wider) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(wider)) => {
                let mut words = own.split_whitespace();
                wider.split_whitespace().all(|word| words.next() == Some(word))
            }
        };
        self.tool == wider.tool
            && self.policy == Policy::Allow
            && begins(&self.prefix, &wider.prefix)
            && (wider.path.is_none() || self.path == wider.path)
            && (wider.host.is_none() || self.host == wider.host)
    }
}
