//! Conversation history, as a pure function of the log.
//!
//! Its size is bounded: one that no model can read is dropped. Every prefix of every log gives a conversation that a provider accepts: each call has a result
//! (a synthetic one if a crash lost the real one), results are in the order of their calls, and
//! input is placed where a turn consumed it.

use std::mem;

use serde::{Deserialize, Serialize};

use super::{
    sizes::{added_bytes, block_bytes, message_bytes, result_bytes},
    waiting_input::WaitingInput,
};
use crate::{
    base::{
        Timestamp,
        limit::{COMPACTION_BYTES, CONVERSATION_BYTES_MAX},
    },
    domain::{
        Event, Message, TurnId,
        content::Content,
        conversation::{Block, NO_OUTPUT},
        event::{
            Body, RejectedOutput, StepCompleted, action_events, caller_events, error_events, informational,
            mcp_events,
        },
        tool::ToolResult,
    },
};

/// Synthetic result of a call that has no result in the log.
const LOST_RESULT: &str = "The result of this call was lost; its outcome is unknown.";

/// Message to a model whose turn ended with an error after its response, and is retried.
const RETRIED: &str = "The turn ended with an error after your last response. Continue.";

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
    pub(super) messages: Vec<Placed>,
    /// Approximate memory of all texts and blocks, in bytes.
    pub(super) bytes: usize,
    /// Its size, as far as a model counted it.
    pub(super) size: HistorySize,
    /// Input that no turn has consumed yet.
    input: WaitingInput,
    /// The turn whose responses are being processed.
    running: Option<TurnId>,
    /// `seq` of the first start of that turn; of one that ended before it started and was retried, that of its end.
    pub(super) running_from: i64,
    /// The last turn that ended, and the `seq` from which its input is in the history.
    ended: Option<(TurnId, i64)>,
    /// Time of the newest response.
    #[serde(with = "time::serde::rfc3339::option")]
    last_step_at: Option<Timestamp>,
    /// Calls of the last response and their results, in its order.
    pub(super) calls: Vec<(String, Option<ToolResult>)>,
    /// `seq` of that response.
    calls_seq: i64,
}

/// A message at its place in the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Placed {
    /// `seq` of the event that placed it; of results, that of their step.
    pub seq: i64,
    pub message: Message,
}

/// Size of a history in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HistorySize {
    /// The provider's count at the newest response.
    pub counted: u64,
    /// Bytes of what has come since.
    pub bytes_since: usize,
}

impl Conversation {
    /// Creates an empty conversation; see [`build`].
    pub fn new(objects: bool) -> Self {
        Self { objects, ..Self::default() }
    }

