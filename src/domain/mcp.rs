//! MCP servers of an agent, and the tools that they list.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{
    ids::CredentialId,
    tool::{Replay, ToolSpec},
};
use crate::base::{
    Timestamp,
    limit::{
        AGENT_TOOLS_MAX, MCP_CALL_SECONDS, MCP_COMMAND_BYTES_MAX, MCP_COMMAND_WORDS_MAX,
        MCP_DESCRIPTION_BYTES_MAX, MCP_LIST_SECONDS, MCP_NAME_BYTES_MAX, NAME_BYTES_MAX, TOOL_NAME_BYTES_MAX,
    },
    seal::sha256,
    text::{self, hex},
};

/// Provider of the credentials of MCP servers.
pub const PROVIDER: &str = "mcp";

/// Begin of the names of tools of MCP servers, as a model sees them.
pub const MCP_PREFIX: &str = "mcp__";

/// A server of the Model Context Protocol whose tools an agent may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// `[a-z0-9_-]`, at most 32 characters, without `__`; unique in its list. The model sees the tool `search` of the
    /// server `github` as `mcp__github__search`.
    pub name: String,
    /// Address of its endpoint (streamable HTTP). A server has either an address or a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Program and arguments of a server that runs in the session's sandbox and speaks the protocol on its standard input
    /// and output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Id of a credential of the provider `mcp`, whose token is sent to the server at `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialId>,
    /// Names of its tools that the agent gets; absent, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Whether a turn ends with the error `mcp_unavailable` when the server cannot be reached. Otherwise the agent gets
    /// the tools that it listed last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// How calls of its tools may be repeated after a crash, by the name of the tool; `unsafe` for the others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replay: BTreeMap<String, Replay>,
    /// Whether what the server says of its tools (`readOnlyHint`, `idempotentHint`) counts for the others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust_annotations: bool,
    /// Time in which it must answer a call, in seconds: 1 to 3,600, default 120.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3_600)]
    pub timeout_seconds: Option<u64>,
}

/// The tools of an MCP server, as it listed them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct McpListed {
    /// Name of the server.
    pub server: String,
    /// Hash of where and how the server is reached; another one makes the list void.
    pub server_hash: String,
    /// Version of the protocol that it speaks, such as `2026-07-28`.
    pub protocol_version: String,
    /// SHA-256 of the tools, to see whether they changed.
    pub hash: String,
    pub tools: Vec<McpTool>,
    /// Tools that no model is offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<McpSkipped>,
    /// Age at which the list is read again, in seconds.
    pub ttl_seconds: u64,
}

/// A tool of an MCP server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct McpTool {
    /// Name that a model calls.
    pub name: String,
    /// Name that the server calls it.
    pub tool: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Map<String, Value>,
    /// The server says that it changes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The server says that a second call with the same arguments changes nothing more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
}

/// A tool that is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct McpSkipped {
    /// Name that the server calls it.
    pub tool: String,
    pub reason: String,
}

/// A failed attempt to list the tools of an MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct McpFailed {
    /// Name of the server.
    pub server: String,
    /// Hash of where and how the server is reached.
    pub server_hash: String,
    /// `unreachable`, `timeout`, `unauthorized`, `refused`, `protocol` or `suspended`.
    pub code: String,
    pub message: String,
    /// Time until which the server is suspended; absent if the next turn tries it again.
    #[serde(with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub retry_at: Option<Timestamp>,
}

/// First version of the protocol without a handshake.
const STATELESS_SINCE: &str = "2026-07-28";

/// Returns whether a version of the protocol begins with a handshake. Versions are dates.
pub fn has_handshake(protocol_version: &str) -> bool {
    protocol_version < STATELESS_SINCE
}

/// Returns the first problem of a list of servers: its index, the field, and words for the caller.
pub fn problem(servers: &[McpServer]) -> Option<(usize, &'static str, String)> {
    servers.iter().enumerate().find_map(|(index, server)| {
        let is_known = servers[..index].iter().any(|other| other.name == server.name);
        let repeated = is_known.then(|| ("name", format!("`{}` is listed twice", server.name)));
        let (field, words) = repeated.or_else(|| server.problem())?;
        Some((index, field, words))
    })
}

