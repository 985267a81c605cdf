//! `sojourn key ...`: manage API keys of the organization.

use anyhow::Context;
use clap::Subcommand;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use super::{client::Connection, input, print};
use crate::base::Origin;

/// API key commands.
#[derive(Debug, Subcommand)]
pub(super) enum Key {
    /// List keys, without their secrets
    List,
    /// Show a key, without its secret
    Get { key: String },
    /// Create a key and print its secret once
    Create {
        #[arg(long)]
        name: String,
        /// Scopes, e.g. sessions:read, agents:* or *; at most those of the calling key
        #[arg(long = "scope", required = true, value_delimiter = ',', value_name = "SCOPE")]
        scopes: Vec<String>,
        /// Expire after this many days [default: never]
        #[arg(long, value_name = "DAYS")]
        expires_in: Option<u16>,
        /// Key for a person at a command line: sessions created with it have the source `cli`
        #[arg(long)]
        cli: bool,
    },
    /// Replace a key and print the new secret; the old secret stays valid for an overlap period
    Rotate {
        key: String,
        /// Overlap period of the old secret, in seconds [default: 86400]
        #[arg(long, value_name = "SECONDS")]
        overlap: Option<u32>,
    },
    /// Revoke a key; takes effect within 5 seconds
    Revoke { key: String },
}

/// Runs a command.
pub(super) async fn run(command: Key, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Key::List => {
            let columns = [
                ("KEY", "id"),
                ("NAME", "name"),
                ("ENDS IN", "hint"),
                ("SCOPES", "scopes"),
                ("LAST USED", "last_used_at"),
                ("EXPIRES", "expires_at"),
                ("REVOKED", "revoked_at"),
            ];
            print::page(&client, "/keys", &columns, json).await?;
        }
        Key::Get { key } => print::document(&client.get(&format!("/keys/{key}")).await?),
        Key::Create { name, scopes, expires_in, cli } => {
            let source = if cli { "cli" } else { "api" };
            let expires_at = expires_in.map(after).transpose()?;
            let body = json!({ "name": name, "scopes": scopes, "source": source, "expires_at": expires_at });
            secret(&client.post("/keys", &input::given(body)).await?, json);
        }
        Key::Rotate { key, overlap } => {
            let body = input::given(json!({ "overlap_seconds": overlap }));
            secret(&client.post(&format!("/keys/{key}/rotate"), &body).await?, json);
        }
        Key::Revoke { key } => drop(client.delete(&format!("/keys/{key}")).await?),
    }
    Ok(())
}

/// Prints only the secret to standard output, for pipes, and other information to standard error.
fn secret(key: &Value, json: bool) {
    if !json {
        eprintln!("{} is shown once; store it now", print::cell(&key["id"]));
    }
    print::field(key, json, "key");
}

fn after(days: u16) -> anyhow::Result<String> {
    let now: OffsetDateTime = Origin::system().now();
    (now + Duration::days(days.into())).format(&Rfc3339).context("the expiry time cannot be formatted")
}
