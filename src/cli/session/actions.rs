//! What turns wait for: open actions, and answers to them.

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::cli::{client::Client, print};

/// Prints the open actions of one session, or of all.
pub(super) async fn pending(
    client: &Client,
    session: Option<&str>,
    children: bool,
    json: bool,
) -> anyhow::Result<()> {
    let path = match session {
        Some(session) => format!("/sessions/{session}/pending?children={children}"),
        None => "/pending".to_owned(),
    };
    let columns = [
        ("ACTION", "id"),
        ("SESSION", "session_id"),
        ("KIND", "kind"),
        ("TOOL", "tool"),
        ("INPUT", "input"),
        ("EXPIRES", "expires_at"),
    ];
    print::page(client, &path, &columns, json).await
}

/// An answer to the question of a session or to an action.
pub(super) struct Answer<'a> {
    pub session: &'a str,
    pub text: String,
    pub action: Option<String>,
    pub error: bool,
}

/// Sends an answer. Returns the appended event and its `seq`.
pub(super) async fn answer(client: &Client, answer: Answer<'_>) -> anyhow::Result<(Value, i64)> {
    let Answer { session, text, action, error } = answer;
    let now = client.get(&format!("/sessions/{session}")).await?;
    if now["last_turn"]["state"] == "waiting" || action.is_some() {
        let action = match action {
            Some(action) => action,
            None => only_action(client, session).await?,
        };
        let content = json!([{ "type": "text", "text": text }]);
        let event = json!({
            "type": "user.custom_tool_result", "action_id": action, "content": content, "is_error": error,
        });
        let sent = client.post(&format!("/sessions/{session}/events"), &json!({ "events": [event] })).await?;
        return first(sent["data"][0].clone());
    }
    if now["status"] != "awaiting_input" {
        let status = print::cell(&now["status"]);
        bail!("the session is {status} and asks no question; use `steer` to send a message");
    }
    if error {
        bail!("--error is for the result of a custom tool; the session asks a question");
    }
    let steered = client.post(&format!("/sessions/{session}/messages"), &json!({ "text": text })).await?;
    first(steered["event"].clone())
}

fn first(event: Value) -> anyhow::Result<(Value, i64)> {
    let seq = event["seq"].as_i64().context("the service answered without the seq of the event")?;
    Ok((event, seq))
}

/// Returns the open action of a session that has exactly one.
async fn only_action(client: &Client, session: &str) -> anyhow::Result<String> {
    let open = print::all(client, &format!("/sessions/{session}/pending")).await?;
    let told = || {
        open.iter()
            .map(|action| format!("\n  {}  {}", print::cell(&action["id"]), print::cell(&action["tool"])))
    };
    match open.as_slice() {
        [one] => Ok(print::cell(&one["id"])),
        [] => bail!("the session has no open action; its turn continues"),
        _ => bail!("several actions are open; name one with --action:{}", told().collect::<String>()),
    }
}
