//! An MCP server that counts its calls. A call of its tool is not safe to repeat, so it must reach the server once at most.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use crate::{
    client::Violations,
    mcp_fake::{McpFake, Reply, text, tool},
    plan::SeededRng,
};

/// Name of the tool, as the model calls it.
pub const NOTE: &str = "mcp__notes__note";

/// The server, and how often each token reached it.
pub struct Notes {
    fake: McpFake,
    counts: Arc<Mutex<HashMap<String, u32>>>,
}

impl Notes {
    /// Starts the server. Some answers take a while, and some are cut off after the call was carried out.
    pub async fn start(dice: SeededRng) -> Self {
        let counts: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
        let counted = counts.clone();
        let decide = move |_: &str, arguments: &Value| {
            let token = arguments["word"].as_str().unwrap_or_default().to_owned();
            *counted.lock().expect("no call panics").entry(token.clone()).or_default() += 1;
            match dice.below(24) {
                0 => Reply::Cut,
                1..8 => Reply::After(dice.millis(200, 2_500), text(&token)),
                _ => Reply::Result(text(&token)),
            }
        };
        Self { fake: McpFake::stateless(vec![tool("note")], decide).await, counts }
    }

    /// The server as an agent names it.
    pub fn server(&self) -> Value {
        json!({ "name": "notes", "url": self.fake.url })
    }

    /// How often a token reached the server.
    pub fn count(&self, token: &str) -> u32 {
        self.counts.lock().expect("no call panics").get(token).copied().unwrap_or_default()
    }

    /// Notes requests that do not follow the protocol.
    pub fn check(&self, violations: &Violations) {
        for refusal in self.fake.refusals() {
            violations.note(format!("a request to the MCP server: {refusal}"));
        }
    }
}

/// A call that leaves a token.
pub fn call(token: &str) -> Value {
    json!({ "tool": NOTE, "input": { "word": token } })
}
