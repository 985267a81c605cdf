//! Tests of the stream parser: complete, truncated and malformed completions.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    domain::{Message, conversation::ModelOptions},
    model::sse::Frames,
};

fn request(history: Vec<Message>) -> ModelRequest {
    ModelRequest {
        model: "m".to_owned(),
        system: String::new(),
        tools: Vec::new(),
        history,
        max_tokens: 9,
        options: ModelOptions::default(),
        files: std::collections::HashMap::new(),
    }
}

fn chunk(delta: Value, finish: Value) -> Value {
    json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn call(index: usize, more: Value) -> Value {
    let mut piece = json!({"index": index});
    for (name, value) in more.as_object().expect("an object") {
        piece[name] = value.clone();
    }
    chunk(json!({"tool_calls": [piece]}), Value::Null)
}

/// Reasoning, text and two calls whose chunks alternate.
fn chunks() -> Vec<Value> {
    vec![
        chunk(json!({"role": "assistant", "content": null, "refusal": null}), Value::Null),
        chunk(json!({"reasoning_content": "Look "}), Value::Null),
        chunk(json!({"reasoning_content": "first."}), Value::Null),
        chunk(json!({"content": "I look — "}), Value::Null),
        chunk(json!({"content": "now."}), Value::Null),
        call(0, json!({"id": "call_a", "type": "function", "function": {"name": "bash", "arguments": ""}})),
        call(
            1,
            json!({"id": "call_b", "type": "function", "function": {"name": "read", "arguments": "{\"pa"}}),
        ),
        call(0, json!({"function": {"arguments": "{\"command\": \"ls\"}"}})),
        call(1, json!({"function": {"arguments": "th\": \"x\"}"}})),
        chunk(json!({}), json!("tool_calls")),
        json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 64}}}),
    ]
}

fn bytes(chunks: &[Value], done: bool) -> Vec<u8> {
    let mut text: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    if done {
        text.push_str("data: [DONE]\n\n");
    }
    text.into_bytes()
}

