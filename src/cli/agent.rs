//! `sojourn agent ...`: manage agents and their revisions.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    client::{Client, Connection},
    input,
    invoke_token::{self, InvokeToken},
    limits::Limits,
    print,
    turn_settings::TurnSettings,
};

/// Agent commands.
#[derive(Debug, Subcommand)]
pub(super) enum Agent {
    /// List agents
    List,
    /// Show an agent
    Get { agent: String },
    /// Create an agent; idempotent for identical fields
    Create {
        #[arg(long)]
        name: String,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Update an agent; a change of prompt, model or tools creates a new revision
    Update {
        agent: String,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Delete an agent; its sessions keep their pinned revision
    Delete { agent: String },
    /// List an agent's revisions, newest first
    Revisions { agent: String },
    /// Make a revision the active one for new sessions
    Activate { agent: String, revision: String },
    /// Manage the tokens of an agent's invoke URL
    #[command(subcommand)]
    InvokeToken(Box<InvokeToken>),
}

/// Agent fields; omitted ones stay unchanged.
#[derive(Debug, Args, Serialize)]
pub(super) struct Fields {
    /// System prompt
    #[arg(long, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// File with the system prompt; - for standard input
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    prompt_file: Option<PathBuf>,
    /// Model as provider/model
    #[arg(long)]
    model: Option<String>,
    /// ID or name of a stored credential
    #[arg(long)]
    credential: Option<String>,
    /// ID or name of the environment of its sessions that name none
    #[arg(long)]
    environment: Option<String>,
    /// Tools that the agent may use, comma-separated
    #[arg(long, value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// File with a JSON list of custom tools, which the agent has beside --tools; - for standard input
    #[arg(long, value_name = "FILE", requires = "tools")]
    #[serde(skip)]
    custom_tools: Option<PathBuf>,
    /// File with a JSON list of permission rules; - for standard input
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    permissions: Option<PathBuf>,
    /// Whether a question ends the turn, or the turn waits for the answer
    #[arg(long, value_name = "MODE", value_parser = ["end_turn", "wait"])]
    #[serde(skip)]
    ask: Option<String>,
    /// Consequence of making the same calls again and again
    #[arg(long, value_name = "POLICY", value_parser = ["ask", "stop", "off"])]
    #[serde(skip)]
    doom_loop: Option<String>,
    /// Whether a history that is almost too long is summarized: auto or off
    #[arg(long, value_name = "POLICY", value_parser = ["auto", "off"])]
    #[serde(skip)]
    compaction: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    settings: TurnSettings,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    limits: Limits,
}

/// Options of each model call.
#[derive(Debug, Args, Serialize)]
struct ModelOptions {
    /// Maximum output tokens per model call
    #[arg(long)]
    max_tokens: Option<u64>,
    /// Context window of the model, in tokens; that of known models by default
    #[arg(long)]
    context_tokens: Option<u64>,
    /// API of an OpenAI-compatible provider: chat_completions [default] or responses
    #[arg(long, value_parser = ["chat_completions", "responses"])]
    api: Option<String>,
    /// Reasoning effort: low, medium or high
    #[arg(long)]
    effort: Option<String>,
}

impl Fields {
    fn body(mut self, named: Value) -> anyhow::Result<Value> {
        if let Some(file) = self.prompt_file.take() {
            self.prompt = Some(input::text(&file)?);
        }
        let mut body = input::body(named, &self)?;
        if let (Some(file), Some(tools)) = (&self.custom_tools, body["tools"].as_array_mut()) {
            match input::json(file)? {
                Value::Array(custom) => tools.extend(custom),
                _ => bail!("{} is not a JSON list of custom tools", file.display()),
            }
        }
        if let Some(file) = &self.permissions {
            body["permissions"] = input::json(file)?;
        }
        if let Some(mode) = &self.ask {
            body["ask"] = json!({ "mode": mode });
        }
        if let Some(policy) = &self.doom_loop {
            body["doom_loop"] = json!({ "policy": policy });
        }
        if let Some(policy) = &self.compaction {
            body["compaction"] = json!({ "auto": policy == "auto" });
        }
        self.settings.fill(&mut body)?;
        Ok(body)
    }
}

/// Runs a command.
pub(super) async fn run(command: Agent, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Agent::List => list(&client, json).await?,
        Agent::Get { agent } => print::document(&client.get(&format!("/agents/{agent}")).await?),
        Agent::Create { name, fields } => {
            shown(&client.post("/agents", &fields.body(json!({ "name": name }))?).await?, json);
        }
        Agent::Update { agent, fields } => {
            shown(&client.patch(&format!("/agents/{agent}"), &fields.body(json!({}))?).await?, json);
        }
        Agent::Delete { agent } => drop(client.delete(&format!("/agents/{agent}")).await?),
        Agent::Revisions { agent } => revisions(&client, &agent, json).await?,
        Agent::Activate { agent, revision } => {
            let path = format!("/agents/{agent}/revisions/{revision}/activate");
            shown(&client.post(&path, &json!({})).await?, json);
        }
        Agent::InvokeToken(command) => invoke_token::run(*command, &client, json).await?,
    }
    Ok(())
}

fn shown(agent: &Value, json: bool) {
    print::answer(agent, json, &format!("{} revision {}", print::cell(&agent["id"]), agent["revision"]));
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let columns = [("AGENT", "id"), ("NAME", "name"), ("MODEL", "model")];
    print::page(client, "/agents", &columns, json).await
}

async fn revisions(client: &Client, agent: &str, json: bool) -> anyhow::Result<()> {
    let columns = [
        ("REVISION", "id"),
        ("NUMBER", "number"),
        ("ACTIVE", "active"),
        ("MODEL", "model"),
        ("CREATED", "created_at"),
    ];
    print::page(client, &format!("/agents/{agent}/revisions"), &columns, json).await
}
