//! Tools of the MCP servers of a session, as they were listed last.

use serde::{Deserialize, Serialize};

use crate::{
    base::{Timestamp, limit::MCP_SERVERS_MAX},
    domain::mcp::{McpFailed, McpListed, McpServer, McpTool},
};

/// Lists that are kept: those of the servers, and of some that a caller has taken away.
const LISTS_MAX: usize = 2 * MCP_SERVERS_MAX;

/// The newest list of each server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct McpLists(Vec<McpList>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct McpList {
    server: String,
    server_hash: String,
    /// Without the tools that were left out.
    listed: Option<McpListed>,
    /// Size of the tools as JSON.
    bytes: usize,
    #[serde(with = "time::serde::rfc3339::option")]
    listed_at: Option<Timestamp>,
    /// Time of the last failure since then.
    #[serde(with = "time::serde::rfc3339::option")]
    failed_at: Option<Timestamp>,
}

impl McpLists {
    pub(super) fn take_listed(&mut self, listed: &McpListed, at: Timestamp) {
        let list = self.entry(&listed.server, &listed.server_hash);
        let kept = McpListed { skipped: Vec::new(), ..listed.clone() };
        list.bytes = serde_json::to_vec(&kept.tools).map_or(0, |json| json.len());
        (list.listed, list.listed_at, list.failed_at) = (Some(kept), Some(at), None);
    }

    pub(super) fn take_failed(&mut self, failed: &McpFailed, at: Timestamp) {
        self.entry(&failed.server, &failed.server_hash).failed_at = Some(at);
    }

    fn entry(&mut self, server: &str, server_hash: &str) -> &mut McpList {
        self.0.retain(|list| list.server != server || list.server_hash == server_hash);
        let place = self.0.iter().position(|list| list.server == server);
        let place = place.unwrap_or_else(|| {
            if self.0.len() >= LISTS_MAX {
                self.0.remove(0);
            }
            self.0.push(McpList {
                server: server.to_owned(),
                server_hash: server_hash.to_owned(),
                listed: None,
                bytes: 0,
                listed_at: None,
                failed_at: None,
            });
            self.0.len() - 1
        });
        &mut self.0[place]
    }

    fn of(&self, server: &McpServer) -> Option<&McpList> {
        let server_hash = server.server_hash();
        self.0.iter().find(|list| list.server == server.name && list.server_hash == server_hash)
    }

    /// Returns the newest list of a server.
    pub fn listed(&self, server: &McpServer) -> Option<&McpListed> {
        self.of(server)?.listed.as_ref()
    }

    /// Returns the tools of a server that the agent gets.
    pub fn tools<'a>(&'a self, server: &'a McpServer) -> impl Iterator<Item = &'a McpTool> {
        let tools = self.listed(server).map(|listed| listed.tools.as_slice()).unwrap_or_default();
        tools.iter().filter(|tool| server.offers(&tool.tool))
    }

    /// Returns whether a turn that started at `since` has to list the tools of a server: it has not tried, and there is
    /// no list that is new enough.
    pub fn is_due(&self, server: &McpServer, since: Timestamp) -> bool {
        let Some(list) = self.of(server) else { return true };
        if list.listed_at.max(list.failed_at).is_some_and(|tried_at| tried_at >= since) {
            return false;
        }
        let (Some(listed), Some(listed_at), None) = (&list.listed, list.listed_at, list.failed_at) else {
            return true;
        };
        let ttl = time::Duration::seconds(i64::try_from(listed.ttl_seconds).unwrap_or(i64::MAX));
        listed_at.saturating_add(ttl) < since
    }

    /// Returns whether a server was away when a turn that started at `since` wanted its tools.
    pub fn is_away(&self, server: &McpServer, since: Timestamp) -> bool {
        self.of(server).and_then(|list| list.failed_at).is_some_and(|failed_at| failed_at >= since)
    }

    /// Returns its approximate memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        // Parsed JSON takes about three times its text.
        self.0.iter().map(|list| size_of::<McpList>() + 3 * list.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn server() -> McpServer {
        serde_json::from_value(json!({ "name": "s", "url": "https://mcp.example.com" })).expect("a server")
    }

    fn listed(server: &McpServer, ttl_seconds: u64) -> McpListed {
        let tools = ["a", "b"].map(|name| McpTool::new("s", name, "", Map::new())).to_vec();
        McpListed::new(server, "2026-07-28", tools, Vec::new(), Some(ttl_seconds))
    }

    #[test]
    fn a_list_is_read_again_when_it_is_old_or_the_server_failed() {
        let at = |seconds: i64| Timestamp::UNIX_EPOCH + time::Duration::seconds(seconds);
        let (server, mut lists) = (server(), McpLists::default());
        assert!(lists.is_due(&server, at(0)));
        lists.take_listed(&listed(&server, 60), at(10));
        assert!(!lists.is_due(&server, at(10)), "tried in this turn");
        assert!(!lists.is_due(&server, at(70)));
        assert!(lists.is_due(&server, at(71)));
        lists.take_failed(
            &McpFailed {
                server: "s".to_owned(),
                server_hash: server.server_hash(),
                code: "timeout".to_owned(),
                message: String::new(),
                retry_at: None,
            },
            at(72),
        );
        assert!(!lists.is_due(&server, at(71)) && lists.is_away(&server, at(71)));
        assert!(lists.is_due(&server, at(73)) && !lists.is_away(&server, at(73)));
        assert_eq!(lists.tools(&server).count(), 2, "the last list stays");
    }

    #[test]
    fn another_address_makes_a_list_void_and_a_selection_does_not() {
        let (server, mut lists) = (server(), McpLists::default());
        lists.take_listed(&listed(&server, 60), Timestamp::UNIX_EPOCH);
        let chosen = McpServer { tools: Some(vec!["b".to_owned()]), ..server.clone() };
        let names: Vec<_> = lists.tools(&chosen).map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["mcp__s__b"]);
        let moved = McpServer { url: Some("https://other.example.com".to_owned()), ..server };
        assert!(lists.tools(&moved).next().is_none() && lists.is_due(&moved, Timestamp::UNIX_EPOCH));
    }
}
