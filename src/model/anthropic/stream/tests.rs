//! Tests of the stream parser: complete, truncated and malformed responses.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::sse::Frames;

fn frame(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default())
}

/// Thinking, a redacted block, text and two calls, as the provider sends them.
fn events() -> Vec<Value> {
    let start = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    vec![
        json!({"type": "message_start", "message": {"id": "msg_1", "usage": {
            "input_tokens": 7, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 90, "output_tokens": 1}}}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        json!({"type": "ping"}),
        delta(0, json!({"type": "thinking_delta", "thinking": "Let me "})),
        delta(0, json!({"type": "thinking_delta", "thinking": "see."})),
        delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
        stop(0),
        start(1, json!({"type": "redacted_thinking", "data": "ZGF0YQ=="})),
        stop(1),
        start(2, json!({"type": "text", "text": "", "citations": null})),
        delta(2, json!({"type": "text_delta", "text": "I look — "})),
        delta(2, json!({"type": "text_delta", "text": "now."})),
        stop(2),
        start(
            3,
            json!({"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}, "caller": {"type": "direct"}}),
        ),
        delta(3, json!({"type": "input_json_delta", "partial_json": ""})),
        delta(3, json!({"type": "input_json_delta", "partial_json": "{\"command\""})),
        delta(3, json!({"type": "input_json_delta", "partial_json": ": \"ls\"}"})),
        stop(3),
        start(4, json!({"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}})),
        stop(4),
        json!({"type": "something_new", "x": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
            "usage": {"output_tokens": 42}}),
        json!({"type": "message_stop"}),
    ]
}

fn bytes(events: &[Value]) -> Vec<u8> {
    events.iter().map(frame).collect::<String>().into_bytes()
}

fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Result<Answer, Fault>, Vec<Delta>) {
    let (mut frames, mut stream, mut deltas) = (Frames::default(), Stream::default(), Vec::new());
    for chunk in chunks {
        for frame in frames.push(chunk) {
            match stream.frame(&frame, &mut |delta| deltas.push(delta)) {
                Ok(false) => {}
                Ok(true) => return (stream.finish(), deltas),
                Err(fault) => return (Err(fault), deltas),
            }
        }
    }
    (stream.finish(), deltas)
}

fn answer(events: &[Value]) -> Result<Answer, Fault> {
    read([bytes(events).as_slice()]).0
}

/// Returns the deltas that a reader of a streaming response sees.
fn said(deltas: Vec<Delta>) -> Vec<Delta> {
    deltas.into_iter().filter(|delta| matches!(delta, Delta::Text { .. } | Delta::Thinking { .. })).collect()
}

#[test]
fn an_answer_keeps_the_blocks_of_the_provider_verbatim() {
    let (answer, deltas) = read([bytes(&events()).as_slice()]);
    let answer = answer.expect("a whole answer");
    let deltas = said(deltas);
    assert_eq!(
        serde_json::to_value(&answer.raw).expect("JSON"),
        json!([
            {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
            {"type": "text", "text": "I look — now.", "citations": null},
            {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls"}, "caller": {"type": "direct"}},
            {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
        ])
    );
    assert_eq!(answer.stop, StopReason::ToolUse);
    assert_eq!(answer.blocks[1], Block::Thinking { text: String::new() });
    assert_eq!(answer.tool_calls().count(), 2);
    let usage = Usage {
        input_tokens: 7,
        output_tokens: 42,
        cache_write_tokens: 5,
        cache_read_tokens: 90,
        ..Usage::default()
    };
    assert_eq!(answer.usage, usage);
    assert_eq!(deltas.len(), 4);
    assert_eq!(deltas[0], Delta::Thinking { index: 0, text: "Let me ".to_owned() });
    assert_eq!(deltas[3], Delta::Text { index: 2, text: "now.".to_owned() });
}

#[test]
fn a_stream_that_was_cut_anywhere_is_no_answer() {
    let all = bytes(&events());
    for end in 0..all.len() - 1 {
        let fault = read([&all[..end]]).0.expect_err("cut");
        assert!(matches!(fault, Fault::Unavailable { .. }), "cut at {end}: {fault:?}");
    }
}

#[test]
fn arguments_that_are_no_object_are_kept_as_text() {
    let mut cut = events();
    cut.remove(16);
    cut[20]["delta"]["stop_reason"] = json!("max_tokens");
    let answer = answer(&cut).expect("an answer that was truncated");
    assert_eq!(answer.stop, StopReason::MaxTokens);
    assert_eq!(answer.raw[3]["input"], json!({"_malformed": "{\"command\""}));
    assert_eq!(answer.tool_calls().next().expect("a call").input, answer.raw[3]["input"]);
}

#[test]
fn every_stop_reason_has_a_meaning() {
    use StopReason::{EndTurn, MaxTokens, Pause, Refusal, ToolUse};
    for (word, calls, stop) in [
        ("end_turn", false, EndTurn),
        ("stop_sequence", false, EndTurn),
        ("max_tokens", false, MaxTokens),
        ("model_context_window_exceeded", false, MaxTokens),
        ("refusal", false, Refusal),
        ("pause_turn", false, Pause),
        ("tool_use", true, ToolUse),
        ("something_new", false, EndTurn),
        ("something_new", true, ToolUse),
    ] {
        let mut events = events();
        if !calls {
            events.drain(13..20);
        }
        let at = events.len() - 2;
        events[at]["delta"]["stop_reason"] = json!(word);
        assert_eq!(answer(&events).expect(word).stop, stop, "{word}");
    }
}

#[test]
fn an_error_event_voids_the_answer() {
    let mut events = events();
    let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    events.insert(12, error);
    let fault = answer(&events).expect_err("an error");
    assert!(
        matches!(&fault, Fault::Unavailable { reason, .. } if reason.contains("Overloaded")),
        "{fault:?}"
    );
}

#[test]
fn calls_that_share_an_id_are_no_answer() {
    let mut events = events();
    events[18]["content_block"]["id"] = json!("toolu_1");
    assert!(matches!(answer(&events), Err(Fault::Unavailable { .. })));
}

/// JSON that resembles events, with missing, duplicate or wrongly typed fields.
fn wild_event() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
        "text",
        "thinking",
        "tool_use",
        "text_delta",
        "input_json_delta",
        "signature_delta",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        (0u64..4).prop_map(Value::from),
        Just(Value::from(u64::MAX)),
        word.clone().prop_map(Value::from),
    ];
    let field = prop::sample::select(vec![
        "type",
        "index",
        "delta",
        "content_block",
        "message",
        "usage",
        "text",
        "input",
        "id",
        "stop_reason",
        "partial_json",
        "input_tokens",
        "error",
    ]);
    let inner = prop::collection::vec((field.clone(), leaf.clone()), 0..5).prop_map(|fields| {
        Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    });
    (word, prop::collection::vec((field, prop_oneof![leaf, inner]), 0..5)).prop_map(|(kind, fields)| {
        let mut event = json!({});
        for (name, value) in fields {
            event[name] = value;
        }
        event["type"] = Value::from(kind);
        frame(&event)
    })
}

proptest! {
    #[test]
    fn the_cutting_into_chunks_never_changes_the_answer(cuts in prop::collection::vec(0usize..3000, 0..40)) {
        let all = bytes(&events());
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(all.len())).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        let parts = cuts.windows(2).map(|pair| &all[pair[0]..pair[1]]);
        prop_assert_eq!(read(parts), read([all.as_slice()]));
    }

    #[test]
    fn garbage_never_panics(stream in prop::collection::vec(wild_event(), 0..12), noise in any::<Vec<u8>>()) {
        let stream = stream.concat().into_bytes();
        let _ = read([stream.as_slice(), noise.as_slice()]);
    }
}
