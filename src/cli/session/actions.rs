//! What turns wait for: open actions, and answers to them.

use std::path::Path;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::{Value, json};

use super::watch;
use crate::cli::{client::Client, input, print};

/// Commands on what turns wait for.
#[derive(Debug, Subcommand)]
pub(crate) enum Use {
    /// Answer the questions of a session, or send the result of a custom tool that its turn waits for
    Answer {
        session: String,
        /// Answer or result; - for standard input. Several questions take an answer each. The label of an option
        /// chooses it, several with commas if the question takes them; an empty text leaves an optional question out
        #[arg(required_unless_present = "decline")]
        text: Vec<String>,
        /// Decline the questions of an MCP server
        #[arg(long, conflicts_with_all = ["text", "error"])]
        decline: bool,
        /// Action to answer, if several are open
        #[arg(long)]
        action: Option<String>,
        /// Tell the agent that the call failed
        #[arg(long)]
        error: bool,
        #[arg(long)]
        watch: bool,
    },
    /// Let a call run that waits for a person
    #[command(visible_alias = "confirm")]
    Approve {
        session: String,
        /// Action to confirm, if several are open
        #[arg(long)]
        action: Option<String>,
        /// Also allow calls like it for the rest of the session, by the Nth rule that the action offers [default N: 1]
        #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1")]
        always: Option<usize>,
        #[arg(long)]
        watch: bool,
    },
    /// Reject a call that waits for a person
    #[command(visible_alias = "reject")]
    Deny {
        session: String,
        /// What the agent should do instead
        message: Option<String>,
        /// Action to reject, if several are open
        #[arg(long)]
        action: Option<String>,
        /// Also reject the other calls that wait
        #[arg(long)]
        others: bool,
        /// End the turn
        #[arg(long)]
        end_turn: bool,
        #[arg(long)]
        watch: bool,
    },
    /// List the open actions that turns wait for, oldest first
    Pending {
        /// Only of this session [default: all sessions]
        session: Option<String>,
        /// Also of the sessions below it
        #[arg(long, requires = "session")]
        children: bool,
        /// Print one action with all of its arguments, also if they are too large for the list
        #[arg(long, requires = "session", conflicts_with = "children")]
        action: Option<String>,
    },
}

/// Runs a command.
pub(super) async fn run(client: &Client, command: Use, json: bool) -> anyhow::Result<u8> {
    match command {
        Use::Answer { session, text, decline, action, error, watch } => {
            let texts = if text == ["-"] { vec![input::text(Path::new("-"))?] } else { text };
            let given = Answer { session: &session, texts, action, error, decline };
            let sent = answer(client, given).await?;
            answered(client, &session, sent, watch, json).await
        }
        Use::Approve { session, action, always, watch } => {
            let sent = approve(client, &session, action.as_deref(), always).await?;
            answered(client, &session, sent, watch, json).await
        }
        Use::Deny { session, message, action, others, end_turn, watch } => {
            let rejection = Rejection { message, others, end_turn };
            let sent = deny(client, &session, action.as_deref(), rejection).await?;
            answered(client, &session, sent, watch, json).await
        }
        Use::Pending { session, children, action } => {
            match session.as_deref().zip(action.as_deref()) {
                Some((session, action)) => print::document(&whole(client, session, action).await?),
                None => pending(client, session.as_deref(), children, json).await?,
            }
            Ok(0)
        }
    }
}

/// Prints the event of an answer, or what follows it.
async fn answered(
    client: &Client,
    session: &str,
    (sent, seq): (Value, i64),
    watch: bool,
    json: bool,
) -> anyhow::Result<u8> {
    if watch {
        return watch::until_settled(client, session, seq - 1, json).await;
    }
    print::answer(&sent, json, sent["id"].as_str().unwrap_or_default());
    Ok(0)
}

