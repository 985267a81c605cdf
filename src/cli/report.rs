//! `sojourn usage` and `sojourn audit`: usage reports and the audit log.

use std::io::stdout;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    client::{Connection, query},
    print,
};

/// Filters and grouping of a usage report.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Usage {
    /// Group by day, agent, model; comma-separated
    #[arg(long, default_value = "day")]
    by: String,
    /// First day in UTC, e.g. 2026-01-31 [default: 4 weeks ago]
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// Last day in UTC [default: today]
    #[arg(long, value_name = "DAY")]
    to: Option<String>,
    /// Filter by agent ID
    #[arg(long)]
    agent: Option<String>,
    /// Filter by model, as provider/model
    #[arg(long)]
    model: Option<String>,
}

/// Filters of the audit log.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Audit {
    #[command(subcommand)]
    command: Option<AuditCommand>,
    /// Filter by action: an exact name, or prefix.*
    #[arg(long)]
    action: Option<String>,
    /// Filter by the ID of the target
    #[arg(long)]
    target: Option<String>,
    /// Only records after this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// Only records before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// Maximum number of records, newest first
    #[arg(long, default_value_t = 50)]
    limit: u32,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Export all records as NDJSON, one per line
    Export {
        /// Only records after this time (RFC 3339)
        #[arg(long, value_name = "TIME")]
        after: Option<String>,
        /// Only records before this time (RFC 3339)
        #[arg(long, value_name = "TIME")]
        before: Option<String>,
    },
}

/// Prints a usage report.
pub(super) async fn usage(wanted: Usage, connection: &Connection) -> anyhow::Result<()> {
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

/// Prints or exports the audit log.
pub(super) async fn audit(wanted: Audit, connection: &Connection) -> anyhow::Result<()> {
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
