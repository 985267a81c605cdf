//! `sojourn credential ...`: keys of model providers and repositories.
//!
//! A key is read from standard input: other users could see it on a command line.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::ensure;
use clap::Subcommand;
use serde_json::{Value, json};

use super::{client::Connection, input, print};

/// Credential commands.
#[derive(Debug, Subcommand)]
pub(super) enum Credential {
    /// List credentials, without their keys
    List,
    /// Store a key, read from standard input
    Create {
        /// anthropic, openai, git for repositories, mcp for MCP servers, or any name with --base-url
        #[arg(long, default_value = "anthropic")]
        provider: String,
        #[arg(long)]
        name: Option<String>,
        /// Endpoint compatible with the provider's API; for git, the URL of the repositories; for mcp, that of the server
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
        /// Header of the key, if it is not that of the provider's API, such as api-key
        #[arg(long, value_name = "NAME")]
        key_header: Option<String>,
        /// Header of each call; may be repeated. NAME=@FILE reads a secret value from a file
        #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
        headers: Vec<(String, String)>,
        /// File with the JSON object of an OAuth client for an MCP server, instead of a key: token_url, client_id,
        /// client_secret, refresh_token, scope, resource
        #[arg(long, value_name = "FILE")]
        oauth: Option<PathBuf>,
        /// Make it the default for agents without a credential
        #[arg(long)]
        default: bool,
    },
    /// Replace the key of a credential, read from standard input
    Rotate {
        credential: String,
        /// File with the JSON object of an OAuth client, which replaces that of the credential
        #[arg(long, value_name = "FILE")]
        oauth: Option<PathBuf>,
        /// Replaces all headers of the calls; may be repeated [default: they stay]
        #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
        headers: Vec<(String, String)>,
        /// Remove all headers of the calls
        #[arg(long, conflicts_with = "headers")]
        no_headers: bool,
    },
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
        Credential::Create { provider, name, base_url, key_header, headers, oauth, default } => {
            let mut body = json!({
                "provider": provider, "is_default": default, "name": name, "base_url": base_url,
                "key_header": key_header, "headers": once(headers)?,
            });
            set_secret(&mut body, oauth.as_deref())?;
            print::field(&client.post("/credentials", &input::given(body)).await?, json, "id");
        }
        Credential::Rotate { credential, oauth, headers, no_headers } => {
            let path = format!("/credentials/{credential}");
            let mut body = json!({});
            set_secret(&mut body, oauth.as_deref())?;
            // Without headers the field is empty, not absent.
            if no_headers || !headers.is_empty() {
                body["headers"] = json!(once(headers)?);
            }
            print::field(&client.patch(&path, &body).await?, json, "id");
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

/// Adds the OAuth client of a file to a body, or a key from standard input.
fn set_secret(body: &mut Value, oauth: Option<&Path>) -> anyhow::Result<()> {
    match oauth {
        Some(file) => body["oauth"] = input::json(file)?,
        None => body["key"] = json!(input::secret("key")?),
    }
    Ok(())
}

/// Returns headers as a body has them, each given once.
fn once(headers: Vec<(String, String)>) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (name, value) in headers {
        ensure!(!all.contains_key(&name), "the header {name} is given twice");
        all.insert(name, value);
    }
    Ok(all)
}

/// Reads NAME=VALUE, or NAME=@FILE.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must have the form NAME=VALUE")?;
    let value = match value.strip_prefix('@') {
        None => value.to_owned(),
        Some(file) => {
            let read = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            read.trim_end_matches(['\r', '\n']).to_owned()
        }
    };
    Ok((name.to_owned(), value))
}
