//! Export, import and usage of sessions.

use std::{
    fs,
    io::{Read, stdin},
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde_json::Value;

use crate::cli::{client::Client, print};

/// Writes an export to a file or to standard output. A truncated file lacks the last line with the hash, so
/// an import refuses it.
pub(super) async fn export(client: &Client, session: &str, output: Option<PathBuf>) -> anyhow::Result<()> {
    let path = format!("/sessions/{session}/export");
    client.download_to(&path, output.as_deref()).await?;
    if let Some(output) = output {
        print::line(&output.display().to_string());
    }
    Ok(())
}

/// Imports an export as a new session.
pub(super) async fn import(client: &Client, file: &Path, json: bool) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    if file.as_os_str() == "-" {
        stdin().read_to_end(&mut bytes).context("standard input cannot be read")?;
    } else {
        bytes = fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    }
    let made = client.upload("/sessions/import", "application/x-ndjson", bytes).await?;
    print::answer(&made, json, made["session"]["id"].as_str().unwrap_or_default());
    Ok(())
}

/// Prints the usage of a session: per model and in total.
pub(super) async fn usage(client: &Client, session: &str, json: bool) -> anyhow::Result<()> {
    let used = client.get(&format!("/sessions/{session}/usage")).await?;
    if json {
        print::document(&used);
        return Ok(());
    }
    let row = |model: &str, usage: &Value| {
        let counts = ["steps", "input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"];
        let counts = counts.map(|name| print::cell(&usage[name]));
        let cost = print::dollars(&usage["cost"]["total_micros"]);
        [model.to_owned()].into_iter().chain(counts).chain([cost]).collect::<Vec<_>>()
    };
    let of_models = used["models"].as_array().into_iter().flatten();
    let mut rows: Vec<_> = of_models.map(|one| row(&print::cell(&one["model"]), &one["usage"])).collect();
    rows.push(row("(all)", &used["usage"]));
    print::table(&["MODEL", "STEPS", "INPUT", "CACHE READ", "CACHE WRITTEN", "OUTPUT", "COST"], &rows);
    Ok(())
}
