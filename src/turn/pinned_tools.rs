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

/// An MCP server with its address, or with the reason why it must not be used.
pub(super) struct McpTarget {
    pub server: McpServer,
    pub url: Result<Url, Failure>,
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
        let url = |server: &McpServer| match self.allows_mcp_servers {
            true => net::parse(&server.url).map_err(|refused| Failure::Refused(refused.to_string())),
            false => Err(Failure::Refused("the environment does not allow MCP servers".to_owned())),
        };
        let servers = self.settings.mcp_servers.iter().flatten();
        servers.map(|server| McpTarget { url: url(server), server: server.clone() }).collect()
    }
}
