//! Generated logs, as callers, workers and crashes could have written them.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use sojourn::{
    base::{Origin, Timestamp, clock::ManualClock, entropy::SeededEntropy},
    domain::{
        Actor, Block, Event, SandboxId, StopReason, TurnId, Usage,
        content::{Content, text_of},
        event::{Body, CancelMode, Draft, Failure, Outcome, StepCompleted, TurnCompleted},
        tool::{MALFORMED_INPUT, Replay, ToolCall},
        turn::{TurnError, YieldReason},
    },
};

use crate::fake::{dialect, file_parts};

/// An action that appends to a log.
#[derive(Clone, Debug)]
pub enum Move {
    /// A caller sends a message.
    Steer(String, Option<Value>),
    /// A caller sends a message with files.
    Attach(Vec<Content>),
    /// A worker starts the queued turn, or takes over the running one.
    Start,
    /// The model answers, when a turn is running.
    Answer { provider: &'static str, says: Vec<Said>, stop: StopReason },
    /// The model call fails.
    Fail,
    /// One of the open calls gets its result, in any order.
    Result { which: usize, output: String, is_error: bool, content: Vec<Content> },
    /// An event that is not sent to the model.
    Aside(u8),
    /// The running turn ends, with or without results for its open calls.
    End { settles: bool, reason: YieldReason },
    /// The queued turn ends before it starts.
    EndQueued,
    /// A caller cancels.
    Cancel,
    /// A caller retries the last turn.
    Retry,
}

/// One block of a response.
#[derive(Clone, Debug)]
pub enum Said {
    Text(&'static str),
    Thinking,
    Call(&'static str, Value),
}

/// A log, and the places of its model calls.
#[derive(Default)]
pub struct Log {
    pub events: Vec<Event>,
    pub questions: Vec<Question>,
}

/// A request to the model, built from the first `at` events.
pub struct Question {
    pub at: usize,
    pub turn: usize,
}

fn words() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", " ", "\n", "Fix it.", "ä \u{0}", "{}"]).prop_map(str::to_owned)
}

fn parts() -> impl Strategy<Value = Vec<Content>> {
    let part = prop_oneof![
        3 => (0..4_u8).prop_map(file_parts::sample),
        1 => prop::sample::select(vec![" ", "See this:"]).prop_map(|text| Content::Text { text: text.to_owned() }),
    ];
    prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(part, 0..4)]
}

fn said() -> impl Strategy<Value = Said> {
    let tool = prop::sample::select(vec!["bash", "read", "unknown tool"]);
    let input = prop::sample::select(vec![
        json!({}),
        json!({"command": "ls"}),
        json!({MALFORMED_INPUT: "{\"comm"}),
        json!("a text"),
        Value::Null,
    ]);
    prop_oneof![
        prop::sample::select(vec!["", " ", "Done.", "ä"]).prop_map(Said::Text),
        Just(Said::Thinking),
        (tool, input).prop_map(|(tool, input)| Said::Call(tool, input)),
    ]
}

fn answer() -> impl Strategy<Value = Move> {
    let stops = vec![
        StopReason::EndTurn,
        StopReason::ToolUse,
        StopReason::MaxTokens,
        StopReason::Refusal,
        StopReason::Pause,
    ];
    let provider = prop::sample::select(vec!["anthropic", "openai", "scripted"]);
    (provider, prop::collection::vec(said(), 0..5), prop::sample::select(stops))
        .prop_map(|(provider, says, stop)| Move::Answer { provider, says, stop })
}

/// Moves in any order; those that do not fit the state of the log do nothing.
pub fn moves() -> impl Strategy<Value = Vec<Move>> {
    let input = prop::option::of(Just(json!({"task": "x"})));
    let reasons = vec![YieldReason::Completed, YieldReason::Canceled, YieldReason::Error];
    let next = prop_oneof![
        3 => (words(), input).prop_map(|(text, input)| Move::Steer(text, input)),
        4 => Just(Move::Start),
        6 => answer(),
        1 => Just(Move::Fail),
        1 => parts().prop_map(Move::Attach),
        8 => (0..8_usize, words(), any::<bool>(), parts()).prop_map(|(which, output, is_error, content)| {
            Move::Result { which, output, is_error, content }
        }),
        1 => (0..4_u8).prop_map(Move::Aside),
        2 => (any::<bool>(), prop::sample::select(reasons))
            .prop_map(|(settles, reason)| Move::End { settles, reason }),
        1 => Just(Move::EndQueued),
        1 => Just(Move::Cancel),
        2 => Just(Move::Retry),
    ];
    prop::collection::vec(next, 1..40)
}

fn steer(text: &str) -> Move {
    Move::Steer(text.to_owned(), None)
}

fn calls(provider: &'static str) -> Move {
    let says = vec![Said::Thinking, Said::Text("I look."), Said::Call("bash", json!({"command": "ls"}))];
    Move::Answer { provider, says, stop: StopReason::ToolUse }
}

fn ran() -> Move {
    Move::Result { which: 0, output: "it ran".to_owned(), is_error: false, content: Vec::new() }
}

/// A turn of three steps.
pub fn plain_turn() -> Vec<Move> {
    let says = vec![Said::Text("Done.")];
    let last = Move::Answer { provider: "openai", says, stop: StopReason::EndTurn };
    vec![steer("first"), Move::Start, calls("anthropic"), ran(), calls("openai"), ran(), last]
}

/// A turn that failed after two steps and was retried, with two more steps.
pub fn retried_turn() -> Vec<Move> {
    let fails = Move::End { settles: true, reason: YieldReason::Error };
    let two = || [calls("anthropic"), ran(), calls("anthropic"), ran()];
    let (first, second) = ([steer("the task"), Move::Start], [fails, Move::Retry, Move::Start]);
    first.into_iter().chain(two()).chain(second).chain(two()).collect()
}

/// A caller cancels while one turn runs a tool and another is queued.
pub fn canceled_beside_a_running_turn() -> Vec<Move> {
    let end = Move::End { settles: true, reason: YieldReason::Canceled };
    vec![steer("first"), Move::Start, calls("anthropic"), steer("second"), Move::Cancel, ran(), end]
}

struct Writer {
    log: Log,
    origin: Origin,
    queued: Option<TurnId>,
    running: Option<(TurnId, i32)>,
    /// The last turn that ended, if it failed, and its attempt.
    failed: Option<(TurnId, i32)>,
    /// Attempts of the queued turn before its retry.
    attempts: i32,
    open: Vec<ToolCall>,
    turns: usize,
    steps: u64,
}

impl Log {
    /// The log that these moves write.
    pub fn of(moves: Vec<Move>) -> Self {
        let clock = ManualClock::at(Timestamp::UNIX_EPOCH);
        let origin = Origin::new(Arc::new(clock), Arc::new(SeededEntropy::new(7)));
        let mut writer = Writer {
            log: Self::default(),
            origin,
            queued: None,
            running: None,
            failed: None,
            attempts: 0,
            open: Vec::new(),
            turns: 0,
            steps: 0,
        };
        for next in moves {
            writer.take(next);
        }
        writer.log
    }

