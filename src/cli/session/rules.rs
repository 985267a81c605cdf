//! Permissions of a session, and the tools that were registered for it.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::{client::Client, input, print};

/// Commands on the permissions and the registered tools of a session.
#[derive(Debug, Subcommand)]
pub(crate) enum Use {
    /// Show the permission rules of a session, and those that were granted since
    Permissions {
        session: String,
        /// End a grant: its EVENT, as this command shows it
        #[arg(long, value_name = "EVENT")]
        revoke: Option<String>,
    },
    /// List the tools that were registered for a session
    Tools {
        session: String,
        /// Register the tool in this JSON file first; - for standard input
        #[arg(long, value_name = "FILE")]
        register: Option<PathBuf>,
    },
}

/// Runs a command.
pub(super) async fn run(client: &Client, command: Use, json: bool) -> anyhow::Result<()> {
    match command {
        Use::Permissions { session, revoke: Some(event) } => {
            client.delete(&format!("/sessions/{session}/permissions/{event}")).await?;
        }
        Use::Permissions { session, revoke: None } => {
            let found = client.get(&format!("/sessions/{session}/permissions")).await?;
            if json { print::document(&found) } else { print::rows(rules(&found), &RULES, false) }
        }
        Use::Tools { session, register } => {
            let path = format!("/sessions/{session}/tools");
            if let Some(file) = register {
                client.post(&path, &input::json(&file)?).await?;
            }
            print::page(client, &path, &TOOLS, json).await?;
        }
    }
    Ok(())
}

const RULES: [print::Column; 4] =
    [("RULE", "rule"), ("FROM", "from"), ("GRANTED BY", "granted_by"), ("EVENT", "event_id")];
const TOOLS: [print::Column; 4] =
    [("NAME", "name"), ("TYPE", "tool_type"), ("RUNS", "runs"), ("DESCRIPTION", "description")];

/// Rows of the rules that bind a session, each list in the order in which it is evaluated, and of the granted ones.
fn rules(found: &Value) -> Vec<Value> {
    let all = &found["permissions"];
    let list = |rules: &Value, from: String| -> Vec<Value> {
        let rules = rules.as_array().into_iter().flatten();
        rules.map(|rule| json!({ "rule": rule, "from": from })).collect()
    };
    let parents = (1..).zip(all["parents"].as_array().into_iter().flatten());
    let parents = parents.flat_map(|(level, rules)| list(rules, format!("parent {level}")));
    let granted = found["granted"].as_array().into_iter().flatten().map(|grant| {
        let by = ["display", "id", "type"].map(|name| &grant["granted_by"][name]);
        let by = by.into_iter().find(|name| name.is_string());
        json!({ "rule": grant["rule"], "from": "grant", "granted_by": by, "event_id": grant["event_id"] })
    });
    let own = ["agent", "session"].into_iter().flat_map(|name| list(&all[name], name.to_owned()));
    own.chain(parents).chain(granted).collect()
}
