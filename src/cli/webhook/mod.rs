//! `sojourn webhook ...`: manage webhooks and their deliveries.
//!
//! Webhooks of the organization receive events of every session; with `--session`, the commands apply to the
//! destinations of that session.

mod event_filter;
mod listen;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use event_filter::EventFilter;

use super::{
    client::{Client, Connection, query},
    input, print,
};

/// Webhook commands.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Webhook {
    /// Use the destinations of this session instead of the organization's webhooks
    #[arg(long, global = true, value_name = "SESSION")]
    session: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List webhooks, oldest first
    List,
    /// Show a webhook
    Get { webhook: String },
    /// Create a webhook and print its secret once
    Create {
        /// URL; must be https at a public address
        #[arg(value_name = "URL")]
        address: String,
        #[command(flatten)]
        filter: EventFilter,
        /// Read the secret from standard input; otherwise one is generated
        #[arg(long)]
        secret_stdin: bool,
    },
    /// Update a webhook
    Update {
        webhook: String,
        #[arg(long, value_name = "URL")]
        address: Option<String>,
        #[command(flatten)]
        filter: EventFilter,
        /// Resume deliveries
        #[arg(long, conflicts_with = "disable")]
        enable: bool,
        /// Suspend deliveries
        #[arg(long)]
        disable: bool,
    },
    /// Send a delivery of type webhook.test
    Test { webhook: String },
    /// Replace the secret and print the new one; deliveries carry both signatures for an overlap period
    Rotate {
        webhook: String,
        /// Overlap period in seconds [default: 86400]
        #[arg(long, value_name = "SECONDS")]
        overlap: Option<u32>,
    },
    /// Delete a webhook
    Delete { webhook: String },
    /// List deliveries, newest first
    Deliveries {
        webhook: String,
        /// Filter by status: pending, delivering, delivered, failed or dead_letter
        #[arg(long)]
        status: Option<String>,
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Show a delivery and its attempts
    Delivery { webhook: String, delivery: String },
    /// Send a delivery again
    Redeliver { webhook: String, delivery: String },
    /// Receive deliveries on this machine, verify and print them
    Listen(listen::Listen),
}

/// API paths of the webhooks and their deliveries.
struct Paths {
    webhooks: String,
    session: Option<String>,
}

/// Runs a command. Returns the exit code: 0, or 1 when `listen` refused a delivery.
pub(super) async fn run(command: Webhook, connection: &Connection) -> anyhow::Result<u8> {
    let client = connection.client()?;
    let json = connection.json;
    let place = Paths::of(command.session);
    let at = |webhook: &str| format!("{}/{webhook}", place.webhooks);
    match command.verb {
        Verb::List => list(&client, &place, json).await?,
        Verb::Get { webhook } => print::document(&client.get(&at(&webhook)).await?),
        Verb::Create { address, filter, secret_stdin } => {
            let secret = secret_stdin.then(|| input::secret("secret")).transpose()?;
            let body = input::body(json!({ "url": address, "secret": secret }), &filter)?;
            print_secret(&client.post(&place.webhooks, &body).await?, json);
        }
        Verb::Update { webhook, address, filter, enable, disable } => {
            let enabled = (enable || disable).then_some(enable);
            let body = input::body(json!({ "url": address, "enabled": enabled }), &filter)?;
            print::answer(&client.patch(&at(&webhook), &body).await?, json, &webhook);
        }
        Verb::Test { webhook } => {
            if place.session.is_some() {
                bail!("a session's destination cannot be tested; send the session a message instead");
            }
            let sent = client.post(&format!("{}/test", at(&webhook)), &json!({})).await?;
            print::field(&sent, json, "id");
        }
        Verb::Rotate { webhook, overlap } => {
            let body = input::given(json!({ "overlap_seconds": overlap }));
            print_secret(&client.post(&format!("{}/rotate-secret", at(&webhook)), &body).await?, json);
        }
        Verb::Delete { webhook } => drop(client.delete(&at(&webhook)).await?),
        Verb::Deliveries { webhook, status, limit } => {
            deliveries(&client, &place, &webhook, status, limit, json).await?;
        }
        Verb::Delivery { webhook, delivery } => {
            let found = client.get(&format!("{}/{delivery}", place.deliveries(&webhook))).await?;
            if json { print::document(&found) } else { attempts(&found) }
        }
        Verb::Redeliver { webhook, delivery } => {
            let path = format!("{}/{delivery}/redeliver", place.deliveries(&webhook));
            print::field(&client.post(&path, &json!({})).await?, json, "status");
        }
        Verb::Listen(listen) => return listen.run(&client, &place.webhooks, json).await,
    }
    Ok(0)
}

impl Paths {
    fn of(session: Option<String>) -> Self {
        let webhooks = match &session {
            Some(session) => format!("/sessions/{session}/destinations"),
            None => "/webhooks".to_owned(),
        };
        Self { webhooks, session }
    }

    fn deliveries(&self, webhook: &str) -> String {
        match &self.session {
            Some(session) => format!("/sessions/{session}/deliveries"),
            None => format!("{}/{webhook}/deliveries", self.webhooks),
        }
    }
}

/// Prints a webhook or trigger with a new secret: only the secret goes to standard output, for pipes.
pub(super) fn print_secret(webhook: &Value, json: bool) {
    if !json {
        eprintln!("{}; its secret is shown once", webhook["id"].as_str().unwrap_or_default());
    }
    print::answer(webhook, json, webhook["secret"].as_str().unwrap_or("(the secret you provided)"));
}

async fn list(client: &Client, place: &Paths, json: bool) -> anyhow::Result<()> {
    let columns = [
        ("WEBHOOK", "id"),
        ("URL", "url"),
        ("LEVEL", "level"),
        ("TYPES", "types"),
        ("ENABLED", "enabled"),
        ("FAILING SINCE", "failing_since"),
    ];
    print::page(client, &place.webhooks, &columns, json).await
}

async fn deliveries(
    client: &Client,
    place: &Paths,
    webhook: &str,
    status: Option<String>,
    limit: u32,
    json: bool,
) -> anyhow::Result<()> {
    let of = place.session.as_ref().map(|_| webhook.to_owned());
    let filters = [("destination", of), ("status", status), ("limit", Some(limit.to_string()))];
    let page = client.get(&format!("{}{}", place.deliveries(webhook), query(filters))).await?;
    let columns = [
        ("DELIVERY", "id"),
        ("TYPE", "type"),
        ("STATUS", "status"),
        ("ATTEMPTS", "attempts"),
        ("CODE", "response_code"),
        ("LAST ATTEMPT", "last_attempt_at"),
        ("ERROR", "error"),
    ];
    print::rows(page["data"].as_array().cloned().unwrap_or_default(), &columns, json);
    Ok(())
}

fn attempts(delivery: &Value) {
    let word = |name: &str| print::cell(&delivery[name]);
    print::line(&format!("{} {} {}", word("id"), word("type"), word("status")));
    let row = |one: &Value| {
        ["number", "at", "response_code", "duration_ms", "error"].map(|name| print::cell(&one[name])).to_vec()
    };
    let rows: Vec<_> = delivery["log"].as_array().into_iter().flatten().map(row).collect();
    print::table(&["ATTEMPT", "AT", "CODE", "MS", "ERROR"], &rows);
}
