//! Export format of a session: lines of JSON that an import reads back.
//!
//! Called by `journal`. The first line identifies the log, each event is one line, and the last
//! line contains the hash of all lines before it. An imported session gets new ids. A file is
//! untrusted: the imported state is only the fold of its own events.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    Session, Status, Turn,
    action::ToolAnswer,
    apply,
    delta::exec_ms,
    event::{Body, Event},
    ids::*,
    question::Answers,
    session::Pins,
};
use crate::base::{Id, Kind, Origin, seal::sha256, text::hex};

/// Value of `format` in the first line.
const FORMAT: &str = "sojourn.session.v1";

/// Reason why an import file is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(crate) struct ImportError {
    /// Line number, starting at 1; 0 means the file as a whole.
    pub line: usize,
    pub reason: String,
}

#[derive(Deserialize)]
struct Head {
    format: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tail {
    events: usize,
    sha256: String,
}

/// A session that was read from a file, with new ids.
#[derive(Debug)]
pub struct Transcript {
    pub session: Session,
    pub turns: Vec<Turn>,
    pub log: Vec<Event>,
}

/// Returns the first line of an export.
pub(crate) fn head(session: &Session) -> String {
    let head = json!({ "format": FORMAT, "session": session.id, "events": session.head });
    format!("{head}\n")
}

/// Returns the line of one event.
pub(crate) fn line(event: &Event) -> String {
    let mut line = serde_json::to_string(event).expect("our own types serialize");
    line.push('\n');
    line
}

/// Returns the last line, with the hash of everything written before it.
pub(crate) fn tail(events: usize, sha256: &[u8; 32]) -> String {
    let tail = Tail { events, sha256: hex(sha256) };
    format!("{}\n", serde_json::to_string(&tail).expect("our own types serialize"))
}

/// Parses a file as a new session.
///
/// `pins` are those that a new session of the same revision would have here: the file's own are not believed, because
/// its tools, model and credential may be others than the agent's. Without, the session has no agent.
///
/// # Errors
/// The invalid line. For example, no turn may be open at the end, because no worker would ever end it.
pub(crate) fn read(
    text: &str,
    id: SessionId,
    pins: Option<&Pins>,
    origin: &Origin,
) -> Result<Transcript, ImportError> {
    let whole = |reason: &str| ImportError { line: 0, reason: reason.to_owned() };
    let body =
        text.strip_suffix('\n').ok_or_else(|| whole("the last line is not terminated by a newline"))?;
    let (before, last) = body.rsplit_once('\n').ok_or_else(|| whole("the file has fewer than two lines"))?;
    let hashed = &text[..before.len() + 1];
    let mut lines = before.lines();
    let first: Head = parse(1, lines.next().unwrap_or_default())?;
    if first.format != FORMAT {
        return Err(ImportError { line: 1, reason: format!("`format` must be {FORMAT}") });
    }
    let last: Tail = parse(before.lines().count() + 1, last)?;
    if last.sha256 != hex(&sha256(hashed.as_bytes())) {
        return Err(whole("the hash does not match the lines: the file was truncated or modified"));
    }
    let mut ids = HashMap::new();
    let mut log = Vec::new();
    for (line, text) in (2..).zip(lines) {
        let mut event: Map<String, Value> = parse(line, text)?;
        adopt(&mut event, &mut ids, pins, origin);
        let event: Event = serde_json::from_value(Value::Object(event))
            .map_err(|error| ImportError { line, reason: error.to_string() })?;
        if exec_ms(&event.draft.body) > EXEC_MS_MAX {
            return Err(ImportError { line, reason: "no command runs for so long".to_owned() });
        }
        if event.seq != log.len() as i64 + 1 {
            return Err(ImportError { line, reason: format!("`seq` must be {}", log.len() + 1) });
        }
        if matches!(event.draft.body, Body::SessionCreated(_)) != log.is_empty() {
            return Err(ImportError {
                line,
                reason: "session.created must be first, exactly once".to_owned(),
            });
        }
        log.push(event);
    }
    if log.len() != last.events {
        return Err(whole("the last line has another number of events"));
    }
    let (session, turns) = apply::fold(id, &log).ok_or_else(|| whole("the file has no events"))?;
    check(&session, &turns, &log)?;
    Ok(Transcript { session, turns, log })
}

/// A year: longer than any command runs.
const EXEC_MS_MAX: u64 = 366 * 86_400_000;
/// More tokens than any history has.
const HISTORY_TOKENS_MAX: u64 = 1 << 40;

/// Rejects logs that the fold accepts but that no session of this service produces.
fn check(session: &Session, turns: &[Turn], log: &[Event]) -> Result<(), ImportError> {
    let whole = |reason: &str| Err(ImportError { line: 0, reason: reason.to_owned() });
    if session.running.is_some() || session.queued.is_some() || session.is_pending() {
        return whole("a turn is not completed; export the session again when it is idle");
    }
    if matches!(session.status, Status::Queued | Status::Running) {
        return whole("its status must not be queued or running");
    }
    let (mut ended, mut last_ended) = (HashSet::new(), None);
    let mut attempts = HashMap::new();
    let mut calls = HashSet::new();
    let (mut actions, mut open_actions) = (HashSet::new(), HashSet::new());
    let mut unread = HashMap::new();
    for event in log {
        let turn = event.draft.turn_id;
        let is_sound = match &event.draft.body {
            Body::TurnCompleted(end) => {
                last_ended = Some(end.turn_id);
                ended.insert(end.turn_id)
            }
            Body::TurnStarted { turn_id, attempt, input_to_seq, .. } => {
                let before = attempts.insert(*turn_id, *attempt).unwrap_or_default();
                before.checked_add(1) == Some(*attempt) && *input_to_seq < event.seq
            }
            Body::TurnRetried { turn_id, attempt } => {
                let before = attempts.get(turn_id).copied().unwrap_or_default();
                last_ended == Some(*turn_id)
                    && ended.remove(turn_id)
                    && before.checked_add(1) == Some(*attempt)
            }
            Body::ToolCall { call_id, .. } => calls.insert((turn, call_id)),
            Body::ToolResult { call_id, .. } => calls.remove(&(turn, call_id)),
            Body::ActionRequired(action) => {
                let is_new = actions.insert(action.id) && open_actions.insert(action.id);
                is_new
                    && action.id.uuid() == event.draft.id.uuid()
                    && calls.contains(&(turn, &action.call_id))
            }
            Body::UserCustomToolResult(ToolAnswer { action_id, .. })
            | Body::UserAnswer(Answers { action_id, .. })
            | Body::ActionClosed { action_id, .. } => open_actions.remove(action_id),
            Body::UserMessage { steers: true, .. } => unread.insert(event.seq, turn).is_none(),
            Body::TurnSteered { from_turn_id, seqs, .. } => {
                seqs.iter().all(|seq| unread.remove(seq) == Some(Some(*from_turn_id)))
            }
            // Everything before a summary is over, and it is not longer than any history.
            Body::HistoryCompacted(compacted) => {
                calls.is_empty()
                    && compacted.to_seq < event.seq
                    && compacted.after_tokens < HISTORY_TOKENS_MAX
            }
            Body::UserToolConfirmation(confirmation) => open_actions.remove(&confirmation.action_id),
            _ => true,
        };
        if !is_sound {
            let reason = "a turn must end once and number its attempts from 1, a call must have exactly one result, an action exactly one end, a \
                          message is read once, and a summary is of what is over";
            return Err(ImportError { line: event.seq as usize + 1, reason: reason.to_owned() });
        }
    }
    if !calls.is_empty() || !open_actions.is_empty() || ended.len() != turns.len() {
        return whole("a call has no result, an action has no end, or a turn ends that was never queued");
    }
    Ok(())
}

/// Assigns new ids to an event and removes data of its original owner: the credential, the caller's
/// keys, and the usage, which another organization paid for.
fn adopt(
    event: &mut Map<String, Value>,
    ids: &mut HashMap<Uuid, Uuid>,
    pins: Option<&Pins>,
    origin: &Origin,
) {
    let is_of = |kind: &str| event.get("type").is_some_and(|of| of == kind);
    let (is_created, is_step) = (is_of("session.created"), is_of("step.completed"));
    let is_of_update = is_of("session.updated");
    let is_of_message = is_of("user.message");
    let is_of_registration = is_of("tool.registered");
    let is_of_list = is_of("mcp.listed") || is_of("mcp.failed");
    rename(event, ids, origin);
    let Some(body) = event.get_mut("body").and_then(Value::as_object_mut) else { return };
    rename(body, ids, origin);
    for used in ["usage", "cost"] {
        if let Some(used) = body.get_mut(used) {
            zero_numbers(used);
        }
    }
    for cost in ["cost_micros", "fee_micros", "cpu_micros", "memory_micros"] {
        if let Some(cost) = body.get_mut(cost) {
            *cost = json!(0);
        }
    }
    if let Some(hash) = body.get_mut("schema_hash") {
        // What a person granted elsewhere holds nowhere else.
        *hash = json!("");
    }
    if is_step {
        // Without it, the step would count as unpriced.
        body.insert("cost_micros".to_owned(), json!(0));
    }
    for part in body.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        // The bytes of a file are only where it was stored.
        if part["type"] != "text" {
            let name = part["name"].as_str().unwrap_or_default().to_owned();
            *part = json!({ "type": "text", "text": format!("[The file {name} was not imported.]") });
        }
    }
    if is_of_update {
        // The agent is that of this organization, with its rules; a change of it holds where it was made.
        body.remove("agent_snapshot");
        body.remove("slug");
    }
    if is_of_message {
        // It was validated where it was sent, and a retry of its turn would use it.
        body.remove("output_schema");
    }
    if is_of_registration {
        // Its caller and its validation are elsewhere: it is a note here.
        body.remove("runs");
    }
    if is_of_list {
        // Void, so that the servers are asked what their tools are: permissions are by the names of a list.
        body.insert("server_hash".to_owned(), json!(""));
    }
    if is_created {
        body.insert("agent_id".to_owned(), json!(pins.map(|pins| pins.agent_id)));
        body.insert("credential_id".to_owned(), json!(pins.and_then(|pins| pins.credential_id)));
        body.insert("agent_snapshot".to_owned(), json!(pins.map(|pins| &pins.agent_snapshot)));
        // An environment was validated where it was stored, and its secrets are only there.
        for own in ["key", "client_id", "slug", "environment"] {
            body.insert(own.to_owned(), Value::Null);
        }
        // The sources were not validated here either, and their credentials belong to another
        // organization. The parent session does not exist here.
        for own in ["sources", "parent_session_id"] {
            body.remove(own);
        }
        body.insert("source".to_owned(), json!("import"));
    }
}

