//! The first session of an empty service: an agent finds a bug in a small
//! repository, mends it and runs its tests, while its events come by.
//!
//! Plays `scripted/demo`; with `ANTHROPIC_API_KEY` set, the same task runs on the
//! real provider.

use std::{env, net::SocketAddr};

use anyhow::{Context, bail};
use futures::StreamExt;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

use crate::{
    base::{ExposeSecret, SecretString, text},
    model,
};

const PROMPT: &str = "You are a careful engineer. Find out what is wrong before you change anything, make the \
                      smallest change that mends it, run the tests, and say in two sentences what you did.";
/// Model of the first session when a key of Anthropic is at hand.
const ANTHROPIC_MODEL: &str = "anthropic/claude-sonnet-4-5";
/// Longest line that is printed of one event, in bytes.
const LINE_BYTES: usize = 160;

/// Plays the session and prints it. A failure is told, not fatal: the service is up.
pub(super) async fn play(address: SocketAddr, key: SecretString) {
    let player = Player { client: Client::new(), base: format!("http://{address}/v3"), key };
    if let Err(error) = player.play().await {
        eprintln!("the first session could not be played: {error:#}");
    }
}

struct Player {
    client: Client,
    base: String,
    key: SecretString,
}

impl Player {
    async fn play(&self) -> anyhow::Result<()> {
        let agent = self.agent().await?;
        let created = self
            .post("/sessions", &json!({ "agent": agent, "title": "First session", "input": task() }))
            .await
            .context("the session could not be created")?;
        let id = created["session"]["id"].as_str().context("the answer names no session")?.to_owned();
        eprintln!("first session: {id}\n");
        self.follow(&id).await?;
        let result = self.get(&format!("/sessions/{id}/result")).await?;
        let reason = result["last_turn"]["yield_reason"].as_str().unwrap_or("unknown");
        eprintln!("\nresult ({reason}):\n");
        eprintln!("{}\n", result["result"]["body"]["text"].as_str().unwrap_or("(none)"));
        eprintln!("The service stays up; Ctrl-C stops it. README.md goes on from here.");
        Ok(())
    }

    async fn agent(&self) -> anyhow::Result<String> {
        let mut agent = json!({ "name": "first-session", "prompt": PROMPT, "model": "scripted/demo" });
        if let Ok(key) = env::var("ANTHROPIC_API_KEY") {
            agent["model"] = ANTHROPIC_MODEL.into();
            agent["key"] = key.into();
        }
        let created = self.post("/agents", &agent).await.context("the agent could not be created")?;
        Ok(created["id"].as_str().context("the answer names no agent")?.to_owned())
    }

    /// Prints events until the turn is over.
    async fn follow(&self, id: &str) -> anyhow::Result<()> {
        let url = format!("{}/sessions/{id}/events?stream=sse&level=progress", self.base);
        let response = self.client.get(url).bearer_auth(self.key.expose_secret()).send().await?;
        let mut chunks = response.error_for_status()?.bytes_stream();
        let mut buffer = String::new();
        while let Some(chunk) = chunks.next().await {
            buffer.push_str(&String::from_utf8_lossy(&chunk?));
            while let Some(end) = buffer.find("\n\n") {
                let frame: String = buffer.drain(..end + 2).collect();
                let Some(data) = frame.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
                let event: Value = serde_json::from_str(data)?;
                print(&event);
                if event["type"] == "turn.completed" {
                    return Ok(());
                }
            }
        }
        bail!("the stream ended before the turn did")
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self.client.post(format!("{}{path}", self.base)).json(body);
        self.send(request).await
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.client.get(format!("{}{path}", self.base))).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Value> {
        let response = request.bearer_auth(self.key.expose_secret()).send().await?;
        let status: StatusCode = response.status();
        let body: Value = response.json().await?;
        if !status.is_success() {
            bail!("{status}: {}", body["error"]["message"].as_str().unwrap_or("no message"));
        }
        Ok(body)
    }
}

/// The task in words that any model can work from: the files are in it.
fn task() -> String {
    let files = model::SAMPLE.iter().map(|(path, content)| format!("\n--- {path}\n{content}"));
    let files: String = files.collect();
    format!(
        "A test of this small Python project fails. If the workspace is empty, write these files into it and make \
         it a git repository first. Then find the bug, mend it, and run `python3 -m unittest` until it passes.\n{files}"
    )
}

/// One line an event, as a dashboard would show it.
fn print(event: &Value) {
    let body = &event["body"];
    let said = match event["type"].as_str().unwrap_or_default() {
        "user.message" | "agent.message" | "agent.thinking" => {
            body["text"].as_str().unwrap_or_default().to_owned()
        }
        "tool.call" => format!(
            "{} {}",
            body["tool"].as_str().unwrap_or_default(),
            body["args_summary"].as_str().unwrap_or_default()
        ),
        "exec.completed" => format!("exit {} in {} ms", body["exit_code"], body["duration_ms"]),
        "turn.completed" => body["yield_reason"].as_str().unwrap_or_default().to_owned(),
        "sandbox.created" => format!("in {} ms", body["duration_ms"]),
        _ => String::new(),
    };
    let line = said.replace('\n', " ");
    let kind = event["type"].as_str().unwrap_or_default();
    eprintln!("{:>4}  {kind:<18} {}", event["seq"].to_string(), text::truncate(&line, LINE_BYTES));
}
