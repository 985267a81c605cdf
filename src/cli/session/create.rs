//! What a session is made of, from the command line.

use std::{
    fs,
    io::{Read, stdin},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::{agent::Limits, source};

/// Fields of a session.
#[derive(Debug, Args)]
pub struct Fields {
    /// Id or name of the agent; absent, the session is a sandbox with a log
    #[arg(long)]
    agent: Option<String>,
    /// What the agent is to do; absent, no turn starts
    #[arg(long)]
    input: Option<String>,
    /// JSON file with the input as an object; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    input_json: Option<PathBuf>,
    #[arg(long)]
    title: Option<String>,
    /// One session per key
    #[arg(long)]
    key: Option<String>,
    /// A name for people, of one open session at a time
    #[arg(long)]
    slug: Option<String>,
    /// Id or name of the environment that its sandbox is made of
    #[arg(long)]
    environment: Option<String>,
    /// A repository to clone into its sandbox; may be named more than once
    #[arg(long = "source", value_name = "URL[#REF]", value_parser = source::parse)]
    sources: Vec<Value>,
    /// Id of the session under which it is started, whose limits bind it too
    #[arg(long, value_name = "SESSION")]
    parent: Option<String>,
    #[command(flatten)]
    limits: Limits,
}

impl Fields {
    /// The body of the request.
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
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", file.display()))
}
