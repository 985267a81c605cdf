//! Tests of requests for growing histories, byte by byte.

use serde_json::json;

use super::*;
use crate::domain::{conversation::ModelOptions, tool::Replay};

fn user(text: &str) -> Message {
    Message::user(text)
}

fn call(id: &str) -> ToolCall {
    ToolCall { call_id: id.to_owned(), tool: "bash".to_owned(), input: json!({"command": "ls"}) }
}

fn own_answer(text: &str, reasoning: &str, calls: &[ToolCall]) -> Message {
    let raw = vec![Value::Object(assistant(text, reasoning, calls))];
    Message::Assistant { provider: "openai".to_owned(), raw, blocks: Vec::new() }
}

fn results(all: &[(&str, &str, bool)]) -> Message {
    let result = |&(id, output, is_error): &(&str, &str, bool)| ToolResult {
        call_id: id.to_owned(),
        output: output.to_owned(),
        is_error,
        content: Vec::new(),
    };
    Message::Results { results: all.iter().map(result).collect() }
}

fn request(history: Vec<Message>) -> ModelRequest {
    let spec = ToolSpec {
        name: "bash".to_owned(),
        description: "runs".to_owned(),
        input_schema: json!({"type": "object"}),
        replay: Replay::Unsafe,
    };
    let options = ModelOptions { effort: Some(Effort::Low), ..ModelOptions::default() };
    ModelRequest {
        model: "gpt-5".to_owned(),
        system: "Be brief.".to_owned(),
        tools: vec![spec],
        history,
        max_tokens: 99,
        options,
        files: std::collections::HashMap::new(),
    }
}

fn text_of(history: Vec<Message>) -> String {
    String::from_utf8(body(&request(history), "openai")).expect("UTF-8")
}

fn long_history() -> Vec<Message> {
    vec![
        user("Fix it."),
        own_answer("I look.", "", &[call("call_1"), call("call_2")]),
        results(&[("call_1", "README.md", false), ("call_2", " ", true)]),
        own_answer("Done.", "", &[]),
        user("Thanks."),
        user("Now document it."),
    ]
}

#[test]
fn the_bytes_of_a_request_are_these() {
    let golden = concat!(
        r#"{"model":"gpt-5","max_completion_tokens":99,"stream":true,"stream_options":{"include_usage":true},"reasoning_effort":"low","#,
        r#""tools":[{"type":"function","function":{"name":"bash","description":"runs","parameters":{"type":"object"}}}],"#,
        r#""messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Fix it."},"#,
        r#"{"role":"assistant","content":"I look.","tool_calls":[{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}},"#,
        r#"{"id":"call_2","type":"function","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}}]},"#,
        r#"{"role":"tool","tool_call_id":"call_1","content":"README.md"},{"role":"tool","tool_call_id":"call_2","content":"Error: (empty)"},"#,
        r#"{"role":"assistant","content":"Done."},{"role":"user","content":"Thanks.\n\nNow document it."}]}"#,
    );
    assert_eq!(text_of(long_history()), golden);
}

#[test]
fn each_step_begins_with_the_bytes_of_the_step_before() {
    let history = long_history();
    let mut before = String::new();
    for end in [1, 3, 6] {
        let text = text_of(history[..end].to_vec());
        assert!(text.starts_with(&before), "{text}\ndoes not begin with\n{before}");
        before = text.trim_end_matches("]}").to_owned();
    }
}

#[test]
fn reasoning_goes_back_only_within_its_own_loop() {
    let looped = |more: Vec<Message>| {
        let start = vec![
            user("Hi"),
            own_answer("", "I think.", &[call("call_1")]),
            results(&[("call_1", "ok", false)]),
        ];
        text_of([start, more].concat())
    };
    assert!(looped(Vec::new()).contains(r#""reasoning_content":"I think.""#));
    assert!(!looped(vec![own_answer("Done.", "", &[]), user("Next")]).contains("reasoning_content"));
}

#[test]
fn an_answer_without_words_or_calls_is_left_out() {
    let text = text_of(vec![user("Hi"), own_answer("", "Only thoughts.", &[]), user("Still there?")]);
    assert!(text.contains(r#""content":"Hi\n\nStill there?""#), "{text}");
    assert!(!text.contains("assistant"), "{text}");
}

#[test]
fn another_providers_answer_is_told_in_our_words() {
    let blocks = vec![
        Block::Thinking { text: "secret".to_owned() },
        Block::Text { text: "I look.".to_owned() },
        Block::ToolCall(call(&"x".repeat(64))),
    ];
    let foreign =
        Message::Assistant { provider: "anthropic".to_owned(), raw: vec![json!({"type": "text"})], blocks };
    let bytes =
        body(&request(vec![user("Hi"), foreign, results(&[(&"x".repeat(64), "ok", false)])]), "openai");
    let json: Value = serde_json::from_slice(&bytes).expect("JSON");
    let id = &json["messages"][2]["tool_calls"][0]["id"];
    assert_eq!(id, &json["messages"][3]["tool_call_id"]);
    assert!(id.as_str().is_some_and(|id| id.len() <= 40), "{id}");
    assert!(!json.to_string().contains("secret"));
}
