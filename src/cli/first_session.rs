//! The first session of an empty service: an agent finds a bug in a small repository, fixes it and runs its
//! tests, while its events are printed.
//!
//! Runs the model `scripted/demo`; with `ANTHROPIC_API_KEY` set, a model of that provider gets the same task.

use std::{env, net::SocketAddr, pin::pin};

use anyhow::Context;
use futures::StreamExt;
use serde_json::json;

use super::{client::Client, print};
use crate::{base::SecretString, model};

const PROMPT: &str = "You are a careful engineer. Find out what is wrong before you change anything, make the \
                      smallest change that fixes it, run the tests, and say in two sentences what you did.";
/// Model of the first session when an Anthropic key is set.
const ANTHROPIC_MODEL: &str = "anthropic/claude-sonnet-4-5";
/// Runs the session and prints its events. A failure is only reported, because the service keeps running.
pub(super) async fn play(address: SocketAddr, key: SecretString) {
    let played = match Client::new(&format!("http://{address}"), key) {
        Ok(client) => play_on(&client).await,
        Err(error) => Err(error),
    };
    if let Err(error) = played {
        eprintln!("the first session failed: {error:#}");
    }
}

async fn play_on(client: &Client) -> anyhow::Result<()> {
    let agent = agent(client).await?;
    let session = json!({ "agent": agent, "title": "First session", "input": task() });
    let created = client.post("/sessions", &session).await.context("the session could not be created")?;
    let id = created["session"]["id"].as_str().context("the response contains no session id")?;
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
    eprintln!("The service keeps running; press Ctrl-C to stop it. Continue with README.md.");
    Ok(())
}

async fn agent(client: &Client) -> anyhow::Result<String> {
    let mut agent = json!({ "name": "first-session", "prompt": PROMPT, "model": "scripted/demo" });
    if let Ok(key) = env::var("ANTHROPIC_API_KEY") {
        agent["model"] = ANTHROPIC_MODEL.into();
        agent["key"] = key.into();
    }
    let created = client.post("/agents", &agent).await.context("the agent could not be created")?;
    Ok(created["id"].as_str().context("the response contains no agent id")?.to_owned())
}

/// Task text that works for any model: it contains the files.
fn task() -> String {
    let files = model::SAMPLE.iter().map(|(path, content)| format!("\n--- {path}\n{content}"));
    let files: String = files.collect();
    format!(
        "A test of this small Python project fails. If the workspace is empty, write these files into it and make \
         it a git repository first. Then find the bug, fix it, and run `python3 -m unittest` until it passes.\n{files}"
    )
}
