//! Following a session or the list of sessions.

use std::pin::pin;

use futures::StreamExt;
use serde_json::Value;

use crate::{
    base::limit::PAGE_ROWS_MAX,
    cli::{client::Client, print},
};

/// Events to print.
pub(super) struct Wanted<'a> {
    pub after: i64,
    pub level: &'a str,
    /// An exact type, or `prefix.*`.
    pub kind: Option<&'a str>,
    /// Maximum number of past events.
    pub limit: Option<usize>,
    pub json: bool,
}

/// Follows a session until no turn runs or is queued, and prints its result, or what its turn waits for.
///
/// The exit code reports the last turn's reason: 0 completed, 3 waits for a caller, 4 a limit was exceeded, 5
/// canceled, 6 an error.
pub(super) async fn until_settled(
    client: &Client,
    session: &str,
    after: i64,
    json: bool,
) -> anyhow::Result<u8> {
    let wanted = Wanted { after, level: "progress", kind: None, limit: None, json };
    let mut events = pin!(client.follow(session, wanted.level, past(client, session, &wanted).await?));
    // Read the state after printing past events: the event that settles the session is then still to come.
    let actions = loop {
        if let Some(actions) = settled(client, session).await? {
            break actions;
        }
        while let Some(event) = events.next().await {
            let event = event?;
            show(&event, json);
            if event["type"] == "turn.completed" || event["type"] == "turn.waiting" {
                break;
            }
        }
    };
    let result = client.get(&format!("/sessions/{session}/result")).await?;
    if json {
        print::line(&result.to_string());
    } else if let Some(text) = result["result"]["body"]["text"].as_str() {
        print::line(&format!("\n{text}"));
    }
    if !actions.is_empty() {
        eprintln!("the turn waits for {}; see `sojourn session pending {session}`", names(&actions));
        return Ok(exit_code("requires_action"));
    }
    let reason = result["last_turn"]["yield_reason"].as_str();
    Ok(exit_code(reason.unwrap_or("completed")))
}

/// The tools of these actions, such as `ask_weather, book_table`.
fn names(actions: &[Value]) -> String {
    let tools = actions.iter().filter_map(|action| action["tool"].as_str());
    print::plain(&tools.collect::<Vec<_>>().join(", "))
}

/// Prints existing events and, with `follow`, new ones.
pub(super) async fn events(
    client: &Client,
    session: &str,
    wanted: Wanted<'_>,
    follow: bool,
) -> anyhow::Result<()> {
    let after = past(client, session, &wanted).await?;
    if !follow {
        return Ok(());
    }
    let mut events = pin!(client.follow(session, wanted.level, after));
    while let Some(event) = events.next().await {
        let event = event?;
        if wanted.kind.is_none_or(|kind| matches(&event, kind)) {
            show(&event, wanted.json);
        }
    }
    Ok(())
}

/// Prints the listed sessions, then a line per change; ends only with an error.
pub(super) async fn list(client: &Client, query: &str, json: bool) -> anyhow::Result<u8> {
    let mut frames = pin!(client.follow_list(query));
    while let Some(frame) = frames.next().await {
        let frame = frame?;
        if json {
            print::line(&frame.to_string());
        } else if let Some(line) = status_line(&frame) {
            print::line(&line);
        }
    }
    Ok(0)
}

/// Formats a frame of the list as one line.
fn status_line(frame: &Value) -> Option<String> {
    let session = &frame["session"];
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (id, status, rest) = match frame["type"].as_str()? {
        "session.listed" => {
            let finer = word(&session["phase"]);
            let reason = word(&session["last_turn"]["yield_reason"]);
            let rest = [finer, reason, word(&session["title"])];
            let rest: Vec<_> = rest.into_iter().filter(|part| !part.is_empty()).collect();
            (word(&session["id"]), word(&session["status"]), rest.join("  "))
        }
        "session.unlisted" => (word(&frame["id"]), word(&frame["reason"]), String::new()),
        _ => return None,
    };
    Some(print::plain(&format!("{id}  {status:<14}  {rest}")).trim_end().to_owned())
}

/// Prints existing events, page by page; returns the `seq` of the last.
async fn past(client: &Client, session: &str, wanted: &Wanted<'_>) -> anyhow::Result<i64> {
    let (mut after, mut left) = (wanted.after, wanted.limit.unwrap_or(usize::MAX));
    let kind = wanted.kind.map(|kind| format!("&type={kind}")).unwrap_or_default();
    while left > 0 {
        let (level, rows) = (wanted.level, left.min(PAGE_ROWS_MAX as usize));
        let path = format!("/sessions/{session}/events?after={after}&level={level}&limit={rows}{kind}");
        let page = client.get(&path).await?;
        let events = page["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        events.iter().for_each(|event| show(event, wanted.json));
        after = events.last().and_then(|event| event["seq"].as_i64()).unwrap_or(after);
        left -= events.len().min(left);
        if page["next_cursor"].is_null() {
            break;
        }
    }
    Ok(after)
}

fn matches(event: &Value, kind: &str) -> bool {
    let name = event["type"].as_str().unwrap_or_default();
    kind.strip_suffix(".*").map_or(name == kind, |prefix| name.starts_with(&format!("{prefix}.")))
}

fn show(event: &Value, json: bool) {
    if json { print::line(&event.to_string()) } else { print::line(&print::event(event)) }
}

/// Returns the actions that the turn waits for, or none if no turn runs; `None` while one is queued, runs, or
/// continues because its actions have ended.
async fn settled(client: &Client, session: &str) -> anyhow::Result<Option<Vec<Value>>> {
    let now = client.get(&format!("/sessions/{session}")).await?;
    if now["last_turn"]["state"] == "waiting" {
        let actions = print::all(client, &format!("/sessions/{session}/pending")).await?;
        return Ok(Some(actions).filter(|actions| !actions.is_empty()));
    }
    let runs = matches!(now["status"].as_str(), Some("queued" | "running"));
    Ok((!runs).then(Vec::new))
}

fn exit_code(reason: &str) -> u8 {
    match reason {
        "completed" => 0,
        "needs_input" | "requires_action" => 3,
        "budget_exceeded" | "deadline_exceeded" | "max_turns" => 4,
        "canceled" => 5,
        _ => 6,
    }
}
