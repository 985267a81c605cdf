//! `sojourn agent ...`: manage agents and their revisions.

use std::{fs, io::Read, path::PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    client::{Client, Connection},
    invoke_token::{self, InvokeToken},
    print,
};

/// Agent commands.
#[derive(Debug, Subcommand)]
pub enum Agent {
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
#[derive(Debug, Args)]
pub struct Fields {
    /// System prompt
    #[arg(long, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// File with the system prompt; - for standard input
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Model as provider/model
    #[arg(long)]
    model: Option<String>,
    /// ID or name of a stored credential
    #[arg(long)]
    credential: Option<String>,
    /// Tools that the agent may use, comma-separated
    #[arg(long, value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// Maximum output tokens per model call
    #[arg(long)]
    max_tokens: Option<u64>,
    /// Reasoning effort: low, medium or high
    #[arg(long)]
    effort: Option<String>,
    #[command(flatten)]
    limits: Limits,
}

/// Limits; omitted ones stay unchanged.
#[derive(Debug, Args)]
pub struct Limits {
    /// Maximum tokens per session
    #[arg(long)]
    limit_tokens: Option<u64>,
    /// Maximum turns per session
    #[arg(long)]
    limit_turns: Option<u64>,
    /// Maximum model calls per turn
    #[arg(long)]
    limit_steps: Option<u64>,
    /// Maximum wall-clock time per turn, in seconds
    #[arg(long)]
    limit_turn_seconds: Option<u64>,
    /// Maximum tool calls per session
    #[arg(long, value_name = "N")]
    limit_tool_calls: Option<u64>,
    /// Maximum cost per session, in US cents
    #[arg(long, value_name = "CENTS")]
    limit_cost_cents: Option<u64>,
    /// Maximum active time per session, in seconds over all turns
    #[arg(long, value_name = "SECONDS")]
    limit_duration_seconds: Option<u64>,
}

/// Resolves an agent's name to its id; an id is returned unchanged.
pub(super) async fn id(client: &Client, agent: &str) -> anyhow::Result<String> {
    if agent.starts_with("agt_") {
        return Ok(agent.to_owned());
    }
    let agents = print::all(client, "/agents").await?;
    let found = agents.iter().find(|one| one["name"] == agent).and_then(|one| one["id"].as_str());
    found.map(str::to_owned).with_context(|| format!("no agent is named {agent}"))
}

impl Limits {
    /// Writes the given limits into a request body.
    pub fn write(&self, body: &mut Value) {
        let named = [
            ("tokens", self.limit_tokens),
            ("turns", self.limit_turns),
            ("steps", self.limit_steps),
            ("turn_seconds", self.limit_turn_seconds),
            ("tool_calls", self.limit_tool_calls),
            ("cost_cap_cents", self.limit_cost_cents),
            ("duration_seconds", self.limit_duration_seconds),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                body["limits"][name] = value.into();
            }
        }
    }
}

impl Fields {
    fn body(self) -> anyhow::Result<Value> {
        let mut body = json!({});
        let prompt = match self.prompt_file {
            Some(file) => Some(read(&file)?),
            None => self.prompt,
        };
        let texts = [("prompt", prompt), ("model", self.model), ("credential", self.credential)];
        for (name, value) in texts {
            if let Some(value) = value {
                body[name] = value.into();
            }
        }
        if let Some(tools) = self.tools {
            body["tools"] = tools.into();
        }
        if let Some(tokens) = self.max_tokens {
            body["model_options"]["max_tokens"] = tokens.into();
        }
        if let Some(effort) = self.effort {
            body["model_options"]["effort"] = effort.into();
        }
        self.limits.write(&mut body);
        Ok(body)
    }
}

fn read(file: &PathBuf) -> anyhow::Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input cannot be read")?;
        return Ok(text);
    }
    fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))
}

/// Runs a command.
pub async fn run(command: Agent, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Agent::List => list(&client, json).await?,
        Agent::Get { agent } => print::document(&client.get(&format!("/agents/{agent}")).await?),
        Agent::Create { name, fields } => {
            let mut body = fields.body()?;
            body["name"] = name.into();
            shown(&client.post("/agents", &body).await?, json);
        }
        Agent::Update { agent, fields } => {
            shown(&client.patch(&format!("/agents/{agent}"), &fields.body()?).await?, json);
        }
        Agent::Delete { agent } => {
            client.delete(&format!("/agents/{agent}")).await?;
        }
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
    if json {
        return print::document(agent);
    }
    print::line(&format!("{} revision {}", agent["id"].as_str().unwrap_or_default(), agent["revision"]));
}

async fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let agents = print::Column::text;
    let columns = [agents("AGENT", "id"), agents("NAME", "name"), agents("MODEL", "model")];
    print::page(client, "/agents", &columns, json).await
}

async fn revisions(client: &Client, agent: &str, json: bool) -> anyhow::Result<()> {
    let columns = [
        print::Column::text("REVISION", "id"),
        print::Column::text("NUMBER", "number"),
        print::Column::text("ACTIVE", "active"),
        print::Column::text("MODEL", "model"),
        print::Column::text("CREATED", "created_at"),
    ];
    print::page(client, &format!("/agents/{agent}/revisions"), &columns, json).await
}
