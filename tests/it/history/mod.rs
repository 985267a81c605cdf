//! Histories from any log can be sent: every prefix of every log gives a conversation that both providers
//! accept.
//!
//! Logs are generated as callers, workers and crashes could write them, also in orders that this version
//! would not write: old logs must stay readable.

mod fold;
mod log;

use proptest::prelude::*;
use serde_json::Value;
use sojourn::{
    domain::{
        Body, Event, Message,
        compaction::{Compacted, CompactionTrigger},
        conversation::{ModelOptions, ModelRequest, Thinking},
        log_fold::{self, Conversation},
        tool::{Replay, ToolSpec},
    },
    model,
};

use crate::fake::{dialect, file_parts, published};
use log::{Log, Move, moves};

fn request(history: Vec<Message>, thinks: bool) -> ModelRequest {
    let spec = ToolSpec {
        name: "bash".to_owned(),
        description: "Runs a command.".to_owned(),
        input_schema: serde_json::json!({"type": "object", "properties": {}}),
        replay: Replay::Unsafe,
    };
    let thinking = thinks.then_some(Thinking { budget_tokens: 1_500 });
    let files = file_parts::bytes_of(&history);
    ModelRequest {
        model: "claude-sonnet-4-5".to_owned(),
        system: "You repair things.".to_owned(),
        tools: vec![spec],
        history,
        max_tokens: 4_096,
        options: ModelOptions { thinking, ..ModelOptions::default() },
        files,
    }
}

/// Asserts that both providers accept the history, with thinking and without.
fn accepted(history: &[Message], at: usize) -> Result<(), TestCaseError> {
    dialect::check(history).map_err(|words| TestCaseError::fail(format!("{words} at {at}: {history:#?}")))?;
    for provider in dialect::PROVIDERS {
        for thinks in [false, true] {
            let checked = dialect::check_strictly(provider, &request(history.to_vec(), thinks));
            prop_assert!(checked.is_ok(), "{} refuses at {}: {:?}: {:#?}", provider, at, checked, history);
            published::write(provider, &model::encode(provider, &request(history.to_vec(), thinks)));
        }
    }
    Ok(())
}

/// Events as read back from the table.
fn read_back(log: &[Event]) -> Vec<Event> {
    let stored = serde_json::to_string(log).expect("events are JSON");
    serde_json::from_str(&stored).expect("written events can be read")
}

fn hold(moves: Vec<Move>) -> Result<(), TestCaseError> {
    let log = Log::of(moves);
    for at in 1..=log.events.len() {
        // Request of a worker that takes over the session here, or of the next turn.
        let history = log_fold::build(&log.and_then_steered(at), false);
        accepted(&history, at)?;
    }
    // A worker that continues adds event by event, and calls the model in between.
    let mut conversation = Conversation::new(false);
    for (at, event) in log.events.iter().enumerate() {
        conversation.take(event);
        prop_assert_eq!(conversation.messages(), log_fold::build(&log.events[..=at], false));
    }
    let mut before: Option<(usize, Vec<Message>)> = None;
    for question in &log.questions {
        let history = log_fold::build(&log.events[..question.at], false);
        accepted(&history, question.at)?;
        let again = log_fold::build(&read_back(&log.events[..question.at]), false);
        for provider in dialect::PROVIDERS {
            let [one, two] =
                [&history, &again].map(|history| model::encode(provider, &request(history.clone(), false)));
            prop_assert_eq!(one, two, "equal logs give unequal requests");
        }
        if let Some((turn, earlier)) = before.replace((question.turn, history.clone()))
            && turn == question.turn
        {
            prop_assert!(history.starts_with(&earlier), "{:#?} does not begin with {:#?}", history, earlier);
        }
    }
    Ok(())
}

/// Messages of a body without the prompt cache marks, which move.
fn messages(provider: &str, history: &[Message]) -> Vec<Value> {
    let body: Value = serde_json::from_slice(&model::encode(provider, &request(history.to_vec(), false)))
        .expect("a body is JSON");
    let messages = body["messages"].as_array().or_else(|| body["input"].as_array());
    let mut messages = messages.expect("a body has messages").clone();
    let blocks = messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten();
    blocks.filter_map(Value::as_object_mut).for_each(|block| {
        block.remove("cache_control");
    });
    messages
}

#[test]
fn the_bytes_of_a_step_begin_with_those_of_the_step_before() {
    let log = Log::of(log::plain_turn());
    let bodies = |provider: &str| -> Vec<Vec<Value>> {
        let built = log.questions.iter().map(|question| log_fold::build(&log.events[..question.at], false));
        built.map(|history| messages(provider, &history)).collect()
    };
    assert_eq!(log.questions.len(), 3);
    for provider in dialect::PROVIDERS {
        for pair in bodies(provider).windows(2) {
            assert!(pair[1].starts_with(&pair[0]), "{provider}: {pair:#?}");
        }
    }
}

#[test]
fn a_summary_after_a_retry_keeps_the_input_of_the_turn() {
    let log = Log::of(log::retried_turn());
    let mut conversation = Conversation::new(false);
    log.events.iter().for_each(|event| conversation.take(event));
    let cut = conversation.cut(0).expect("a step is followed by another");
    let retried = log.events.iter().rfind(|event| matches!(event.draft.body, Body::TurnRetried { .. }));
    assert!(retried.is_some_and(|retried| retried.seq < cut.to_seq), "the cut is after the retry");
    let body = Body::HistoryCompacted(Box::new(Compacted {
        trigger: CompactionTrigger::Auto,
        before_tokens: 10_000,
        after_tokens: 2_000,
        to_seq: cut.to_seq,
        summary: "Two of four are done.".to_owned(),
    }));
    let mut event = log.events.last().expect("an event").clone();
    (event.seq, event.draft.body) = (event.seq + 1, body);
    conversation.take(&event);
    let said: Vec<_> = conversation
        .messages()
        .into_iter()
        .filter_map(|message| match message {
            Message::User { text, .. } => Some(text),
            Message::Assistant { .. } | Message::Results { .. } => None,
        })
        .collect();
    assert_eq!(said.len(), 2, "the summary and the input: {said:?}");
    assert!(said[0].contains("Two of four are done.") && said[1] == "the task", "{said:?}");
}

#[test]
fn input_of_a_canceled_turn_is_said_after_the_turn_that_ran() {
    let log = Log::of(log::canceled_beside_a_running_turn());
    let history = log_fold::build(&log.and_then_steered(log.events.len()), false);
    let said: Vec<&str> = history
        .iter()
        .map(|message| match message {
            Message::User { text, .. } => text.as_str(),
            Message::Assistant { .. } => "(answer)",
            Message::Results { results } => results[0].output.as_str(),
        })
        .collect();
    assert_eq!(said, ["first", "(answer)", "it ran", "second", "go on"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn every_prefix_of_every_log_is_sendable(moves in moves()) {
        hold(moves)?;
    }
}

fn cases() -> u32 {
    if std::env::var_os("SOJOURN_TEST_FULL").is_some() { 20_000 } else { 400 }
}
