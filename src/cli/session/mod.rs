//! `sojourn session ...`: create, follow, steer and end sessions.

mod actions;
mod create;
mod export;
mod rules;
mod sandbox;
mod update;
mod watch;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    client::{Client, Connection, query},
    file, input, print,
};

/// Session commands.
#[derive(Debug, Subcommand)]
pub(super) enum Session {
    /// Create a session; with --watch, follow it until its turn ends
    Create {
        #[command(flatten)]
        fields: Box<create::Fields>,
        /// Follow it until its turn ends; the exit code reports the result
        #[arg(long)]
        watch: bool,
    },
    /// List sessions, newest first; with --watch, print changes until interrupted
    List {
        /// Filter by status: queued, running, awaiting_input, idle, failed or archived
        #[arg(long)]
        status: Option<String>,
        /// Filter by agent ID or name
        #[arg(long)]
        agent: Option<String>,
        /// Filter by parent session ID or slug
        #[arg(long, value_name = "SESSION")]
        parent: Option<String>,
        /// Rows per page: 1 to 500
        #[arg(long, default_value_t = 20)]
        limit: u32,
        /// Print the page at this cursor, which the previous page reports
        #[arg(long)]
        cursor: Option<String>,
        #[arg(long, conflicts_with = "cursor")]
        watch: bool,
    },
    /// Show a session; with --watch, follow it until no turn runs or is queued
    #[command(visible_alias = "status")]
    Get {
        session: String,
        #[arg(long)]
        watch: bool,
    },
    /// Send a message
    #[command(visible_alias = "send")]
    Steer {
        session: String,
        #[arg(required_unless_present = "files")]
        text: Option<String>,
        /// File for the agent; may be repeated
        #[arg(long = "attach", value_name = "FILE")]
        files: Vec<PathBuf>,
        /// While a turn runs: queue waits for the next one [default], steer is read before its next model call, interrupt
        /// ends it first
        #[arg(long, value_parser = ["queue", "steer", "interrupt"])]
        mode: Option<String>,
        #[arg(long)]
        watch: bool,
    },
    #[command(flatten)]
    Action(actions::Use),
    #[command(flatten)]
    Rules(rules::Use),
    /// Retry the last turn, which ended with an error
    Retry {
        session: String,
        /// Id of the turn [default: the last one]
        #[arg(long)]
        turn: Option<String>,
        #[arg(long)]
        watch: bool,
    },
    /// Summarize the history, before the next model call or by a turn of its own
    Compact {
        session: String,
        /// Content that the summary has to have
        #[arg(long)]
        instructions: Option<String>,
    },
    /// Cancel the running turn and queued turns
    Cancel {
        session: String,
        /// Cancel all sessions below it too
        #[arg(long)]
        children: bool,
    },
    /// Close a session permanently
    Archive {
        session: String,
        /// Archive all sessions below it too
        #[arg(long)]
        children: bool,
    },
    #[command(flatten)]
    Sandbox(sandbox::Use),
    /// Export a session with its log as NDJSON
    Export {
        session: String,
        /// Output file [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Import an export as a new session
    Import {
        /// Export file; - for standard input
        file: PathBuf,
    },
    /// Delete a session and all its data; this cannot be undone
    Delete { session: String },
    /// Show the agent that a session pinned, with its prompt, also after the agent was deleted
    Agent { session: String },
    /// Show a session's usage per model
    Usage { session: String },
    /// Update a session; omitted fields stay unchanged. Fields of its agent hold from the next turn on
    Update(Box<update::Update>),
    /// Show the last turn and its result
    Result { session: String },
    /// List turns, newest first
    Turns { session: String },
    /// Print events; with --follow, continue until interrupted
    #[command(visible_alias = "logs")]
    Events {
        session: String,
        #[arg(long)]
        follow: bool,
        /// Print at most this many events
        #[arg(long, value_name = "COUNT", conflicts_with = "follow")]
        limit: Option<usize>,
        /// Only events after this seq
        #[arg(long, default_value_t = 0)]
        after: i64,
        /// Event level: user, progress or internal
        #[arg(long, default_value = "progress")]
        level: String,
        /// Event type: an exact name, or prefix.*
        #[arg(long = "type")]
        kind: Option<String>,
    },
}

/// Runs a command. Returns the exit code: 0 unless a watched turn did not complete.
pub(super) async fn run(command: Session, connection: &Connection) -> anyhow::Result<u8> {
    let client = connection.client()?;
    let json = connection.json;
    match command {
        Session::Create { fields, watch } => {
            let created = client.post("/sessions", &fields.body(&client).await?).await?;
            let id = created["session"]["id"].as_str().unwrap_or_default().to_owned();
            if watch {
                eprintln!("session {id}");
                return watch::until_settled(&client, &id, 0, json).await;
            }
            print::answer(&created["session"], json, &id);
        }
        Session::List { status, agent, parent, limit, cursor, watch } => {
            let limit = Some(limit.to_string());
            let query = query([
                ("status", status),
                ("agent", agent),
                ("parent_session_id", parent),
                ("limit", limit),
                ("cursor", cursor),
            ]);
            if watch {
                return watch::list(&client, &query, json).await;
            }
            list(&client.get(&format!("/sessions{query}")).await?, json);
        }
        Session::Get { session, watch: true } => {
            return watch::until_settled(&client, &session, 0, json).await;
        }
        Session::Get { session, watch: false } => {
            print::document(&client.get(&format!("/sessions/{session}")).await?)
        }
        Session::Steer { session, text, files, mode, watch } => {
            let content = file::attach(&client, &files).await?;
            let message = input::given(json!({ "text": text, "content": content, "mode": mode }));
            return send_message(&client, &session, &message, watch, json).await;
        }
        Session::Rules(wanted) => rules::run(&client, wanted, json).await?,
        Session::Action(wanted) => return actions::run(&client, wanted, json).await,
        Session::Sandbox(wanted) => return sandbox::run(&client, wanted, json).await,
        Session::Export { session, output } => export::export(&client, &session, output).await?,
        Session::Import { file } => export::import(&client, &file, json).await?,
        Session::Delete { session } => drop(client.delete(&format!("/sessions/{session}")).await?),
        Session::Agent { session } => {
            print::document(&client.get(&format!("/sessions/{session}/agent")).await?)
        }
        Session::Usage { session } => export::usage(&client, &session, json).await?,
        Session::Compact { session, instructions } => {
            let body = input::given(json!({ "instructions": instructions }));
            let accepted = client.post(&format!("/sessions/{session}/compact"), &body).await?;
            print::answer(&accepted, json, accepted["event"]["id"].as_str().unwrap_or_default());
        }
        Session::Retry { session, turn, watch } => return retry(&client, &session, turn, watch, json).await,
        Session::Cancel { session, children } => {
            sandbox::act(&client, &session, "cancel", &json!({ "children": children }), json).await?;
        }
        Session::Archive { session, children } => {
            sandbox::act(&client, &session, "archive", &json!({ "children": children }), json).await?;
        }
        Session::Update(command) => command.run(&client, json).await?,
        Session::Result { session } => result(&client, &session, json).await?,
        Session::Turns { session } => turns(&client.get(&format!("/sessions/{session}/turns")).await?, json),
        Session::Events { session, follow, limit, after, level, kind } => {
            let wanted = watch::Wanted { after, level: &level, kind: kind.as_deref(), limit, json };
            watch::events(&client, &session, wanted, follow).await?;
        }
    }
    Ok(0)
}

/// Retries a turn. With `watch`, the exit code is that of the turn.
async fn retry(
    client: &Client,
    session: &str,
    turn: Option<String>,
    watch: bool,
    json: bool,
) -> anyhow::Result<u8> {
    let turn = match turn {
        Some(turn) => turn,
        None => {
            let known = client.get(&format!("/sessions/{session}")).await?;
            known["last_turn"]["id"].as_str().context("the session has no turn to retry")?.to_owned()
        }
    };
    let accepted = client.post(&format!("/sessions/{session}/turns/{turn}/retry"), &json!({})).await?;
    if watch {
        let seq = accepted["event"]["seq"].as_i64().unwrap_or_default();
        return watch::until_settled(client, session, seq, json).await;
    }
    print::answer(&accepted, json, accepted["event"]["id"].as_str().unwrap_or_default());
    Ok(0)
}

/// Sends a message. With `watch`, the exit code is that of the turn that reads it.
async fn send_message(
    client: &Client,
    session: &str,
    body: &Value,
    watch: bool,
    json: bool,
) -> anyhow::Result<u8> {
    let steered = client.post(&format!("/sessions/{session}/messages"), body).await?;
    if watch {
        let seq = steered["event"]["seq"].as_i64().unwrap_or_default();
        return watch::until_settled(client, session, seq - 1, json).await;
    }
    print::answer(&steered, json, steered["event"]["id"].as_str().unwrap_or_default());
    Ok(0)
}

async fn result(client: &Client, session: &str, json: bool) -> anyhow::Result<()> {
    let answer = client.get(&format!("/sessions/{session}/result")).await?;
    let text = answer["result"]["body"]["text"].as_str();
    print::answer(&answer, json, text.unwrap_or("(no result yet)"));
    Ok(())
}

fn list(page: &Value, json: bool) {
    if json {
        return print::document(page);
    }
    let word = |session: &Value, name: &str| session[name].as_str().unwrap_or_default().to_owned();
    let rows: Vec<_> = page["data"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|session| {
            let reason = word(&session["last_turn"], "yield_reason");
            vec![
                word(session, "id"),
                word(session, "status"),
                reason,
                word(session, "created_at"),
                word(session, "title"),
            ]
        })
        .collect();
    print::table(&["SESSION", "STATUS", "LAST TURN", "CREATED", "TITLE"], &rows);
    if let Some(cursor) = page["next_cursor"].as_str() {
        eprintln!("more sessions: add --cursor {cursor}");
    }
}

fn turns(page: &Value, json: bool) {
    if json {
        return print::document(page);
    }
    let word = |turn: &Value, name: &str| turn[name].as_str().unwrap_or_default().to_owned();
    let rows: Vec<_> = page["data"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|turn| {
            let seconds = turn["active_seconds"].to_string();
            let tokens = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"];
            let used: u64 = tokens.iter().filter_map(|name| turn["usage"][*name].as_u64()).sum();
            vec![word(turn, "id"), word(turn, "state"), word(turn, "yield_reason"), seconds, used.to_string()]
        })
        .collect();
    print::table(&["TURN", "STATE", "REASON", "SECONDS", "TOKENS"], &rows);
}
