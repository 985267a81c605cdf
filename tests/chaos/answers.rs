//! A program of the caller that runs a custom tool: it answers the actions of waiting turns, sometimes twice at
//! once with different results, sometimes not at all.

use std::{
    collections::BTreeMap,
    sync::{Mutex, atomic::Ordering},
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{load::Load, plan::SeededRng, record::Event};

/// The tool, with the shortest time to answer.
pub fn tool() -> Value {
    json!({
        "type": "custom", "name": TOOL, "description": "The weather.", "input_schema": { "type": "object" },
        "expires_seconds": 10,
    })
}

/// The rule for calls that a person must confirm, with the shortest time to decide.
pub fn ask() -> Value {
    json!({ "tool": "bash", "policy": "ask", "expires_seconds": 10 })
}

/// Questions wait for an answer, with the shortest time to give one.
pub fn waiting_ask() -> Value {
    json!({ "mode": "wait", "expires_seconds": 10 })
}

/// A call that asks which of [`LABELS`] to choose.
pub fn question() -> Value {
    let options = LABELS.map(|label| json!({ "label": label }));
    let question = json!({ "question": "Which way?", "options": options, "free_text": false });
    json!({ "tool": "ask", "input": { "questions": [question] } })
}

/// Name of the tool.
pub const TOOL: &str = "ask_weather";
/// Decisions on a call.
const DECISIONS: [&str; 2] = ["once", "reject"];
/// Answers to a question.
const LABELS: [&str; 2] = ["left", "right"];
/// Codes of an answer that came too late: another one was taken, the time passed, or the turn was canceled.
const LATE: [&str; 3] = ["action_resolved", "action_expired", "archived"];

/// Answers that the service acknowledged, by their action.
#[derive(Default)]
pub struct Answers(pub Mutex<BTreeMap<String, String>>);

impl Load {
    /// Answers the open actions of a session whose turn waits.
    pub async fn answer(&self, id: &str, dice: &SeededRng) -> anyhow::Result<()> {
        let path = format!("/sessions/{id}/pending");
        let page = self.client.send(&self.violations, Method::GET, &path, None).await?;
        for action in page["data"].as_array().into_iter().flatten() {
            let choices = match action["kind"].as_str() {
                Some("confirmation") => Some(DECISIONS),
                Some("question") => Some(LABELS),
                _ => None,
            };
            let action = action["id"].as_str().unwrap_or_default();
            // Also longer than the lease of a worker.
            sleep(dice.millis(0, 2_500)).await;
            if dice.once_in(8) {
                continue;
            }
            let texts: Vec<_> = match choices.map(|choices| choices.map(str::to_owned)) {
                Some(choices) if dice.once_in(3) => choices.into_iter().rev().collect(),
                Some(choices) => choices.to_vec(),
                None => [0, 1]
                    .map(|_| format!("answer {}", self.answered.fetch_add(1, Ordering::Relaxed)))
                    .to_vec(),
            };
            if dice.once_in(3) {
                let (first, second) = (&texts[0], &texts[1]);
                let both =
                    tokio::join!(self.send_answer(id, action, first), self.send_answer(id, action, second));
                if both.0? && both.1? {
                    self.violations.note(format!("two different answers of {action} were accepted"));
                }
            } else {
                self.send_answer(id, action, &texts[0]).await?;
            }
        }
        Ok(())
    }

    /// Sends a result, a decision or an answer. Returns whether it was accepted.
    async fn send_answer(&self, id: &str, action: &str, text: &str) -> anyhow::Result<bool> {
        let event = if DECISIONS.contains(&text) {
            json!({ "type": "user.tool_confirmation", "action_id": action, "decision": text })
        } else if LABELS.contains(&text) {
            json!({ "type": "user.answer", "action_id": action, "answers": [{ "labels": [text] }] })
        } else {
            let content = json!([{ "type": "text", "text": text }]);
            json!({ "type": "user.custom_tool_result", "action_id": action, "content": content })
        };
        let (path, body) = (format!("/sessions/{id}/events"), json!({ "events": [event] }));
        let sent = self.client.send_unless(&self.violations, Method::POST, &path, Some(&body), &LATE).await?;
        let is_accepted = sent.is_some();
        if is_accepted {
            self.answers.0.lock().expect("no driver panics").insert(action.to_owned(), text.to_owned());
        }
        Ok(is_accepted)
    }
}

/// The actions of one turn, as its log has them.
#[derive(Default)]
pub struct Actions<'a>(BTreeMap<&'a str, Action<'a>>);

struct Action<'a> {
    call: &'a str,
    kind: &'a str,
    /// Its text, decision or label; or the reason why it was closed.
    end: Option<Result<&'a str, &'a str>>,
}

impl<'a> Actions<'a> {
    /// Takes an event; returns what is wrong with it.
    pub fn take(&mut self, event: &'a Event) -> Option<String> {
        let (id, end) = match event.kind.as_str() {
            "action.required" => {
                let action = Action { call: event.text("call_id"), kind: event.text("kind"), end: None };
                let is_known = self.0.insert(event.text("id"), action).is_some();
                return is_known.then(|| format!("{} is opened twice", event.text("id")));
            }
            "action.closed" => (event.text("action_id"), Err(event.text("reason"))),
            "user.tool_confirmation" => (event.text("action_id"), Ok(event.text("decision"))),
            "user.answer" => {
                let label = event.body["answers"][0]["labels"][0].as_str().unwrap_or_default();
                (event.text("action_id"), Ok(label))
            }
            _ => {
                let text = event.body["content"][0]["text"].as_str().unwrap_or_default();
                (event.text("action_id"), Ok(text))
            }
        };
        match self.0.get_mut(id) {
            Some(action) if action.end.is_none() => {
                action.end = Some(end);
                None
            }
            _ => Some(format!("{id} ends twice, or before it is opened")),
        }
    }

    /// Whether nobody answered the action of this call in time.
    pub fn is_expired(&self, call: &str) -> bool {
        self.of(call).is_some_and(|action| action.kind == "tool_result" && action.end == Some(Err("expired")))
    }

    /// Returns what a result says that the end of its action does not.
    pub fn contradiction(&self, result: &Event) -> Option<String> {
        let (call, outcome) = (result.text("call_id"), result.text("outcome"));
        let Action { end, kind, .. } = *self.of(call)?;
        let fits = match end {
            Some(Ok("once")) if kind == "confirmation" => true,
            _ if kind == "confirmation" => outcome == "not_run",
            Some(Ok(text)) => outcome == "unknown" || (outcome == "ran" && result.text("output") == text),
            Some(Err("expired")) if kind == "tool_result" => outcome == "unknown",
            // It is withdrawn with its turn, in the same append.
            Some(Err(_)) | None => outcome == "not_run",
        };
        (!fits).then(|| format!("{call} is logged as {outcome}, and its action ended with {end:?}"))
    }

    /// Returns the answers, by their actions.
    pub fn answers(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.iter().filter_map(|(id, action)| Some((*id, action.end?.ok()?)))
    }

    /// Returns the number of actions that expired.
    pub fn expired(&self) -> u64 {
        self.0.values().filter(|action| action.end == Some(Err("expired"))).count() as u64
    }

    fn of(&self, call: &str) -> Option<&Action<'a>> {
        self.0.values().find(|action| action.call == call)
    }
}
