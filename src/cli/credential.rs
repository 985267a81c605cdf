//! `sojourn credential ...`: keys of model providers and of repositories.
//!
//! A key is read from standard input: on a command line other users would see it.

use std::io::{BufRead, IsTerminal, stdin};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{client::Connection, print};

/// What can be done with credentials.
#[derive(Debug, Subcommand)]
pub enum Credential {
    /// List credentials; their keys are never shown
    List,
    /// Store a key, which is read from standard input
    Create {
        /// anthropic, openai, git for repositories, or any name together with --base-url
        #[arg(long, default_value = "anthropic")]
        provider: String,
        #[arg(long)]
        name: Option<String>,
        /// Another endpoint that speaks the provider's protocol; of git, whose repositories the key opens
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
        /// Use it for agents without a credential of their own
        #[arg(long)]
        default: bool,
    },
    /// Put a new key, read from standard input, behind a credential
    Rotate { credential: String },
    /// Use a credential for agents without one of their own
    Default { credential: String },
    /// Delete a credential
    Delete { credential: String },
}

/// Does it.
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
        eprintln!("the provider's key, then Enter (it is shown as you type; a pipe hides it):");
    }
    let mut line = String::new();
    stdin().lock().read_line(&mut line).context("standard input cannot be read")?;
    match line.trim() {
        "" => bail!("no key came on standard input"),
        key => Ok(key.to_owned()),
    }
}
