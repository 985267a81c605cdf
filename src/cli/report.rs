//! `sojourn usage` and `sojourn audit`: what was used, and what was done.

use std::io::stdout;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    client::{Connection, query},
    print,
};

/// Which usage is summed, and by what.
#[derive(Debug, Args)]
#[group(skip)]
pub struct Usage {
    /// What the rows tell apart: day, agent, model, with commas between them
    #[arg(long, default_value = "day")]
    by: String,
    /// First day in UTC, as in 2026-01-31 [default: four weeks back]
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// Last day in UTC [default: today]
    #[arg(long, value_name = "DAY")]
    to: Option<String>,
    /// Id of an agent
    #[arg(long)]
    agent: Option<String>,
    /// provider/model
    #[arg(long)]
    model: Option<String>,
}

/// Which records are shown.
#[derive(Debug, Args)]
#[group(skip)]
pub struct Audit {
    #[command(subcommand)]
    command: Option<AuditCommand>,
    /// An exact action, or prefix.*
    #[arg(long)]
    action: Option<String>,
    /// The id of the thing that it was done to
    #[arg(long)]
    target: Option<String>,
    /// Done after this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// Done before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// Records at most, the newest ones
    #[arg(long, default_value_t = 50)]
    limit: u32,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Write all records as NDJSON, one line each
    Export {
        /// Done after this time (RFC 3339)
        #[arg(long, value_name = "TIME")]
        after: Option<String>,
        /// Done before this time (RFC 3339)
        #[arg(long, value_name = "TIME")]
        before: Option<String>,
    },
}

/// Sums up what was used.
pub async fn usage(wanted: Usage, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let filters = [
        ("by", Some(wanted.by.clone())),
        ("from", wanted.from),
        ("to", wanted.to),
        ("agent", wanted.agent),
        ("model", wanted.model),
    ];
    let rows = print::all(&client, &format!("/usage{}", query(filters))).await?;
    if connection.json {
        print::document(&json!({ "data": rows }));
        return Ok(());
    }
    let by: Vec<_> = ["day", "agent_id", "model"]
        .into_iter()
        .filter(|field| rows.iter().any(|row| !row[*field].is_null()))
        .collect();
    let headings = by.iter().map(|field| match *field {
        "day" => "DAY",
        "agent_id" => "AGENT",
        _ => "MODEL",
    });
    let counts = ["STEPS", "TOOL CALLS", "INPUT", "CACHED", "OUTPUT", "COST"];
    let headings: Vec<_> = headings.chain(counts).collect();
    let row = |row: &Value| {
        let usage = &row["usage"];
        let number = |name: &str| usage[name].as_u64().unwrap_or_default();
        let input = number("input_tokens") + number("cache_write_tokens");
        let counts = [
            number("steps"),
            number("tool_calls"),
            input,
            number("cache_read_tokens"),
            number("output_tokens"),
        ];
        let cells =
            by.iter().map(|field| print::cell(&row[*field])).chain(counts.map(|count| count.to_string()));
        cells.chain([print::dollars(&usage["cost"]["total_micros"])]).collect::<Vec<_>>()
    };
    print::table(&headings, &rows.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// Shows or exports what was done.
pub async fn audit(wanted: Audit, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    if let Some(AuditCommand::Export { after, before }) = wanted.command {
        let path = format!("/audit/export{}", query([("after", after), ("before", before)]));
        return client.download(&path, &mut stdout().lock()).await;
    }
    let filters = [
        ("action", wanted.action),
        ("target", wanted.target),
        ("after", wanted.after),
        ("before", wanted.before),
        ("limit", Some(wanted.limit.to_string())),
    ];
    let page = client.get(&format!("/audit{}", query(filters))).await?;
    if connection.json {
        print::document(&page);
        return Ok(());
    }
    let row = |act: &Value| {
        let actor = act["actor"]["display"].as_str().or(act["actor"]["id"].as_str()).unwrap_or_default();
        vec![
            print::cell(&act["at"]),
            print::cell(&act["action"]),
            actor.to_owned(),
            print::cell(&act["target"]),
            print::cell(&act["details"]),
        ]
    };
    let rows: Vec<_> = page["data"].as_array().into_iter().flatten().map(row).collect();
    print::table(&["TIME", "ACTION", "BY", "TARGET", "DETAILS"], &rows);
    Ok(())
}
