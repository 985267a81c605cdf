//! `sojourn schedule ...`: manage schedules of an agent.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    agent::{self, Limits},
    client::{Client, Connection},
    print::{self, Column},
};

/// Schedule commands; the agent is given by id or name.
#[derive(Debug, Subcommand)]
pub enum Schedule {
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
#[derive(Debug, Args)]
pub struct Fields {
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

impl Fields {
    fn body(self, more: [(&str, Option<String>); 3]) -> Value {
        let mut body = json!({});
        let named = [
            ("time_zone", self.time_zone),
            ("overlap", self.overlap),
            ("title", self.title),
            ("environment", self.environment),
        ];
        for (name, value) in named.into_iter().chain(more) {
            if let Some(value) = value {
                body[name] = value.into();
            }
        }
        self.limits.write(&mut body);
        body
    }
}

impl Schedule {
    /// Id or name of the agent.
    fn agent(&self) -> &str {
        match self {
            Self::List { agent }
            | Self::Get { agent, .. }
            | Self::Create { agent, .. }
            | Self::Update { agent, .. }
            | Self::Enable { agent, .. }
            | Self::Disable { agent, .. }
            | Self::Delete { agent, .. }
            | Self::Fire { agent, .. }
            | Self::Runs { agent, .. } => agent,
        }
    }
}

/// Runs a command.
pub async fn run(command: Schedule, connection: &Connection) -> anyhow::Result<()> {
    let client = connection.client()?;
    let json = connection.json;
    let all = format!("/agents/{}/schedules", agent::id(&client, command.agent()).await?);
    let one = |schedule: &str| format!("{all}/{schedule}");
    match command {
        Schedule::List { .. } => list(&client, &all, json).await?,
        Schedule::Get { schedule, .. } => {
            print::document(&client.get(&one(&schedule)).await?);
        }
        Schedule::Create { cron, input, session, fields, .. } => {
            let more = [("cron", Some(cron)), ("input", Some(input)), ("session_id", session)];
            shown(&client.post(&all, &fields.body(more)).await?, json);
        }
        Schedule::Update { schedule, cron, input, fields, .. } => {
            let body = fields.body([("cron", cron), ("input", input), ("session_id", None)]);
            shown(&client.patch(&one(&schedule), &body).await?, json);
        }
        Schedule::Enable { schedule, .. } => {
            shown(&client.patch(&one(&schedule), &json!({ "enabled": true })).await?, json);
        }
        Schedule::Disable { schedule, .. } => {
            shown(&client.patch(&one(&schedule), &json!({ "enabled": false })).await?, json);
        }
        Schedule::Delete { schedule, .. } => {
            client.delete(&one(&schedule)).await?;
        }
        Schedule::Fire { schedule, .. } => {
            let run = client.post(&format!("{}/fire", one(&schedule)), &json!({})).await?;
            if json {
                print::document(&run);
            } else {
                print::line(run["session_id"].as_str().unwrap_or_default());
            }
        }
        Schedule::Runs { schedule, .. } => runs(&client, &one(&schedule), json).await?,
    }
    Ok(())
}

fn shown(schedule: &Value, json: bool) {
    if json {
        return print::document(schedule);
    }
    let id = schedule["id"].as_str().unwrap_or_default();
    let next = schedule["next_fire_at"].as_str().map_or("off".to_owned(), |at| format!("next at {at}"));
    print::line(&format!("{id} {next}"));
}

async fn list(client: &Client, path: &str, json: bool) -> anyhow::Result<()> {
    let columns = [
        Column::text("SCHEDULE", "id"),
        Column::text("CRON", "cron"),
        Column::text("TIME ZONE", "time_zone"),
        Column::text("NEXT", "next_fire_at"),
        Column::text("PAUSED", "paused_reason"),
    ];
    print::page(client, path, &columns, json).await
}

async fn runs(client: &Client, schedule: &str, json: bool) -> anyhow::Result<()> {
    let columns = [
        Column::text("RUN", "id"),
        Column::text("SLOT", "slot"),
        Column::text("STATE", "state"),
        Column::text("SESSION", "session_id"),
    ];
    print::page(client, &format!("{schedule}/runs"), &columns, json).await
}
