//! `sojourn credential ...`: keys of model providers and repositories.
//!
//! A key is read from standard input: other users could see it on a command line.

use clap::Subcommand;
use serde_json::json;

use super::{client::Connection, input, print};

/// Credential commands.
#[derive(Debug, Subcommand)]
pub(super) enum Credential {
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
pub(super) async fn run(command: Credential, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Credential::List => {
            let columns = [
                ("CREDENTIAL", "id"),
                ("PROVIDER", "provider"),
                ("NAME", "name"),
                ("ENDS IN", "last4"),
                ("DEFAULT", "is_default"),
            ];
            print::page(&client, "/credentials", &columns, json).await?;
        }
        Credential::Create { provider, name, base_url, default } => {
            let body = json!({
                "provider": provider, "key": input::secret("key")?, "is_default": default, "name": name, "base_url": base_url,
            });
            print::field(&client.post("/credentials", &input::given(body)).await?, json, "id");
        }
        Credential::Rotate { credential } => {
            let path = format!("/credentials/{credential}");
            print::field(&client.patch(&path, &json!({ "key": input::secret("key")? })).await?, json, "id");
        }
        Credential::Default { credential } => {
            let body = json!({ "credential": credential });
            print::field(&client.put("/credentials/default", &body).await?, json, "id");
        }
        Credential::Delete { credential } => {
            drop(client.delete(&format!("/credentials/{credential}")).await?);
        }
    }
    Ok(())
}