    /// The first `at` events, followed by a new turn.
    pub fn and_then_steered(&self, at: usize) -> Vec<Event> {
        let mut events = self.events[..at].to_vec();
        let origin = Origin::system();
        let turn: TurnId = origin.id();
        let bodies = [
            Body::UserMessage {
                text: "go on".to_owned(),
                input: None,
                envelope: None,
                steers: false,
                output_schema: None,
                content: Vec::new(),
            },
            Body::TurnStarted {
                turn_id: turn,
                input_from_seq: 1,
                input_to_seq: 1,
                attempt: 1,
                fee_micros: 0,
                is_retry: false,
                agent_seq: 0,
            },
        ];
        for body in bodies {
            let draft = draft(&origin, Some(turn), body);
            events.push(Event { seq: events.len() as i64 + 1, ts: Timestamp::UNIX_EPOCH, draft });
        }
        events
    }
}

fn draft(origin: &Origin, turn_id: Option<TurnId>, body: Body) -> Draft {
    let level = body.level();
    Draft { id: origin.id(), actor: Actor::agent(), level, turn_id, step_id: None, refs: Map::new(), body }
}

impl Writer {
    fn take(&mut self, next: Move) {
        let running = self.running.map(|(id, _)| id);
        match next {
            Move::Steer(text, input) => {
                let turn = *self.queued.get_or_insert_with(|| self.origin.id());
                self.write(
                    Some(turn),
                    Body::UserMessage {
                        text,
                        input,
                        envelope: None,
                        steers: false,
                        output_schema: None,
                        content: Vec::new(),
                    },
                );
            }
            Move::Attach(content) => {
                let turn = *self.queued.get_or_insert_with(|| self.origin.id());
                let text = text_of(&content);
                self.write(
                    Some(turn),
                    Body::UserMessage {
                        text,
                        input: None,
                        envelope: None,
                        steers: false,
                        output_schema: None,
                        content,
                    },
                );
            }
            Move::Start => self.start(),
            Move::Answer { provider, says, stop } if running.is_some() && self.open.is_empty() => {
                self.answer(provider, says, stop);
            }
            Move::Fail if running.is_some() => {
                let failure = Failure {
                    code: "model_unavailable".to_owned(),
                    message: String::new(),
                    model: None,
                    retry_at: None,
                };
                self.write(running, Body::ErrorModel(failure));
            }
            Move::Result { which, output, is_error, content } if !self.open.is_empty() => {
                let call = self.open.remove(which % self.open.len());
                self.result(call, output, is_error, content);
            }
            Move::Aside(kind) => self.aside(kind),
            Move::End { settles, reason } if running.is_some() => self.end(settles, reason),
            Move::EndQueued if running.is_none() => self.end_queued(),
            Move::Cancel => {
                self.end_queued();
                if let Some(turn_id) = running {
                    self.write(running, Body::TurnCancelRequested { turn_id, mode: CancelMode::Cancel });
                }
            }
            Move::Retry if running.is_none() && self.queued.is_none() => self.retry(),
            Move::Retry => {}
            Move::Answer { .. } | Move::Fail | Move::Result { .. } | Move::End { .. } | Move::EndQueued => {}
        }
    }