/// Replaces the ids in these fields. The same id gets the same new one, also where it has another prefix: an action has
/// the id of its event.
fn rename(fields: &mut Map<String, Value>, ids: &mut HashMap<Uuid, Uuid>, origin: &Origin) {
    for name in [
        "id",
        "turn_id",
        "from_turn_id",
        "step_id",
        "result_event_id",
        "call_event_id",
        "action_id",
        "action_ids",
        "confirmation_event_id",
        "grant_event_id",
    ] {
        match fields.get_mut(name) {
            Some(Value::String(id)) => replace(id, ids, origin),
            Some(Value::Array(items)) => {
                for item in items {
                    if let Value::String(id) = item {
                        replace(id, ids, origin);
                    }
                }
            }
            _ => {}
        }
    }
}

fn replace(id: &mut String, ids: &mut HashMap<Uuid, Uuid>, origin: &Origin) {
    fn of<K: Kind>(id: &mut String, ids: &mut HashMap<Uuid, Uuid>, origin: &Origin) -> bool {
        let Ok(old) = id.parse::<Id<K>>() else { return false };
        let new = ids.entry(old.uuid()).or_insert_with(|| origin.id::<EventKind>().uuid());
        *id = Id::<K>::from_uuid(*new).to_string();
        true
    }
    let _ = of::<EventKind>(id, ids, origin)
        || of::<TurnKind>(id, ids, origin)
        || of::<StepKind>(id, ids, origin)
        || of::<ActionIdKind>(id, ids, origin);
}

fn zero_numbers(value: &mut Value) {
    match value {
        Value::Number(_) => *value = json!(0),
        Value::Object(fields) => fields.values_mut().for_each(zero_numbers),
        Value::Array(items) => items.iter_mut().for_each(zero_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn parse<'a, T: Deserialize<'a>>(line: usize, text: &'a str) -> Result<T, ImportError> {
    serde_json::from_str(text).map_err(|error| ImportError { line, reason: error.to_string() })
}
