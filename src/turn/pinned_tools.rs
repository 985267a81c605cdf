//! The part of a pinned agent that the tools of a turn need.

use url::Url;

use crate::{
    domain::{
        Session, custom_tool::AgentTool, mcp::McpServer, network::NetworkPolicy, permission::Permissions,
        session::AgentSnapshot, turn_settings::TurnSettings,
    },
    mcp::Failure,
    net,
};

/// An MCP server and where it is, or the reason why it must not be used.
pub(super) struct McpTarget {
    pub server: McpServer,
    pub place: Result<McpPlace, Failure>,
}

/// Place of an MCP server.
pub(super) enum McpPlace {
    Address(Url),
    /// A process in the sandbox, of this command. What it reaches is what the sandbox reaches.
    Command(Vec<String>),
}

/// The part of the session's agent that its tools need.
#[derive(Default)]
pub(super) struct PinnedTools {
    pub tools: Option<Vec<AgentTool>>,
    pub permissions: Permissions,
    pub settings: TurnSettings,
    /// Whether the environment allows MCP servers.
    pub allows_mcp_servers: bool,
}

impl PinnedTools {
    pub(super) fn of(agent: &AgentSnapshot, session: &Session) -> Self {
        let network = session.created.environment.as_ref().map(|pinned| &pinned.config.network);
        Self {
            tools: agent.tools.clone(),
            permissions: agent.permissions.clone(),
            settings: agent.settings.clone(),
            allows_mcp_servers: network.is_none_or(NetworkPolicy::allows_mcp_servers),
        }
    }

    /// Returns the MCP servers of the agent.
    pub(super) fn mcp_servers(&self) -> Vec<McpTarget> {
        let place = |server: &McpServer| match (&server.command, &server.url) {
            (Some(command), _) => Ok(McpPlace::Command(command.clone())),
            (None, _) if !self.allows_mcp_servers => {
                Err(Failure::Refused("the environment does not allow MCP servers".to_owned()))
            }
            (None, url) => net::parse(url.as_deref().unwrap_or_default())
                .map(McpPlace::Address)
                .map_err(|refused| Failure::Refused(refused.to_string())),
        };
        let servers = self.settings.mcp_servers.iter().flatten();
        servers.map(|server| McpTarget { place: place(server), server: server.clone() }).collect()
    }
}
