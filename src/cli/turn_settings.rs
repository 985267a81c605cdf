//! Settings of turns, as options of commands.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use super::input;

/// Settings of turns; omitted options stay unchanged.
#[derive(Debug, Args)]
pub(super) struct TurnSettings {
    /// JSON file with the JSON Schema of the output of each turn; - for standard input
    #[arg(long, value_name = "FILE")]
    output_schema: Option<PathBuf>,
    /// Rejected outputs of a turn before it ends: 0 to 5
    #[arg(long, value_name = "N")]
    output_repairs: Option<u32>,
    /// File with a JSON list of MCP servers; - for standard input
    #[arg(long, value_name = "FILE")]
    mcp_servers: Option<PathBuf>,
    /// Model to call while the model before it is not available, as provider/model; repeat it for more
    #[arg(long = "fallback-model", value_name = "MODEL")]
    fallback_models: Vec<String>,
    /// Skill that the agent may read, as name or name@version; repeat it for more
    #[arg(long = "skill", value_name = "SKILL")]
    skills: Vec<String>,
}

impl TurnSettings {
    /// Adds what was given to the body of a request.
    pub(super) fn fill(&self, body: &mut Value) -> anyhow::Result<()> {
        if let Some(file) = &self.output_schema {
            body["output_schema"] = input::json(file)?;
        }
        if let Some(repairs) = self.output_repairs {
            body["output_repairs"] = json!(repairs);
        }
        if let Some(file) = &self.mcp_servers {
            body["mcp_servers"] = input::json(file)?;
        }
        if !self.fallback_models.is_empty() {
            let models = self.fallback_models.iter().map(|model| json!({ "model": model }));
            body["fallback_models"] = models.collect();
        }
        if !self.skills.is_empty() {
            body["skills"] = self.skills.iter().map(|skill| choice(skill)).collect::<anyhow::Result<_>>()?;
        }
        Ok(())
    }
}

/// Returns a skill of a list, given as `NAME` or `NAME@VERSION`.
fn choice(skill: &str) -> anyhow::Result<Value> {
    Ok(match skill.split_once('@') {
        None => json!({ "skill": skill }),
        Some((name, "latest")) => json!({ "skill": name, "version": "latest" }),
        Some((name, version)) => {
            let version: i32 =
                version.parse().with_context(|| format!("{skill}: the version is no number"))?;
            json!({ "skill": name, "version": version })
        }
    })
}
