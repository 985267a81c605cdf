//! Conversation history, as a pure function of the log.
//!
//! Its size is bounded: one that no model can read is dropped. Every prefix of every log gives a conversation that a provider accepts: each call has a result
//! (a synthetic one if a crash lost the real one), results are in the order of their calls, and
//! input is placed where a turn consumed it.

use std::{collections::BTreeMap, mem};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    base::limit::CONVERSATION_BYTES_MAX,
    domain::{
        Event, Message, TurnId,
        conversation::{Block, NO_OUTPUT},
        event::{Body, StepCompleted, action_events, caller_events, informational},
        tool::ToolResult,
    },
};

/// Synthetic result of a call that has no result in the log.
const LOST_RESULT: &str = "The result of this call was lost; its outcome is unknown.";

/// Builds the conversation of `log`.
///
/// `objects` passes input objects to the model as JSON; otherwise the model gets their text.
pub fn build(log: &[Event], objects: bool) -> Vec<Message> {
    let mut conversation = Conversation::new(objects);
    log.iter().for_each(|event| conversation.take(event));
    conversation.messages()
}

/// Incrementally built conversation: each event is processed once, so that a step of a long session
/// costs only its new events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    objects: bool,
    messages: Vec<Message>,
    /// Approximate memory of all texts and blocks, in bytes.
    bytes: usize,
    /// Input that no turn has consumed yet, by its turn.
    waiting: BTreeMap<TurnId, Vec<Waiting>>,
    /// The turn whose responses are being processed.
    running: Option<TurnId>,
    /// Input of turns that ended while another turn ran; placed after that turn.
    later: Vec<String>,
    /// Calls of the last response and their results, in its order.
    calls: Vec<(String, Option<ToolResult>)>,
}

/// A message that no turn has consumed yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    seq: i64,
    text: String,
    steers: bool,
}

impl Conversation {
    /// Creates an empty conversation; see [`build`].
    pub fn new(objects: bool) -> Self {
        Self { objects, ..Self::default() }
    }

    /// Returns the messages for a model now; calls without a result get a synthetic one.
    pub fn messages(&self) -> Vec<Message> {
        let open = (!self.calls.is_empty()).then(|| settled(self.calls.clone()));
        self.messages.iter().cloned().chain(open).collect()
    }

    /// Returns whether the conversation is too large for any model. It is then empty and stays so.
    pub fn is_exhausted(&self) -> bool {
        self.bytes > CONVERSATION_BYTES_MAX
    }

    /// Returns the approximate memory of the messages, in bytes.
    pub fn bytes(&self) -> usize {
        if self.is_exhausted() { 0 } else { self.bytes }
    }

    /// Processes the next event of the log.
    pub fn take(&mut self, event: &Event) {
        self.bytes += added_bytes(&event.draft.body);
        if self.is_exhausted() {
            (self.messages, self.waiting, self.later, self.calls) = Default::default();
            return;
        }
        match &event.draft.body {
            Body::UserMessage { text, input, steers, .. } => {
                let text = match input {
                    Some(object) if self.objects => object.to_string(),
                    Some(_) | None => text.clone(),
                };
                if let Some(turn) = event.draft.turn_id {
                    let waiting = Waiting { seq: event.seq, text, steers: *steers };
                    self.waiting.entry(turn).or_default().push(waiting);
                }
            }
            Body::TurnStarted { turn_id, .. } => {
                self.running = Some(*turn_id);
                self.take_input(*turn_id);
            }
            Body::TurnSteered { from_turn_id, seqs, .. } => self.take_steers(*from_turn_id, seqs),
            Body::TurnCompleted(completed) => self.end_turn(completed.turn_id),
            Body::StepCompleted(step) => {
                self.settle();
                if step.raw.is_empty() && step.blocks.is_empty() {
                    return;
                }
                self.calls = calls(&step.blocks);
                self.messages.push(Message::Assistant {
                    provider: step.provider.clone(),
                    raw: step.raw.clone(),
                    blocks: step.blocks.clone(),
                });
            }
            Body::ToolResult { call_id, output, is_error, .. } => self.answer(call_id, output, *is_error),
            Body::OutputRejected { call_id: None, .. } => self.say(vec![NO_OUTPUT.to_owned()]),
            Body::SessionCreated(_)
            | caller_events!()
            | Body::SessionRejected { .. }
            | Body::ExecStarted { .. }
            | Body::SandboxRotationFailed { .. }
            | Body::TurnCancelRequested { .. }
            | Body::AgentMessage { .. }
            | Body::AgentThinking { .. }
            | Body::OutputRejected { .. }
            | Body::StepAborted(_)
            | Body::ToolCall { .. }
            | Body::ExecCompleted { .. }
            | Body::TurnWaiting { .. }
            | Body::TurnResumed { .. }
            | action_events!()
            | Body::ErrorModel(_)
            | Body::ErrorRuntime(_)
            | Body::ErrorTask(_)
            | informational!() => {}
        }
    }

