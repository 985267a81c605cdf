//! `sojourn credential ...`: keys of model providers and repositories.
//!
//! A key is read from standard input: other users could see it on a command line.

use std::io::{BufRead, IsTerminal, stdin};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{client::Connection, print};

/// Credential commands.
#[derive(Debug, Subcommand)]
pub enum Credential {
    /// List credentials, without their keys
    List,
    /// Store a key, read from standard input
    Create {
        /// anthropic, openai, git for repositories, or any name with --base-url
        #[arg(long, default_value = "anthropic")]
        provider: String,
        #[arg(long)]
        name: Option<String>,
        /// Endpoint compatible with the provider's API; for git, the URL of the repositories
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
        /// Make it the default for agents without a credential
        #[arg(long)]
        default: bool,
    },
    /// Replace the key of a credential, read from standard input
    Rotate { credential: String },
    /// Make a credential the default for agents without one
    Default { credential: String },
    /// Delete a credential
    Delete { credential: String },
}

/// Runs a command.
pub async fn run(command: Credential, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Credential::List => {
            let columns = [
                print::Column::text("CREDENTIAL", "id"),
                print::Column::text("PROVIDER", "provider"),
                print::Column::text("NAME", "name"),
                print::Column::text("ENDS IN", "last4"),
                print::Column::text("DEFAULT", "is_default"),
            ];
            print::page(&client, "/credentials", &columns, json).await?;
        }
        Credential::Create { provider, name, base_url, default } => {
            let mut body = json!({ "provider": provider, "key": key()?, "is_default": default });
            for (field, value) in [("name", name), ("base_url", base_url)] {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            shown(&client.post("/credentials", &body).await?, json);
        }
        Credential::Rotate { credential } => {
            let path = format!("/credentials/{credential}");
            shown(&client.patch(&path, &json!({ "key": key()? })).await?, json);
        }
        Credential::Default { credential } => {
            shown(&client.put("/credentials/default", &json!({ "credential": credential })).await?, json);
        }
        Credential::Delete { credential } => {
            client.delete(&format!("/credentials/{credential}")).await?;
        }
    }
    Ok(())
}

fn shown(credential: &Value, json: bool) {
    if json {
        return print::document(credential);
    }
    print::line(credential["id"].as_str().unwrap_or_default());
}

fn key() -> anyhow::Result<String> {
    if stdin().is_terminal() {
        eprintln!("Enter the provider's key (it is echoed; use a pipe to hide it):");
    }
    let mut line = String::new();
    stdin().lock().read_line(&mut line).context("standard input cannot be read")?;
    match line.trim() {
        "" => bail!("standard input contains no key"),
        key => Ok(key.to_owned()),
    }
}
