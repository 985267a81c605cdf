//! `sojourn agent invoke-token ...`: manage the tokens of an agent's invoke URL.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use super::{client::Client, input, limits::Limits, print};

/// Invoke token commands; the agent is given by id or name.
#[derive(Debug, Subcommand)]
pub(super) enum InvokeToken {
    /// List an agent's invoke tokens, without their secrets
    List { agent: String },
    /// Create a token and print it once; the invoke URL goes to standard error
    Create {
        agent: String,
        #[command(flatten)]
        fields: Fields,
    },
    /// Revoke a token; takes effect at once
    Revoke { agent: String, token: String },
}

/// Fields of a token; omitted ones have their default.
#[derive(Debug, Args, Serialize)]
pub(super) struct Fields {
    /// Display name, e.g. of the program that uses it
    #[arg(long)]
    name: String,
    /// Title of the sessions it starts
    #[arg(long)]
    title: Option<String>,
    /// Environment of the sessions it starts
    #[arg(long)]
    environment: Option<String>,
    #[command(flatten)]
    limits: Limits,
}

/// Runs a command.
pub(super) async fn run(command: InvokeToken, client: &Client, json: bool) -> anyhow::Result<()> {
    let (InvokeToken::List { agent } | InvokeToken::Create { agent, .. } | InvokeToken::Revoke { agent, .. }) =
        &command;
    let all = format!("/agents/{agent}/invoke-tokens");
    match command {
        InvokeToken::List { .. } => {
            let columns =
                [("TOKEN", "id"), ("NAME", "name"), ("ENDS IN", "hint"), ("LAST USED", "last_used_at")];
            print::page(client, &all, &columns, json).await?;
        }
        InvokeToken::Create { fields, .. } => {
            let body = input::body(json!({}), &fields)?;
            let made = client.post(&all, &body).await?;
            if !json {
                eprintln!("{}", client.address(made["path"].as_str().unwrap_or_default()));
                eprintln!("{} is shown once; store it now", made["id"].as_str().unwrap_or_default());
            }
            print::answer(&made, json, made["token"].as_str().unwrap_or_default());
        }
        InvokeToken::Revoke { token, .. } => drop(client.delete(&format!("{all}/{token}")).await?),
    }
    Ok(())
}
