//! Fields of a new session, from the command line.

use std::{
    fs,
    io::{Read, stdin},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::{agent::Limits, source};

/// Session fields.
#[derive(Debug, Args)]
pub struct Fields {
    /// Agent ID or name; without one, the session only has a sandbox and a log
    #[arg(long)]
    agent: Option<String>,
    /// Task for the agent; without one, no turn starts
    #[arg(long)]
    input: Option<String>,
    /// JSON file with the input as an object; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    input_json: Option<PathBuf>,
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
    parent: Option<String>,
    #[command(flatten)]
    limits: Limits,
}

impl Fields {
    /// Body of the create request.
    pub(super) fn body(self) -> anyhow::Result<Value> {
        let mut body = json!({});
        let named = [
            ("agent", self.agent),
            ("input", self.input),
            ("title", self.title),
            ("key", self.key),
            ("slug", self.slug),
            ("environment", self.environment),
            ("parent_session_id", self.parent),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                body[name] = value.into();
            }
        }
        if let Some(file) = self.input_json {
            body["input"] = object(&file)?;
        }
        if !self.sources.is_empty() {
            body["sources"] = self.sources.into();
        }
        self.limits.write(&mut body);
        Ok(body)
    }
}

fn object(file: &Path) -> anyhow::Result<Value> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    let text = text.with_context(|| format!("{} cannot be read", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))
}