fn read_for<'a>(
    request: &ModelRequest,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Result<Answer, Fault>, Vec<Delta>) {
    let (mut frames, mut stream, mut deltas) = (Frames::default(), Stream::new(request, 400), Vec::new());
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

fn answer(chunks: &[Value]) -> Result<Answer, Fault> {
    read_for(&request(Vec::new()), [bytes(chunks, true).as_slice()]).0
}

#[test]
fn pieces_become_one_message_and_its_blocks() {
    let (answer, deltas) = read_for(&request(Vec::new()), [bytes(&chunks(), true).as_slice()]);
    let answer = answer.expect("a whole answer");
    let function = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
    assert_eq!(
        answer.raw,
        [
            json!({"role": "assistant", "content": "I look — now.", "reasoning_content": "Look first.", "tool_calls": [
                {"id": "call_a", "type": "function", "function": function("bash", r#"{"command":"ls"}"#)},
                {"id": "call_b", "type": "function", "function": function("read", r#"{"path":"x"}"#)},
            ]})
        ]
    );
    assert_eq!(answer.blocks.len(), 4);
    assert_eq!(answer.stop, StopReason::ToolUse);
    let usage = Usage { input_tokens: 36, output_tokens: 20, cache_read_tokens: 64, ..Usage::default() };
    assert_eq!(answer.usage, usage);
    let is_said = |delta: &&Delta| matches!(delta, Delta::Text { .. } | Delta::Thinking { .. });
    assert_eq!(deltas.iter().filter(is_said).count(), 4);
    assert!(matches!(deltas.last(), Some(Delta::Input { bytes: 1.. })));
}

#[test]
fn a_stream_without_a_finish_reason_was_cut() {
    let all = chunks();
    for end in 0..9 {
        let fault = read_for(&request(Vec::new()), [bytes(&all[..end], end % 2 == 0).as_slice()]).0;
        assert!(matches!(fault, Err(Fault::Unavailable { .. })), "cut after {end}");
    }
}

#[test]
fn a_server_that_does_not_count_is_counted_by_estimate() {
    let answer = answer(&chunks()[..10]).expect("an answer without usage");
    assert_eq!(answer.usage.input_tokens, 100);
    assert!(answer.usage.output_tokens > 0);
}

#[test]
fn an_id_that_the_history_has_gets_another() {
    let earlier = ToolCall { call_id: "call_a".to_owned(), tool: "bash".to_owned(), input: json!({}) };
    let earlier = Message::Assistant {
        provider: "x".to_owned(),
        raw: Vec::new(),
        blocks: vec![Block::ToolCall(earlier)],
    };
    let mut chunks = chunks();
    chunks[6]["choices"][0]["delta"]["tool_calls"][0]["id"] = json!("");
    let answer = read_for(&request(vec![earlier]), [bytes(&chunks, true).as_slice()]).0.expect("an answer");
    let ids: Vec<_> = answer.tool_calls().map(|call| call.call_id.as_str()).collect();
    assert_eq!(ids, ["call_1_0", "call_1_1"]);
    assert_eq!(answer.raw[0]["tool_calls"][1]["id"], json!("call_1_1"));
}

#[test]
fn calls_without_an_index_are_told_apart_by_their_ids() {
    let piece = |id: &str, arguments: &str| {
        let call = json!({"id": id, "function": {"name": "bash", "arguments": arguments}});
        chunk(json!({"tool_calls": [call]}), Value::Null)
    };
    let all = [
        piece("a", "{}"),
        piece("b", "{"),
        chunk(json!({"tool_calls": [{"function": {"arguments": "}"}}]}), json!("stop")),
    ];
    let answer = answer(&all).expect("an answer");
    let inputs: Vec<_> = answer.tool_calls().map(|call| call.input.clone()).collect();
    assert_eq!((inputs, answer.stop), (vec![json!({}), json!({})], StopReason::ToolUse));
}

#[test]
fn every_finish_reason_has_a_meaning() {
    for (word, stop) in [
        ("stop", StopReason::EndTurn),
        ("length", StopReason::MaxTokens),
        ("content_filter", StopReason::Refusal),
        ("something_new", StopReason::EndTurn),
    ] {
        let all = [chunk(json!({"content": "x"}), Value::Null), chunk(json!({}), json!(word))];
        assert_eq!(answer(&all).expect(word).stop, stop, "{word}");
    }
    let refused = [chunk(json!({"refusal": "No."}), json!("stop"))];
    assert_eq!(answer(&refused).expect("an answer").stop, StopReason::Refusal);
}

#[test]
fn arguments_that_are_no_object_are_kept_as_text() {
    let cut = [
        call(0, json!({"id": "a", "function": {"name": "bash", "arguments": "{\"comm"}})),
        chunk(json!({}), json!("length")),
    ];
    let answer = answer(&cut).expect("an answer that was truncated");
    assert_eq!(answer.tool_calls().next().expect("a call").input, json!({"_malformed": "{\"comm"}));
    let sent = answer.raw[0]["tool_calls"][0]["function"]["arguments"].as_str().expect("text");
    assert_eq!(serde_json::from_str::<Value>(sent).expect("JSON"), json!({"_malformed": "{\"comm"}));
}

proptest! {
    #[test]
    fn the_cutting_into_chunks_never_changes_the_answer(cuts in prop::collection::vec(0usize..2500, 0..40)) {
        let all = bytes(&chunks(), true);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(all.len())).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        let parts = cuts.windows(2).map(|pair| &all[pair[0]..pair[1]]);
        prop_assert_eq!(read_for(&request(Vec::new()), parts), read_for(&request(Vec::new()), [all.as_slice()]));
    }

    #[test]
    fn garbage_never_panics(
        index in any::<usize>(),
        id in ".{0,4}",
        count in any::<u64>(),
        noise in any::<Vec<u8>>(),
    ) {
        let piece = json!({"tool_calls": [{"index": index, "id": id}, {"id": "z"}, {"function": {"name": id}}]});
        let usage = json!({"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": count}}});
        let stream = bytes(&[chunk(piece, json!("stop")), usage], false);
        let answer = read_for(&request(Vec::new()), [stream.as_slice(), noise.as_slice()]).0;
        if let Ok(answer) = answer {
            prop_assert!(answer.usage.tokens() > 0 || count == 0);
        }
    }
}
