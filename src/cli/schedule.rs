//! `sojourn schedule ...`: manage schedules of an agent.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    client::{Client, Connection},
    input,
    limits::Limits,
    print,
};

/// Schedule commands; the agent is given by id or name.
#[derive(Debug, Subcommand)]
pub(super) enum Schedule {
    /// List an agent's schedules
    List { agent: String },
    /// Show a schedule
    Get { agent: String, schedule: String },
    /// Create a schedule that starts a session per run, or sends a message to --session
    Create {
        agent: String,
        /// Cron expression: minute, hour, day of month, month, day of week
        #[arg(long)]
        cron: String,
        /// Input of every run
        #[arg(long)]
        input: String,
        /// Session to send a message to, instead of starting one per run
        #[arg(long)]
        session: Option<String>,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Change a schedule
    Update {
        agent: String,
        schedule: String,
        #[arg(long)]
        cron: Option<String>,
        #[arg(long)]
        input: Option<String>,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Enable a schedule
    Enable { agent: String, schedule: String },
    /// Disable a schedule
    Disable { agent: String, schedule: String },
    /// Delete a schedule and its runs
    Delete { agent: String, schedule: String },
    /// Start a run now
    Fire { agent: String, schedule: String },
    /// List the runs of a schedule, newest first
    Runs { agent: String, schedule: String },
}

/// Schedule fields; omitted ones stay unchanged.
#[derive(Debug, Args, Serialize)]
pub(super) struct Fields {
    /// IANA time zone of the cron expression [default: UTC]
    #[arg(long)]
    time_zone: Option<String>,
    /// Policy when the previous run has not ended: skip or allow
    #[arg(long)]
    overlap: Option<String>,
    /// Title of the sessions it starts
    #[arg(long)]
    title: Option<String>,
    /// Environment of the sessions it starts
    #[arg(long)]
    environment: Option<String>,
    #[command(flatten)]
    limits: Limits,
}

/// Runs a command.
pub(super) async fn run(command: Schedule, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    let all = |agent: &str| format!("/agents/{agent}/schedules");
    let one = |agent: &str, schedule: &str| format!("/agents/{agent}/schedules/{schedule}");
    match command {
        Schedule::List { agent } => list(&client, &all(&agent), json).await?,
        Schedule::Get { agent, schedule } => {
            print::document(&client.get(&one(&agent, &schedule)).await?);
        }
        Schedule::Create { agent, cron, input, session, fields } => {
            let named = json!({ "cron": cron, "input": input, "session_id": session });
            shown(&client.post(&all(&agent), &input::body(named, &fields)?).await?, json);
        }
        Schedule::Update { agent, schedule, cron, input, fields } => {
            let body = input::body(json!({ "cron": cron, "input": input }), &fields)?;
            shown(&client.patch(&one(&agent, &schedule), &body).await?, json);
        }
        Schedule::Enable { agent, schedule } => {
            shown(&client.patch(&one(&agent, &schedule), &json!({ "enabled": true })).await?, json);
        }
        Schedule::Disable { agent, schedule } => {
            shown(&client.patch(&one(&agent, &schedule), &json!({ "enabled": false })).await?, json);
        }
        Schedule::Delete { agent, schedule } => drop(client.delete(&one(&agent, &schedule)).await?),
        Schedule::Fire { agent, schedule } => {
            let path = format!("{}/fire", one(&agent, &schedule));
            print::field(&client.post(&path, &json!({})).await?, json, "session_id");
        }
        Schedule::Runs { agent, schedule } => runs(&client, &one(&agent, &schedule), json).await?,
    }
    Ok(())
}

fn shown(schedule: &Value, json: bool) {
    let next = schedule["next_fire_at"].as_str().map_or("off".to_owned(), |at| format!("next at {at}"));
    print::answer(schedule, json, &format!("{} {next}", print::cell(&schedule["id"])));
}

async fn list(client: &Client, path: &str, json: bool) -> anyhow::Result<()> {
    let columns = [
        ("SCHEDULE", "id"),
        ("CRON", "cron"),
        ("TIME ZONE", "time_zone"),
        ("NEXT", "next_fire_at"),
        ("PAUSED", "paused_reason"),
    ];
    print::page(client, path, &columns, json).await
}

async fn runs(client: &Client, schedule: &str, json: bool) -> anyhow::Result<()> {
    let columns = [("RUN", "id"), ("SLOT", "slot"), ("STATE", "state"), ("SESSION", "session_id")];
    print::page(client, &format!("{schedule}/runs"), &columns, json).await
}