    fn start(&mut self) {
        let (turn_id, attempt) = match (self.running, self.queued) {
            (Some((id, attempt)), _) => (id, attempt + 1),
            (None, Some(id)) => {
                self.queued = None;
                self.turns += 1;
                (id, std::mem::take(&mut self.attempts) + 1)
            }
            (None, None) => return,
        };
        self.running = Some((turn_id, attempt));
        let body = Body::TurnStarted {
            turn_id,
            input_from_seq: 1,
            input_to_seq: 1,
            attempt,
            fee_micros: 0,
            is_retry: false,
            agent_seq: 0,
        };
        self.write(Some(turn_id), body);
    }

    fn answer(&mut self, provider: &'static str, says: Vec<Said>, stop: StopReason) {
        self.steps += 1;
        self.log.questions.push(Question { at: self.log.events.len(), turn: self.turns });
        let steps = self.steps;
        let block = |(at, said): (usize, Said)| match said {
            Said::Text(text) => Block::Text { text: text.to_owned() },
            Said::Thinking => Block::Thinking { text: "Hm.".to_owned() },
            Said::Call(tool, input) => {
                // An adapter has made name and arguments sendable for its own provider.
                let foreign = provider == "scripted";
                let tool = if foreign { tool.to_owned() } else { tool.replace(' ', "_") };
                let input =
                    if foreign || input.is_object() { input } else { json!({MALFORMED_INPUT: input}) };
                Block::ToolCall(ToolCall { call_id: format!("c{steps}_{at}"), tool, input })
            }
        };
        let blocks: Vec<_> = says.into_iter().enumerate().map(block).collect();
        let completed = StepCompleted {
            index: steps,
            provider: provider.to_owned(),
            model: "m-1".to_owned(),
            raw: dialect::raw(provider, &blocks),
            blocks: blocks.clone(),
            stop,
            usage: Usage::default(),
            cost_micros: None,
            price_version: None,
            attempt: 1,
            duration_ms: 1,
            purpose: None,
        };
        let turn = self.running.map(|(id, _)| id);
        self.write(turn, Body::StepCompleted(Box::new(completed)));
        for block in blocks {
            let Block::ToolCall(call) = block else { continue };
            let body = Body::ToolCall {
                call_id: call.call_id.clone(),
                tool: call.tool.clone(),
                input: call.input.clone(),
                policy: None,
                rule: None,
                repeats: None,
                args_summary: String::new(),
                replay: Replay::Unsafe,
            };
            self.write(turn, body);
            self.open.push(call);
        }
    }