/// Prints the open actions of one session, or of all.
async fn pending(client: &Client, session: Option<&str>, children: bool, json: bool) -> anyhow::Result<()> {
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
        ("SERVER ASKS", "message"),
        ("EXPIRES", "expires_at"),
    ];
    print::page(client, &path, &columns, json).await
}

/// Returns an open action of a session with all of its arguments.
async fn whole(client: &Client, session: &str, action: &str) -> anyhow::Result<Value> {
    let mut action = only_action(client, session, Some(action), &[]).await?;
    if action["input"].is_null()
        && let Some(call) = action["call_event_id"].as_str()
    {
        let body = client.get(&format!("/sessions/{session}/events/{call}/content")).await?;
        action["input"] = body["input"].clone();
    }
    Ok(action)
}

/// An answer to the question of a session or to an action.
struct Answer<'a> {
    session: &'a str,
    texts: Vec<String>,
    action: Option<String>,
    error: bool,
    decline: bool,
}

/// Sends an answer. Returns the appended event and its `seq`.
async fn answer(client: &Client, answer: Answer<'_>) -> anyhow::Result<(Value, i64)> {
    let Answer { session, texts, action, error, decline } = answer;
    let now = client.get(&format!("/sessions/{session}")).await?;
    if now["last_turn"]["state"] == "waiting" || action.is_some() {
        let kinds = if decline { &["question"][..] } else { &["tool_result", "question"] };
        let action = only_action(client, session, action.as_deref(), kinds).await?;
        let event = if decline {
            json!({ "type": "user.answer", "action_id": action["id"], "answers": [], "declined": true })
        } else if action["kind"] == "question" && !error {
            replies(&action, &texts)?
        } else {
            let content = json!([{ "type": "text", "text": one(&texts)? }]);
            json!({
                "type": "user.custom_tool_result", "action_id": action["id"], "content": content, "is_error": error,
            })
        };
        return send(client, session, event).await;
    }
    if now["status"] != "awaiting_input" {
        let status = print::cell(&now["status"]);
        bail!("the session is {status} and asks no question; use `steer` to send a message");
    }
    if decline {
        bail!("--decline is for the questions of an MCP server; the session asks another one");
    }
    if error {
        bail!("--error is for the result of a custom tool; the session asks a question");
    }
    let message = json!({ "text": one(&texts)? });
    let steered = client.post(&format!("/sessions/{session}/messages"), &message).await?;
    first(steered["event"].clone())
}

