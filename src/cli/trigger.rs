//! `sojourn trigger ...`: manage inbound webhooks that start sessions of an agent.

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    agent::{self, Limits},
    client::{Client, Connection},
    print::{self, Column},
    webhook,
};

/// Trigger commands; the agent is given by id or name.
#[derive(Debug, Subcommand)]
pub enum Trigger {
    /// List an agent's triggers
    List { agent: String },
    /// Show a trigger
    Get { agent: String, trigger: String },
    /// Create a trigger and print its secret once
    Create {
        agent: String,
        /// github, or generic for senders that sign with Standard Webhooks
        #[arg(long, default_value = "github")]
        kind: String,
        #[command(flatten)]
        fields: Box<Fields>,
        /// Read the secret from standard input; otherwise one is generated
        #[arg(long)]
        secret_stdin: bool,
    },
    /// Update a trigger
    Update {
        agent: String,
        trigger: String,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Enable a trigger
    Enable { agent: String, trigger: String },
    /// Disable a trigger: its URL returns 404
    Disable { agent: String, trigger: String },
    /// Replace the secret and print the new one; both are valid for an overlap period
    Rotate {
        agent: String,
        trigger: String,
        /// Overlap period in seconds [default: 86400]
        #[arg(long, value_name = "SECONDS")]
        overlap: Option<u32>,
    },
    /// Delete a trigger
    Delete { agent: String, trigger: String },
}

/// Trigger fields; omitted ones stay unchanged.
#[derive(Debug, Args)]
pub struct Fields {
    /// GitHub user whose mention in a new comment starts a session
    #[arg(long, value_name = "USER")]
    mention: Option<String>,
    /// GitHub event that starts a session, with its actions, e.g. issues:opened,labeled
    #[arg(long, value_name = "EVENT:ACTION,...")]
    react: Vec<String>,
    /// Authors who may start a session: members or anyone
    #[arg(long)]
    authors: Option<String>,
    /// Title of the sessions it starts
    #[arg(long)]
    title: Option<String>,
    /// Environment of the sessions it starts
    #[arg(long)]
    environment: Option<String>,
    #[command(flatten)]
    limits: Limits,
}

impl Fields {
    fn body(self) -> anyhow::Result<Value> {
        let mut body = json!({});
        let named = [
            ("mention", self.mention),
            ("authors", self.authors),
            ("title", self.title),
            ("environment", self.environment),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                body[name] = value.into();
            }
        }
        if !self.react.is_empty() {
            let react: anyhow::Result<Vec<Value>> = self.react.iter().map(|text| event(text)).collect();
            body["react"] = react?.into();
        }
        self.limits.write(&mut body);
        Ok(body)
    }
}

impl Trigger {
    /// Id or name of the agent.
    fn agent(&self) -> &str {
        match self {
            Self::List { agent }
            | Self::Get { agent, .. }
            | Self::Create { agent, .. }
            | Self::Update { agent, .. }
            | Self::Enable { agent, .. }
            | Self::Disable { agent, .. }
            | Self::Rotate { agent, .. }
            | Self::Delete { agent, .. } => agent,
        }
    }
}

/// Parses `issues:opened,labeled` into its API form.
fn event(text: &str) -> anyhow::Result<Value> {
    let (event, actions) =
        text.split_once(':').with_context(|| format!("{text} is not EVENT:ACTION,ACTION"))?;
    let actions: Vec<&str> = actions.split(',').map(str::trim).collect();
    Ok(json!({ "event": event.trim(), "actions": actions }))
}

/// Runs a command.
pub async fn run(command: Trigger, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    let all = format!("/agents/{}/hooks", agent::id(&client, command.agent()).await?);
    let one = |trigger: &str| format!("{all}/{trigger}");
    match command {
        Trigger::List { .. } => list(&client, &all, json).await?,
        Trigger::Get { trigger, .. } => print::document(&client.get(&one(&trigger)).await?),
        Trigger::Create { kind, fields, secret_stdin, .. } => {
            let mut body = fields.body()?;
            body["kind"] = kind.into();
            if secret_stdin {
                body["secret"] = webhook::secret()?.into();
            }
            let made = client.post(&all, &body).await?;
            if !json {
                eprintln!("{}", client.address(made["path"].as_str().unwrap_or_default()));
            }
            webhook::print_secret(&made, json);
        }
        Trigger::Update { trigger, fields, .. } => {
            print::answer(&client.patch(&one(&trigger), &fields.body()?).await?, json, &trigger);
        }
        Trigger::Enable { trigger, .. } => {
            print::answer(&client.patch(&one(&trigger), &json!({ "enabled": true })).await?, json, "on");
        }
        Trigger::Disable { trigger, .. } => {
            print::answer(&client.patch(&one(&trigger), &json!({ "enabled": false })).await?, json, "off");
        }
        Trigger::Rotate { trigger, overlap, .. } => {
            let body = overlap.map_or(json!({}), |overlap| json!({ "overlap_seconds": overlap }));
            webhook::print_secret(
                &client.post(&format!("{}/rotate-secret", one(&trigger)), &body).await?,
                json,
            );
        }
        Trigger::Delete { trigger, .. } => drop(client.delete(&one(&trigger)).await?),
    }
    Ok(())
}

async fn list(client: &Client, path: &str, json: bool) -> anyhow::Result<()> {
    let page = client.get(path).await?;
    let columns = [
        Column::text("TRIGGER", "id"),
        Column::text("KIND", "kind"),
        Column::text("MENTION", "mention"),
        Column::text("ENABLED", "enabled"),
        Column::text("TITLE", "title"),
    ];
    print::rows(page["data"].as_array().cloned().unwrap_or_default(), &columns, json);
    Ok(())
}