    fn answer(&mut self, call_id: &str, output: &str, is_error: bool) {
        let open = self.calls.iter_mut().find(|(id, result)| id == call_id && result.is_none());
        if let Some((id, result)) = open {
            *result = Some(ToolResult { call_id: id.clone(), output: output.to_owned(), is_error });
        }
    }

    /// Places the input of a turn that ended before it started. It never goes between the steps of
    /// another turn, because the worker of those steps does not know of it.
    fn end_turn(&mut self, turn: TurnId) {
        if self.running.is_some_and(|running| running != turn) {
            self.later.extend(self.waiting.remove(&turn).into_iter().flatten().map(|waiting| waiting.text));
            return;
        }
        self.running = None;
        // The next turn may need no output.
        let asks_for_output =
            |message: &mut Message| matches!(message, Message::User { text } if text == NO_OUTPUT);
        self.messages.pop_if(asks_for_output);
        self.take_input(turn);
        let later = mem::take(&mut self.later);
        self.say(later);
    }

    fn take_input(&mut self, turn: TurnId) {
        // The input of a resumed turn is already in the history.
        if let Some(waiting) = self.waiting.remove(&turn) {
            self.say(waiting.into_iter().map(|waiting| waiting.text).collect());
        }
    }

    /// Places the messages that steer the running turn.
    fn take_steers(&mut self, from: TurnId, seqs: &[i64]) {
        let Some(waiting) = self.waiting.remove(&from) else { return };
        let (read, left): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiting| seqs.contains(&waiting.seq));
        if !left.is_empty() {
            self.waiting.insert(from, left);
        }
        self.say(read.into_iter().map(|waiting| waiting.text).collect());
    }

    /// Returns whether a message of another turn steers this one.
    pub(super) fn steers(&self, turn: TurnId) -> bool {
        let others = self.waiting.iter().filter(|(queued, _)| **queued != turn);
        others.flat_map(|(_, waiting)| waiting).any(|waiting| waiting.steers)
    }

    fn say(&mut self, texts: Vec<String>) {
        if !texts.is_empty() {
            self.settle();
            self.messages.extend(texts.into_iter().map(|text| Message::User { text }));
        }
    }

    /// Adds the results of the last response's calls before any other message.
    fn settle(&mut self) {
        if !self.calls.is_empty() {
            self.messages.push(settled(mem::take(&mut self.calls)));
        }
    }
}

/// Memory that the body of an event adds to the conversation, in bytes.
fn added_bytes(body: &Body) -> usize {
    match body {
        Body::UserMessage { text, input, .. } => text.len().max(input.as_ref().map_or(0, value_bytes)),
        Body::StepCompleted(step) => step_bytes(step),
        Body::ToolResult { output, .. } => output.len(),
        _ => 0,
    }
}

fn step_bytes(step: &StepCompleted) -> usize {
    let block = |block: &Block| match block {
        Block::Text { text } | Block::Thinking { text } => text.len(),
        Block::ToolCall(call) => value_bytes(&call.input),
    };
    step.raw.iter().map(value_bytes).sum::<usize>() + step.blocks.iter().map(block).sum::<usize>()
}

fn value_bytes(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + value_bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inner
}

fn settled(calls: Vec<(String, Option<ToolResult>)>) -> Message {
    let results = calls.into_iter().map(|(call_id, result)| {
        result.unwrap_or_else(|| ToolResult { call_id, output: LOST_RESULT.to_owned(), is_error: true })
    });
    Message::Results { results: results.collect() }
}

fn calls(blocks: &[Block]) -> Vec<(String, Option<ToolResult>)> {
    blocks
        .iter()
        .filter_map(|block| match block {
            Block::ToolCall(call) => Some((call.call_id.clone(), None)),
            Block::Text { .. } | Block::Thinking { .. } => None,
        })
        .collect()
}
