//! `sojourn trigger ...`: manage inbound webhooks that start sessions of an agent.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    client::{Client, Connection},
    input,
    limits::Limits,
    print, webhook,
};

/// Trigger commands; the agent is given by id or name.
#[derive(Debug, Subcommand)]
pub(super) enum Trigger {
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
#[derive(Debug, Args, Serialize)]
pub(super) struct Fields {
    /// GitHub user whose mention in a new comment starts a session
    #[arg(long, value_name = "USER")]
    mention: Option<String>,
    /// GitHub event that starts a session, with its actions, e.g. issues:opened,labeled
    #[arg(long, value_name = "EVENT:ACTION,...", value_parser = event)]
    react: Vec<Value>,
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

/// Parses `issues:opened,labeled` into its API form.
fn event(text: &str) -> Result<Value, &'static str> {
    let (event, actions) = text.split_once(':').ok_or("expected EVENT:ACTION,ACTION")?;
    let actions: Vec<&str> = actions.split(',').map(str::trim).collect();
    Ok(json!({ "event": event.trim(), "actions": actions }))
}

/// Runs a command.
pub(super) async fn run(command: Trigger, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    let all = |agent: &str| format!("/agents/{agent}/hooks");
    let one = |agent: &str, trigger: &str| format!("/agents/{agent}/hooks/{trigger}");
    match command {
        Trigger::List { agent } => list(&client, &all(&agent), json).await?,
        Trigger::Get { agent, trigger } => print::document(&client.get(&one(&agent, &trigger)).await?),
        Trigger::Create { agent, kind, fields, secret_stdin } => {
            let secret = secret_stdin.then(|| input::secret("secret")).transpose()?;
            let body = input::body(json!({ "kind": kind, "secret": secret }), &fields)?;
            let made = client.post(&all(&agent), &body).await?;
            if !json {
                eprintln!("{}", client.address(made["path"].as_str().unwrap_or_default()));
            }
            webhook::print_secret(&made, json);
        }
        Trigger::Update { agent, trigger, fields } => {
            let body = input::body(json!({}), &fields)?;
            print::answer(&client.patch(&one(&agent, &trigger), &body).await?, json, &trigger);
        }
        Trigger::Enable { agent, trigger } => {
            let body = json!({ "enabled": true });
            print::answer(&client.patch(&one(&agent, &trigger), &body).await?, json, "on");
        }
        Trigger::Disable { agent, trigger } => {
            let body = json!({ "enabled": false });
            print::answer(&client.patch(&one(&agent, &trigger), &body).await?, json, "off");
        }
        Trigger::Rotate { agent, trigger, overlap } => {
            let path = format!("{}/rotate-secret", one(&agent, &trigger));
            let body = input::given(json!({ "overlap_seconds": overlap }));
            webhook::print_secret(&client.post(&path, &body).await?, json);
        }
        Trigger::Delete { agent, trigger } => drop(client.delete(&one(&agent, &trigger)).await?),
    }
    Ok(())
}

async fn list(client: &Client, path: &str, json: bool) -> anyhow::Result<()> {
    let columns = [
        ("TRIGGER", "id"),
        ("KIND", "kind"),
        ("MENTION", "mention"),
        ("ENABLED", "enabled"),
        ("TITLE", "title"),
    ];
    print::page(client, path, &columns, json).await
}
