//! Tools of MCP servers: listed when a turn starts, offered to the model, and called at their server.

mod calls;
mod elicitation;
mod faults;
mod lists;
mod oauth;
mod processes;
mod rules;

use serde_json::{Value, json};

use super::{Scene, assert_sound, bash, ends, last_turn, log, of, outputs, script, steer, until};
use crate::{
    fake::mcp::{McpFake, Reply, text, tool},
    support::service::Caller,
};

/// Allows the fakes, which are on loopback.
const PRIVATE: &str = "--allow-private-mcp=on";

/// A server that repeats the word of each call.
fn echo(name: &str, arguments: &Value) -> Reply {
    Reply::Result(text(&format!("{name}: {}", arguments["word"].as_str().unwrap_or_default())))
}

/// The configuration of a server.
fn server(fake: &McpFake, more: Value) -> Value {
    let mut server = json!({ "name": "fake", "url": fake.url });
    server.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    server
}

/// A call of one of its tools, as a script contains it.
fn call(tool: &str, word: &str) -> Value {
    json!({ "tool": format!("mcp__fake__{tool}"), "input": { "word": word } })
}

/// Starts a session with these servers, whose calls are all allowed, that plays a script.
async fn play(owner: &Caller, servers: Value, steps: Value) -> String {
    let allowed = json!([{ "tool": "mcp__*", "policy": "allow" }]);
    play_by(owner, servers, allowed, steps).await
}

/// As [`play`], with other rules.
async fn play_by(owner: &Caller, servers: Value, rules: Value, steps: Value) -> String {
    let agent = owner.inline_agent().await;
    let body = json!({
        "agent": agent, "mcp_servers": servers, "permissions": rules, "input": { "script": steps },
    });
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

/// Outcomes of the calls, in order.
fn outcomes(log: &[Value]) -> Vec<&str> {
    of(log, "tool.result").iter().map(|event| event["body"]["outcome"].as_str().expect("a word")).collect()
}