    /// Returns the messages for a model now; calls without a result get a synthetic one.
    pub fn messages(&self) -> Vec<Message> {
        let open = (!self.calls.is_empty()).then(|| settled(self.calls.clone()));
        self.messages.iter().map(|placed| placed.message.clone()).chain(open).collect()
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
            (self.messages, self.input, self.calls) = Default::default();
            return;
        }
        match &event.draft.body {
            Body::UserMessage { text, input, steers, content, .. } => {
                let text = match input {
                    Some(object) if self.objects => object.to_string(),
                    Some(_) | None => text.clone(),
                };
                if let Some(turn) = event.draft.turn_id {
                    let message = Message::User { text, content: content.clone() };
                    let free_bytes = COMPACTION_BYTES.saturating_sub(self.bytes);
                    self.bytes += self.input.add(turn, (event.seq, *steers), message, free_bytes);
                }
            }
            Body::TurnStarted { turn_id, .. } => {
                if self.running.replace(*turn_id) != Some(*turn_id) {
                    let before = self.ended.filter(|(turn, _)| turn == turn_id);
                    self.running_from = before.map_or(event.seq, |(_, from)| from);
                }
                self.take_input(*turn_id, event.seq);
            }
            Body::TurnRetried { turn_id, .. } => self.retry_turn(*turn_id, event.seq),
            Body::TurnSteered { from_turn_id, seqs, .. } => self.take_steers(*from_turn_id, seqs, event.seq),
            Body::TurnCompleted(completed) => self.end_turn(completed.turn_id, event.seq),
            Body::StepCompleted(step) if step.purpose.is_some() => {}
            Body::StepCompleted(step) => self.take_step(step, event),
            Body::ToolResult { call_id, output, is_error, content, .. } => {
                self.answer(call_id, output, *is_error, content);
            }
            Body::OutputRejected(RejectedOutput { call_id: None, .. }) => {
                self.say(vec![Message::user(NO_OUTPUT)], event.seq);
            }
            Body::HistoryCompacted(compacted) => self.compact(compacted),
            Body::HistoryPruned(pruned) => self.prune(pruned),
            Body::SessionCreated(_)
            | caller_events!()
            | Body::SessionRejected { .. }
            | Body::ExecStarted { .. }
            | Body::SandboxRotationFailed { .. }
            | Body::TurnCancelRequested { .. }
            | Body::AgentMessage { .. }
            | Body::AgentThinking { .. }
            | Body::OutputRejected(_)
            | Body::HistoryCompactionRequested(_)
            | Body::HistoryCompactionFailed(_)
            | Body::StepAborted(_)
            | Body::ToolCall { .. }
            | Body::ExecCompleted { .. }
            | Body::TurnWaiting { .. }
            | Body::TurnResumed { .. }
            | action_events!()
            | error_events!()
            | mcp_events!()
            | informational!() => {}
        }
    }

    fn take_step(&mut self, step: &StepCompleted, event: &Event) {
        self.settle();
        self.count(step, event.ts);
        if step.raw.is_empty() && step.blocks.is_empty() {
            return;
        }
        (self.calls, self.calls_seq) = (calls(&step.blocks), event.seq);
        let message = Message::Assistant {
            provider: step.provider.clone(),
            raw: step.raw.clone(),
            blocks: step.blocks.clone(),
        };
        self.messages.push(Placed { seq: event.seq, message });
    }

    /// Notes how many tokens the history has, by the usage of a response, which is part of it now. An imported one has
    /// none.
    fn count(&mut self, step: &StepCompleted, at: Timestamp) {
        match step.usage.tokens() {
            0 => self.size.bytes_since += step.blocks.iter().map(block_bytes).sum::<usize>(),
            counted => self.size = HistorySize { counted, bytes_since: 0 },
        }
        self.last_step_at = Some(at);
    }

    /// Returns the time of the newest response.
    pub fn last_step_at(&self) -> Option<Timestamp> {
        self.last_step_at
    }

    fn answer(&mut self, call_id: &str, output: &str, is_error: bool, content: &[Content]) {
        let open = self.calls.iter_mut().find(|(id, result)| id == call_id && result.is_none());
        if let Some((id, result)) = open {
            let call_id = id.clone();
            let answer =
                ToolResult { call_id, output: output.to_owned(), is_error, content: content.to_vec() };
            self.size.bytes_since += result_bytes(&answer);
            *result = Some(answer);
        }
    }

    /// Places the input of a turn that ended before it started. It never goes between the steps of
    /// another turn, because the worker of those steps does not know of it.
    fn end_turn(&mut self, turn: TurnId, seq: i64) {
        if self.running.is_some_and(|running| running != turn) {
            self.input.postpone(turn);
            return;
        }
        let from = if self.running.take().is_some() { self.running_from } else { seq };
        self.ended = Some((turn, from));
        // The next turn may need no output.
        self.messages.pop_if(|last| matches!(&last.message, Message::User { text, .. } if text == NO_OUTPUT));
        self.take_input(turn, seq);
        let postponed = self.input.take_postponed();
        self.say(postponed, seq);
    }

    /// A model continues after a message of a user, or after results.
    fn retry_turn(&mut self, turn: TurnId, seq: i64) {
        self.settle();
        let Some((_, from)) = self.ended.filter(|(ended, _)| *ended == turn) else { return };
        let is_own = |last: &&Placed| last.seq >= from && matches!(last.message, Message::Assistant { .. });
        if self.messages.last().as_ref().is_some_and(is_own) {
            self.say(vec![Message::user(RETRIED)], seq);
        }
    }

    fn take_input(&mut self, turn: TurnId, seq: i64) {
        // The input of a resumed turn is already in the history.
        let input = self.input.take(turn);
        self.say(input, seq);
    }

    /// Places the messages that steer the running turn.
    fn take_steers(&mut self, from: TurnId, seqs: &[i64], seq: i64) {
        let read = self.input.take_some(from, seqs);
        self.say(read, seq);
    }

    #[cfg(test)]
    pub(super) fn run_for_test(&mut self, from_seq: i64) {
        (self.running, self.running_from) = (Some(crate::base::Origin::system().id()), from_seq);
    }

    /// Whether a turn runs.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns whether a message of another turn steers this one.
    pub(super) fn steers(&self, turn: TurnId) -> bool {
        self.input.steers(turn)
    }

    fn say(&mut self, messages: Vec<Message>, seq: i64) {
        if !messages.is_empty() {
            self.settle();
            self.size.bytes_since += messages.iter().map(message_bytes).sum::<usize>();
            self.messages.extend(messages.into_iter().map(|message| Placed { seq, message }));
            self.bound_inputs();
        }
    }

    /// Adds the results of the last response's calls before any other message.
    fn settle(&mut self) {
        if !self.calls.is_empty() {
            let message = settled(mem::take(&mut self.calls));
            self.messages.push(Placed { seq: self.calls_seq, message });
        }
    }
}

fn settled(calls: Vec<(String, Option<ToolResult>)>) -> Message {
    let results = calls.into_iter().map(|(call_id, result)| {
        let lost = |call_id| ToolResult {
            call_id,
            output: LOST_RESULT.to_owned(),
            is_error: true,
            content: Vec::new(),
        };
        result.unwrap_or_else(|| lost(call_id))
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
