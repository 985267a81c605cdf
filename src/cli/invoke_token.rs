//! `sojourn agent invoke-token ...`: manage the tokens of an agent's invoke URL.

use clap::Subcommand;
use serde_json::json;

use super::{
    agent::{self, Limits},
    client::Client,
    print::{self, Column},
};

/// Invoke token commands; the agent is given by id or name.
#[derive(Debug, Subcommand)]
pub enum InvokeToken {
    /// List an agent's invoke tokens, without their secrets
    List { agent: String },
    /// Create a token and print it once; the invoke URL goes to standard error
    Create {
        agent: String,
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
    },
    /// Revoke a token; takes effect at once
    Revoke { agent: String, token: String },
}

/// Runs a command.
pub async fn run(command: InvokeToken, client: &Client, json: bool) -> anyhow::Result<()> {
    let (InvokeToken::List { agent } | InvokeToken::Create { agent, .. } | InvokeToken::Revoke { agent, .. }) =
        &command;
    let all = format!("/agents/{}/invoke-tokens", agent::id(client, agent).await?);
    match command {
        InvokeToken::List { .. } => {
            let page = client.get(&all).await?;
            let columns = [
                Column::text("TOKEN", "id"),
                Column::text("NAME", "name"),
                Column::text("ENDS IN", "hint"),
                Column::text("LAST USED", "last_used_at"),
            ];
            print::rows(page["data"].as_array().cloned().unwrap_or_default(), &columns, json);
        }
        InvokeToken::Create { name, title, environment, limits, .. } => {
            let mut body = json!({ "name": name });
            for (name, value) in [("title", title), ("environment", environment)] {
                if let Some(value) = value {
                    body[name] = value.into();
                }
            }
            limits.write(&mut body);
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
