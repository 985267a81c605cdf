//! Settings of turns, as options of commands.

use std::path::PathBuf;

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
        Ok(())
    }
}
