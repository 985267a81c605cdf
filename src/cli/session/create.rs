//! Fields of a new session, from the command line.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{client::Client, file, input, limits::Limits, source, turn_settings::TurnSettings};

/// Session fields.
#[derive(Debug, Args, Serialize)]
pub(crate) struct Fields {
    /// Agent ID or name; without one, the session only has a sandbox and a log
    #[arg(long)]
    agent: Option<String>,
    /// Task for the agent; without one, no turn starts
    #[arg(long)]
    input: Option<String>,
    /// JSON file with the input as an object; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    #[serde(skip)]
    input_json: Option<PathBuf>,
    /// File for the agent; may be repeated
    #[arg(long = "attach", value_name = "FILE")]
    #[serde(skip)]
    files: Vec<PathBuf>,
    #[arg(long)]
    title: Option<String>,
    /// Client-defined key; at most one session per key
    #[arg(long)]
    key: Option<String>,
    /// Human-readable name, unique among open sessions
    #[arg(long)]
    slug: Option<String>,
    /// ID or name of the environment of its sandbox
    #[arg(long)]
    environment: Option<String>,
    /// Repository to clone into its sandbox; may be repeated
    #[arg(long = "source", value_name = "URL[#REF]", value_parser = source::parse)]
    sources: Vec<Value>,
    /// ID of the parent session, whose limits also apply
    #[arg(long, value_name = "SESSION")]
    #[serde(rename = "parent_session_id")]
    parent: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    settings: TurnSettings,
    #[command(flatten)]
    limits: Limits,
}

impl Fields {
    /// Body of the create request; its files are uploaded first.
    pub(super) async fn body(self, client: &Client) -> anyhow::Result<Value> {
        let content = file::attach(client, &self.files).await?;
        let input = self.input_json.as_deref().map(input::json).transpose()?;
        let mut body = input::body(input.map_or(json!({}), |input| json!({ "input": input })), &self)?;
        self.settings.fill(&mut body)?;
        if !content.is_empty() {
            body["content"] = content.into();
        }
        Ok(body)
    }
}