/// Returns the event that answers the questions of an action, each with a label or a text.
fn replies(action: &Value, texts: &[String]) -> anyhow::Result<Value> {
    let questions = action["questions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if texts.len() != questions.len() {
        let asked: String = questions.iter().map(told).collect();
        let who =
            action["server"].as_str().map_or("the agent".to_owned(), |name| format!("the server {name}"));
        bail!("{who} asks {} questions and {} were answered:{asked}", questions.len(), texts.len());
    }
    let reply = |(question, text): (&Value, &String)| {
        let options = question["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_label = |text: &str| options.iter().any(|option| option["label"] == *text);
        let several: Vec<_> = text.split(',').map(str::trim).collect();
        match text.is_empty() {
            true => json!({}),
            false if is_label(text) => json!({ "labels": [text] }),
            false if question["multiple"] == true && several.iter().all(|one| is_label(one)) => {
                json!({ "labels": several })
            }
            false => json!({ "text": text }),
        }
    };
    let answers: Vec<_> = questions.iter().zip(texts).map(reply).collect();
    Ok(json!({ "type": "user.answer", "action_id": action["id"], "answers": answers }))
}

/// A line about a question: its words, its options, and the address that it wants to be opened.
fn told(question: &Value) -> String {
    let options = question["options"].as_array().map(Vec::as_slice).unwrap_or_default();
    let labels: Vec<_> = options.iter().map(|option| print::cell(&option["label"])).collect();
    let offered = if labels.is_empty() { String::new() } else { format!(" [{}]", labels.join(" | ")) };
    let url = question["url"].as_str().map(|url| format!(" <{url}>")).unwrap_or_default();
    format!("\n  {}{offered}{url}", print::cell(&question["question"]))
}

fn one(texts: &[String]) -> anyhow::Result<&str> {
    match texts {
        [text] => Ok(text),
        _ => bail!("one text is needed: put it in quotes"),
    }
}

fn first(event: Value) -> anyhow::Result<(Value, i64)> {
    let seq = event["seq"].as_i64().context("the service answered without the seq of the event")?;
    Ok((event, seq))
}

/// Lets a call run; `always` is the number of an offered rule to grant, from 1.
async fn approve(
    client: &Client,
    session: &str,
    action: Option<&str>,
    always: Option<usize>,
) -> anyhow::Result<(Value, i64)> {
    let is_named = action.is_some();
    let action = only_action(client, session, action, &["confirmation"]).await?;
    if action["input"].is_null() && !is_named {
        let id = print::cell(&action["id"]);
        bail!(
            "the arguments of this call are too large for the list: read them with `sojourn session pending {session} \
             --action {id}`, then approve it with `--action {id}`"
        );
    }
    let mut event = decision(&action, if always.is_some() { "always" } else { "once" });
    if let Some(number) = always {
        let rules = action["always"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rule = number.checked_sub(1).and_then(|place| rules.get(place));
        let Some(rule) = rule else {
            let offered: String =
                (1..).zip(rules).map(|(number, rule)| format!("\n  {number}  {rule}")).collect();
            bail!("the action offers {} rules for --always{offered}", rules.len());
        };
        event["rule"] = rule.clone();
    }
    send(client, session, event).await
}

/// What is said with a rejection.
struct Rejection {
    message: Option<String>,
    others: bool,
    end_turn: bool,
}

/// Rejects a call.
async fn deny(
    client: &Client,
    session: &str,
    action: Option<&str>,
    rejection: Rejection,
) -> anyhow::Result<(Value, i64)> {
    let action = only_action(client, session, action, &["confirmation"]).await?;
    let Rejection { message, others, end_turn } = rejection;
    let mut event = decision(&action, "reject");
    if let Some(message) = message {
        event["message"] = json!(message);
    }
    if others {
        event["others"] = json!("reject");
    }
    if end_turn {
        event["then"] = json!("end_turn");
    }
    send(client, session, event).await
}

fn decision(action: &Value, decision: &str) -> Value {
    json!({
        "type": "user.tool_confirmation", "action_id": action["id"], "decision": decision,
        "args_hash": action["args_hash"],
    })
}

async fn send(client: &Client, session: &str, event: Value) -> anyhow::Result<(Value, i64)> {
    let sent = client.post(&format!("/sessions/{session}/events"), &json!({ "events": [event] })).await?;
    first(sent["data"][0].clone())
}

/// Returns the named open action of a session, or the only one of these kinds.
async fn only_action(
    client: &Client,
    session: &str,
    named: Option<&str>,
    kinds: &[&str],
) -> anyhow::Result<Value> {
    let mut open = print::all(client, &format!("/sessions/{session}/pending")).await?;
    open.retain(|action| match named {
        Some(named) => action["id"] == named,
        None => kinds.iter().any(|kind| action["kind"] == **kind),
    });
    let told = |open: &[Value]| -> String {
        let row =
            |action: &Value| format!("\n  {}  {}", print::cell(&action["id"]), print::cell(&action["tool"]));
        open.iter().map(row).collect()
    };
    match open.as_slice() {
        [one] => Ok(one.clone()),
        [] if named.is_some() => bail!("the session has no open action of this id"),
        [] => {
            bail!("the session has no open action of this kind; `session pending` lists what turns wait for")
        }
        several => bail!("several actions are open; name one with --action:{}", told(several)),
    }
}
