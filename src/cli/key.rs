//! `sojourn key ...`: API keys of the organization.

use anyhow::Context;
use clap::Subcommand;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use super::{client::Connection, print};
use crate::base::Origin;

/// What can be done with API keys.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// List keys; their secrets are never shown again
    List,
    /// Show a key, without its secret
    Get { key: String },
    /// Create a key and print its secret, this one time
    Create {
        #[arg(long)]
        name: String,
        /// As in sessions:read, agents:* or *; no more than this key's own
        #[arg(long = "scope", required = true, value_delimiter = ',', value_name = "SCOPE")]
        scopes: Vec<String>,
        /// Days after which it ends; never when absent
        #[arg(long, value_name = "DAYS")]
        expires_in: Option<u16>,
        /// For people at a command line: sessions that it makes have the source `cli`
        #[arg(long)]
        cli: bool,
    },
    /// Replace a key and print the new secret; the old one goes on for a while
    Rotate {
        key: String,
        /// How long the old one goes on, in seconds [default: a day]
        #[arg(long, value_name = "SECONDS")]
        overlap: Option<u32>,
    },
    /// Revoke a key; within five seconds it opens nothing any more
    Revoke { key: String },
}

/// Does it.
pub async fn run(command: Key, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Key::List => {
            let columns = [
                print::Column::text("KEY", "id"),
                print::Column::text("NAME", "name"),
                print::Column::text("ENDS IN", "hint"),
                print::Column::text("SCOPES", "scopes"),
                print::Column::text("LAST USED", "last_used_at"),
                print::Column::text("EXPIRES", "expires_at"),
                print::Column::text("REVOKED", "revoked_at"),
            ];
            print::page(&client, "/keys", &columns, json).await?;
        }
        Key::Get { key } => print::document(&client.get(&format!("/keys/{key}")).await?),
        Key::Create { name, scopes, expires_in, cli } => {
            let source = if cli { "cli" } else { "api" };
            let mut body = json!({ "name": name, "scopes": scopes, "source": source });
            if let Some(days) = expires_in {
                body["expires_at"] = after(days)?.into();
            }
            secret(&client.post("/keys", &body).await?, json);
        }
        Key::Rotate { key, overlap } => {
            let body = overlap.map_or(json!({}), |overlap| json!({ "overlap_seconds": overlap }));
            secret(&client.post(&format!("/keys/{key}/rotate"), &body).await?, json);
        }
        Key::Revoke { key } => {
            client.delete(&format!("/keys/{key}")).await?;
        }
    }
    Ok(())
}

/// The secret alone goes to standard output, for a pipe; what else is to be known, beside.
fn secret(key: &Value, json: bool) {
    if !json {
        eprintln!("{} is shown once; keep it now", key["id"].as_str().unwrap_or_default());
    }
    print::answer(key, json, key["key"].as_str().unwrap_or_default());
}

fn after(days: u16) -> anyhow::Result<String> {
    let now: OffsetDateTime = Origin::system().now();
    (now + Duration::days(days.into())).format(&Rfc3339).context("a time in these days can be written")
}
