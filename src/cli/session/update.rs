//! Change of a session, from the command line.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::cli::{client::Client, input, limits::Limits, print, turn_settings::TurnSettings};

/// Changes; omitted ones stay unchanged.
#[derive(Debug, Args, Serialize)]
pub(crate) struct Update {
    #[serde(skip)]
    session: String,
    #[arg(long)]
    title: Option<String>,
    /// Tools that the agent may use from its next turn on, comma-separated
    #[arg(long, value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// File with a JSON list of permission rules, which replace those of the session; - for standard input
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    permissions: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    settings: TurnSettings,
    #[command(flatten)]
    limits: Limits,
}

impl Update {
    pub(super) async fn run(self, client: &Client, json: bool) -> anyhow::Result<()> {
        let mut body = input::body(json!({}), &self)?;
        if let Some(file) = &self.permissions {
            body["permissions"] = input::json(file)?;
        }
        self.settings.fill(&mut body)?;
        let changed = client.patch(&format!("/sessions/{}", self.session), &body).await?;
        print::answer(&changed, json, &self.session);
        Ok(())
    }
}
