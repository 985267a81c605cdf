//! The first session of an empty service: an agent finds a bug in a small
//! repository, fixes it and runs its tests, while its events come by.
//!
//! Plays `scripted/demo`; with `ANTHROPIC_API_KEY` set, the same task runs on the
//! real provider.

use std::{env, net::SocketAddr, pin::pin};

use anyhow::Context;
use futures::StreamExt;
use serde_json::json;

use super::{client::Client, print};
use crate::{base::SecretString, model};

const PROMPT: &str = "You are a careful engineer. Find out what is wrong before you change anything, make the \
                      smallest change that fixes it, run the tests, and say in two sentences what you did.";
/// Model of the first session when a key of Anthropic is at hand.
const ANTHROPIC_MODEL: &str = "anthropic/claude-sonnet-4-5";
/// Plays the session and prints it. A failure is told, not fatal: the service is up.
pub(super) async fn play(address: SocketAddr, key: SecretString) {
    let played = match Client::new(&format!("http://{address}"), key) {
        Ok(client) => play_on(&client).await,
        Err(error) => Err(error),
    };
    if let Err(error) = played {
        eprintln!("the first session could not be played: {error:#}");
    }
}

async fn play_on(client: &Client) -> anyhow::Result<()> {
    let agent = agent(client).await?;
    let session = json!({ "agent": agent, "title": "First session", "input": task() });
    let created = client.post("/sessions", &session).await.context("the session could not be created")?;
    let id = created["session"]["id"].as_str().context("the answer names no session")?;
    eprintln!("first session: {id}\n");
    let mut events = pin!(client.follow(id, "progress", 0));
    while let Some(event) = events.next().await {
        let event = event?;
        eprintln!("{}", print::event(&event));
        if event["type"] == "turn.completed" {
            break;
        }
    }
    let result = client.get(&format!("/sessions/{id}/result")).await?;
    let reason = result["last_turn"]["yield_reason"].as_str().unwrap_or("unknown");
    eprintln!("\nresult ({reason}):\n");
    eprintln!("{}\n", result["result"]["body"]["text"].as_str().unwrap_or("(none)"));
    eprintln!("The service stays up; Ctrl-C stops it. README.md goes on from here.");
    Ok(())
}

async fn agent(client: &Client) -> anyhow::Result<String> {
    let mut agent = json!({ "name": "first-session", "prompt": PROMPT, "model": "scripted/demo" });
    if let Ok(key) = env::var("ANTHROPIC_API_KEY") {
        agent["model"] = ANTHROPIC_MODEL.into();
        agent["key"] = key.into();
    }
    let created = client.post("/agents", &agent).await.context("the agent could not be created")?;
    Ok(created["id"].as_str().context("the answer names no agent")?.to_owned())
}

/// The task in words that any model can work from: the files are in it.
fn task() -> String {
    let files = model::SAMPLE.iter().map(|(path, content)| format!("\n--- {path}\n{content}"));
    let files: String = files.collect();
    format!(
        "A test of this small Python project fails. If the workspace is empty, write these files into it and make \
         it a git repository first. Then find the bug, fix it, and run `python3 -m unittest` until it passes.\n{files}"
    )
}