impl McpServer {
    fn problem(&self) -> Option<(&'static str, String)> {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        let name = self.name.as_str();
        let is_well = (1..=MCP_NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(is_word)
            && !name.contains("__")
            && !name.starts_with('_')
            && !name.ends_with('_');
        if !is_well {
            let words = format!(
                "must have 1 to {MCP_NAME_BYTES_MAX} characters of a-z, 0-9, _ and -, with no _ beside another or at an end"
            );
            return Some(("name", words));
        }
        match (&self.url, &self.command) {
            (Some(_), None) => {}
            (None, Some(command)) => {
                if let Some(words) = command_problem(command) {
                    return Some(("command", words));
                }
                if self.credential.is_some() {
                    let words = "is for a server with a `url`: one with a `command` reads the variables of the environment";
                    return Some(("credential", words.to_owned()));
                }
            }
            (Some(_), Some(_)) => return Some(("command", "cannot be combined with `url`".to_owned())),
            (None, None) => return Some(("url", "or `command` is required".to_owned())),
        }
        let tools: Vec<_> = self.tools.iter().flatten().collect();
        for (field, names) in [("tools", tools), ("replay", self.replay.keys().collect())] {
            if names.len() > AGENT_TOOLS_MAX || !names.iter().all(|name| is_name(name)) {
                let words = format!("may have {AGENT_TOOLS_MAX} names of 1 to {NAME_BYTES_MAX} bytes");
                return Some((field, words));
            }
        }
        let (min, _, max) = MCP_CALL_SECONDS;
        if !(min..=max).contains(&self.timeout_seconds()) {
            return Some(("timeout_seconds", format!("must be {min} to {max}")));
        }
        None
    }

    /// Returns the time in which it must answer a call, in seconds.
    pub fn timeout_seconds(&self) -> u64 {
        self.timeout_seconds.unwrap_or(MCP_CALL_SECONDS.1)
    }

    /// Returns the hash of where and how it is reached.
    pub fn server_hash(&self) -> String {
        match &self.command {
            Some(command) => hash(&json!({ "command": command })),
            None => hash(&json!({ "credential": self.credential, "url": self.url })),
        }
    }

    /// Returns whether the agent gets a tool of it.
    pub fn offers(&self, tool: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.iter().any(|name| name == tool))
    }

    /// Returns how a call of a tool may be repeated after a crash.
    pub fn replay_of(&self, tool: &McpTool) -> Replay {
        match self.replay.get(&tool.tool) {
            Some(replay) => *replay,
            None if self.trust_annotations && tool.read_only => Replay::ReadOnly,
            None if self.trust_annotations && tool.idempotent => Replay::Idempotent,
            None => Replay::Unsafe,
        }
    }

    /// Returns a tool of it as a model sees it.
    pub fn spec_of(&self, tool: &McpTool) -> ToolSpec {
        ToolSpec {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: Value::Object(tool.input_schema.clone()),
            replay: self.replay_of(tool),
        }
    }
}

impl McpListed {
    /// Puts together the list of a server. `ttl_seconds` is what the server says of its age, at most an hour.
    pub fn new(
        server: &McpServer,
        protocol_version: &str,
        tools: Vec<McpTool>,
        skipped: Vec<McpSkipped>,
        ttl_seconds: Option<u64>,
    ) -> Self {
        Self {
            server: server.name.clone(),
            server_hash: server.server_hash(),
            protocol_version: protocol_version.to_owned(),
            hash: hash(&json!(tools)),
            tools,
            skipped,
            ttl_seconds: ttl_seconds.unwrap_or(MCP_LIST_SECONDS).min(MCP_LIST_SECONDS),
        }
    }
}

impl McpTool {
    /// Returns a tool of `server` under the name that a model calls, with a description that is not too long.
    pub fn new(server: &str, tool: &str, description: &str, input_schema: Map<String, Value>) -> Self {
        Self {
            name: tool_name(server, tool),
            tool: tool.to_owned(),
            description: text::truncate(description, MCP_DESCRIPTION_BYTES_MAX).to_owned(),
            input_schema,
            read_only: false,
            idempotent: false,
        }
    }
}