    fn result(&mut self, call: ToolCall, output: String, is_error: bool, content: Vec<Content>) {
        let outcome = if is_error { Outcome::Unknown } else { Outcome::Ran };
        let (call_id, tool) = (call.call_id, call.tool);
        let turn = self.running.map(|(id, _)| id);
        self.write(
            turn,
            Body::ToolResult { call_id, tool, output, is_error, outcome, duration_ms: 1, content },
        );
    }

    fn aside(&mut self, kind: u8) {
        let turn = self.running.map(|(id, _)| id);
        let sandbox_id: SandboxId = self.origin.id();
        let body = match kind {
            0 => Body::SandboxCreated { sandbox_id, duration_ms: 1 },
            1 => Body::SandboxLost { sandbox_id, reason: String::new() },
            2 => Body::LimitWarning { limit: "tokens".to_owned(), used: 8, allowed: 10, session_id: None },
            _ => Body::SessionUpdated {
                title: Some(None),
                slug: None,
                metadata: None,
                limits: None,
                agent_snapshot: None,
            },
        };
        self.write(turn, body);
    }

    fn end(&mut self, settles: bool, reason: YieldReason) {
        for call in std::mem::take(&mut self.open) {
            if settles {
                self.result(call, "It was stopped.".to_owned(), true, Vec::new());
            }
        }
        if let Some((turn, attempt)) = self.running.take() {
            self.write(Some(turn), completed(turn, reason));
            self.failed = (reason == YieldReason::Error).then_some((turn, attempt));
        }
    }

    fn retry(&mut self) {
        let Some((turn_id, attempts)) = self.failed.take() else { return };
        (self.queued, self.attempts) = (Some(turn_id), attempts);
        self.write(Some(turn_id), Body::TurnRetried { turn_id, attempt: attempts + 1 });
    }

    fn end_queued(&mut self) {
        if let Some(turn) = self.queued.take() {
            (self.failed, self.attempts) = (None, 0);
            self.write(Some(turn), completed(turn, YieldReason::Canceled));
        }
    }

    fn write(&mut self, turn: Option<TurnId>, body: Body) {
        let seq = self.log.events.len() as i64 + 1;
        let draft = draft(&self.origin, turn, body);
        self.log.events.push(Event { seq, ts: Timestamp::UNIX_EPOCH, draft });
    }
}

fn completed(turn_id: TurnId, yield_reason: YieldReason) -> Body {
    Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id,
        yield_reason,
        result_event_id: None,
        usage: Usage::default(),
        active_seconds: 0,
        error: (yield_reason == YieldReason::Error)
            .then(|| TurnError { code: "model_unavailable".to_owned(), message: String::new() }),
        output: None,
        output_repairs: 0,
        limit: None,
        failed: false,
    }))
}
