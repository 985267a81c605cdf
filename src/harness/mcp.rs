//! Tools of MCP servers: listed when a turn starts or when they changed, each list an event.

use std::time::Duration;

use super::{Halt, turn::Run};
use crate::domain::{Actor, event::Body, tool::ToolCall};

/// Error code of a turn without the tools of a server that it needs.
const MCP_UNAVAILABLE: &str = "mcp_unavailable";

impl Run<'_> {
    /// Lists the tools of the servers whose list is due. Returns whether the turn ended, if the model is not to be called
    /// now.
    pub(super) async fn list_mcp_tools(&mut self) -> Result<Option<bool>, Halt> {
        let Some(since) = self.own().and_then(|turn| turn.started_at) else { return Ok(None) };
        let (listed, halt) = tokio::select! {
            biased;
            listed = self.ports.tools.list_mcp(self.fold.mcp(), since) => listed,
            // The loop handles the signal first.
            _ = self.interrupted(Duration::ZERO) => return Ok(Some(false)),
        };
        if !listed.is_empty() {
            let drafts = listed.into_iter().map(|body| self.draft(body, Actor::system())).collect();
            self.record(drafts).await?;
            self.ports.tools.offer_mcp(self.fold.mcp());
        }
        if let Some(halt) = halt {
            return Err(halt);
        }
        let Some(server) = self.ports.tools.missing_mcp(self.fold.mcp(), since) else { return Ok(None) };
        let words = format!("the MCP server `{server}`, which the agent needs, could not list its tools");
        self.fail(MCP_UNAVAILABLE, words, Vec::new()).await.map(Some)
    }

    /// Records the start of a call that runs at a server: nothing but the log can say later whether it began.
    pub(super) async fn start_remote(&mut self, call: &ToolCall) -> Result<(), Halt> {
        if self.own().is_some_and(|turn| turn.is_started(&call.call_id)) {
            return Ok(());
        }
        let started = Body::ToolStarted { call_id: call.call_id.clone() };
        self.record(vec![self.draft(started, Actor::system())]).await?;
        self.fresh.insert(call.call_id.clone());
        Ok(())
    }
}