/// Returns why a command cannot be run.
fn command_problem(command: &[String]) -> Option<String> {
    let bytes: usize = command.iter().map(String::len).sum();
    if command.first().is_none_or(String::is_empty) {
        return Some("must begin with a program".to_owned());
    }
    if command.len() > MCP_COMMAND_WORDS_MAX || bytes > MCP_COMMAND_BYTES_MAX {
        return Some(format!("may have {MCP_COMMAND_WORDS_MAX} words and {MCP_COMMAND_BYTES_MAX} bytes"));
    }
    command.iter().any(|word| word.contains('\0')).then(|| "must not contain a zero byte".to_owned())
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
}

/// Returns the name of a tool of a server for a model: providers accept 64 characters of a-z, A-Z, 0-9, _ and -. A name
/// that has to be changed ends with a part of its hash, so that no two are the same.
fn tool_name(server: &str, tool: &str) -> String {
    let is_word = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    let begin = format!("{MCP_PREFIX}{server}__");
    let plain: String =
        tool.chars().map(|character| if is_word(character) { character } else { '_' }).collect();
    if plain == tool && begin.len() + tool.len() <= TOOL_NAME_BYTES_MAX {
        return begin + tool;
    }
    let digest = &hex(&sha256(tool.as_bytes()))[..8];
    let left = TOOL_NAME_BYTES_MAX - begin.len() - digest.len() - 1;
    format!("{begin}{}_{digest}", &plain[..plain.len().min(left)])
}

fn hash(value: &Value) -> String {
    format!("sha256:{}", hex(&sha256(value.to_string().as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(value: Value) -> McpServer {
        serde_json::from_value(value).expect("a server")
    }

    #[test]
    fn names_of_tools_are_those_that_providers_accept() {
        assert_eq!(tool_name("github", "search"), "mcp__github__search");
        let odd = tool_name("github", "files/read");
        assert!(odd.starts_with("mcp__github__files_read_"), "{odd}");
        assert_ne!(odd, tool_name("github", "files.read"));
        let long = tool_name(&"s".repeat(32), &"é".repeat(128));
        assert!(long.len() <= TOOL_NAME_BYTES_MAX && long.is_ascii(), "{long}");
        assert_ne!(tool_name("a", &"x".repeat(100)), tool_name("a", &"x".repeat(101)));
    }

    #[test]
    fn annotations_count_only_where_they_are_trusted() {
        let tool = McpTool { read_only: true, ..McpTool::new("s", "t", "", Map::new()) };
        let plain = server(json!({ "name": "s", "url": "https://mcp.example.com" }));
        assert_eq!(plain.replay_of(&tool), Replay::Unsafe);
        let trusted = McpServer { trust_annotations: true, ..plain.clone() };
        assert_eq!(trusted.replay_of(&tool), Replay::ReadOnly);
        let named = server(json!({
            "name": "s", "url": "https://mcp.example.com", "trust_annotations": true, "replay": { "t": "idempotent" },
        }));
        assert_eq!(named.replay_of(&tool), Replay::Idempotent);
    }

    #[test]
    fn servers_that_cannot_be_used_are_refused() {
        let of = |servers: Value| {
            problem(&serde_json::from_value::<Vec<_>>(servers).expect("servers"))
                .map(|found| (found.0, found.1))
        };
        let url = "https://mcp.example.com";
        assert_eq!(of(json!([{ "name": "a_b-1", "url": url }])), None);
        for name in ["", "A", "a__b", "_a", "a_", "a b", &"a".repeat(33)] {
            assert_eq!(of(json!([{ "name": name, "url": url }])), Some((0, "name")), "{name}");
        }
        assert_eq!(of(json!([{ "name": "a", "url": url }, { "name": "a", "url": url }])), Some((1, "name")));
        let slow = json!([{ "name": "a", "url": url, "timeout_seconds": 3_601 }]);
        assert_eq!(of(slow), Some((0, "timeout_seconds")));
        let with = |rest: Value| {
            let mut server = json!({ "name": "a" });
            server.as_object_mut().expect("an object").extend(rest.as_object().expect("fields").clone());
            of(json!([server]))
        };
        assert_eq!(with(json!({ "command": ["server", ""] })), None);
        assert_eq!(with(json!({})), Some((0, "url")));
        for command in [json!([]), json!([""]), json!(["a\0b"]), json!(["a", "b".repeat(8 << 10)])] {
            assert_eq!(with(json!({ "command": command })), Some((0, "command")), "{command}");
        }
        assert_eq!(with(json!({ "command": ["server"], "url": url })), Some((0, "command")));
    }
}
