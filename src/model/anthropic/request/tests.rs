//! Tests of requests for growing histories, byte by byte.

use serde_json::json;

use super::*;
use crate::domain::{
    conversation::{Effort, ModelOptions, Thinking},
    tool::{Replay, SUBMIT_OUTPUT, ToolCall},
};

fn user(text: &str) -> Message {
    Message::user(text)
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

fn own_answer(raw: Value) -> Message {
    let Value::Array(raw) = raw else { panic!("raw blocks are a list") };
    Message::Assistant { provider: PROVIDER.to_owned(), raw, blocks: Vec::new() }
}

fn request(history: Vec<Message>) -> ModelRequest {
    let spec = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: format!("runs {name}"),
        input_schema: json!({"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}}),
        replay: Replay::Unsafe,
    };
    ModelRequest {
        model: "claude-sonnet-4-5".to_owned(),
        system: "Be brief.".to_owned(),
        tools: vec![spec("bash"), spec("ask")],
        history,
        max_tokens: 4_096,
        options: ModelOptions::default(),
        files: std::collections::HashMap::new(),
    }
}

fn json_of(request: &ModelRequest) -> Value {
    serde_json::from_slice(&body(request)).expect("the body is JSON")
}

fn long_history() -> Vec<Message> {
    vec![
        user("Fix it."),
        own_answer(json!([
            {"type": "thinking", "thinking": "Look first.", "signature": "c2ln"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"z": "ls", "a": 1.5}},
            {"type": "tool_use", "id": "toolu_2", "name": "bash", "input": {}},
        ])),
        results(&[("toolu_1", "README.md", false), ("toolu_2", "", true)]),
        own_answer(json!([{"type": "text", "text": "Done."}])),
        user("Thanks. Now document it."),
        user("And be quick."),
    ]
}

#[test]
fn the_bytes_of_a_request_are_these() {
    let golden = concat!(
        r#"{"model":"claude-sonnet-4-5","max_tokens":4096,"stream":true,"#,
        r#""tools":[{"name":"bash","description":"runs bash","input_schema":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}}},"#,
        r#"{"name":"ask","description":"runs ask","input_schema":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}},"cache_control":{"type":"ephemeral"}}],"#,
        r#""system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],"#,
        r#""messages":[{"role":"user","content":[{"type":"text","text":"Fix it."}]},"#,
        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"Look first.","signature":"c2ln"},{"type":"text","text":"I look."},"#,
        r#"{"type":"tool_use","id":"toolu_1","name":"bash","input":{"z":"ls","a":1.5}},{"type":"tool_use","id":"toolu_2","name":"bash","input":{}}]},"#,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"README.md"},"#,
        r#"{"type":"tool_result","tool_use_id":"toolu_2","content":"(empty)","is_error":true,"cache_control":{"type":"ephemeral"}}]},"#,
        r#"{"role":"assistant","content":[{"type":"text","text":"Done."}]},"#,
        r#"{"role":"user","content":[{"type":"text","text":"Thanks. Now document it."},{"type":"text","text":"And be quick.","cache_control":{"type":"ephemeral"}}]}]}"#,
    );
    let request = request(long_history());
    assert_eq!(String::from_utf8(body(&request)).expect("UTF-8"), golden);
    assert_eq!(body(&request), body(&request.clone()));
}

/// The messages as the provider's cache compares them, without breakpoints.
fn cached_part(request: &ModelRequest) -> String {
    let bytes = String::from_utf8(body(request)).expect("UTF-8");
    let messages = bytes.split_once(r#""messages":["#).expect("messages come last").1;
    messages.replace(r#","cache_control":{"type":"ephemeral"}"#, "").trim_end_matches("]}]}").to_owned()
}

#[test]
fn each_step_begins_with_the_bytes_of_the_step_before() {
    let history = long_history();
    let mut before = String::new();
    for end in [1, 3, 5, 6] {
        let part = cached_part(&request(history[..end].to_vec()));
        assert!(part.starts_with(&before), "{part}\ndoes not begin with\n{before}");
        before = part;
    }
}

#[test]
fn the_mark_of_the_step_before_is_set_again_and_there_are_at_most_four() {
    let history = long_history();
    let marks = |end: usize| {
        let text = String::from_utf8(body(&request(history[..end].to_vec()))).expect("UTF-8");
        text.matches("cache_control").count()
    };
    assert_eq!((marks(1), marks(3), marks(6)), (3, 4, 4));
    let json = json_of(&request(history[..3].to_vec()));
    assert!(json["messages"][0]["content"][0]["cache_control"].is_object());
    assert!(json["messages"][2]["content"][1]["cache_control"].is_object());
}

#[test]
fn what_a_provider_never_takes_back_is_left_out() {
    let cut_while_thinking = own_answer(json!([
        {"type": "text", "text": "Well."},
        {"type": "text", "text": "\n\n"},
        {"type": "thinking", "thinking": "Hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZA=="},
    ]));
    let json = json_of(&request(vec![user("Hi"), cut_while_thinking, user("  ")]));
    assert_eq!(json["messages"][1]["content"], json!([{"type": "text", "text": "Well."}]));
    assert_eq!(json["messages"][2]["content"][0]["text"], json!("(empty)"));
    // An empty response merges its neighbors into one message.
    let json = json_of(&request(vec![user("Hi"), own_answer(json!([])), user("Still there?")]));
    let texts = json["messages"][0]["content"].as_array().map(Vec::len);
    assert_eq!((json["messages"].as_array().map(Vec::len), texts), (Some(1), Some(2)));
}

#[test]
fn another_providers_answer_is_told_in_our_words() {
    let call = ToolCall { call_id: "chatcmpl.1".to_owned(), tool: "re po".to_owned(), input: json!([1]) };
    let foreign = Message::Assistant {
        provider: "openai".to_owned(),
        raw: vec![json!({"role": "assistant", "content": "x"})],
        blocks: vec![
            Block::Thinking { text: "secret".to_owned() },
            Block::Text { text: "I look.".to_owned() },
            Block::ToolCall(call),
        ],
    };
    let json = json_of(&request(vec![user("Hi"), foreign, results(&[("chatcmpl.1", "ok", false)])]));
    let content = &json["messages"][1]["content"];
    assert_eq!(content[0], json!({"type": "text", "text": "I look."}));
    assert_eq!(content[1]["name"], json!("re_po"));
    assert_eq!(content[1]["input"], json!({"_malformed": "[1]"}));
    assert_eq!(content[1]["id"], json["messages"][2]["content"][0]["tool_use_id"]);
}

#[test]
fn thinking_is_asked_for_in_the_form_that_the_model_takes() {
    let thinks = |model: &str, budget_tokens: u64, max_tokens: u64, history: Vec<Message>| {
        let mut request = ModelRequest { model: model.to_owned(), max_tokens, ..request(history) };
        request.options.thinking = Some(Thinking { budget_tokens });
        request.options.effort = Some(Effort::Medium);
        let json = json_of(&request);
        assert_eq!(json["output_config"], json!({"effort": "medium"}));
        json["thinking"].clone()
    };
    let hi = || vec![user("Hi")];
    let adaptive = json!({"type": "adaptive", "display": "summarized"});
    for model in
        ["claude-sonnet-4-5", "claude-sonnet-4-20250514", "claude-3-7-sonnet-latest", "claude-opus-4-6"]
    {
        let enabled = json!({"type": "enabled", "budget_tokens": 2_000});
        assert_eq!(thinks(model, 2_000, 4_096, hi()), enabled, "{model}");
    }
    for model in ["claude-opus-4-7", "claude-sonnet-5", "claude-opus-5-5", "claude-mythos-preview"] {
        assert_eq!(thinks(model, 2_000, 4_096, hi()), adaptive, "{model}");
    }
    // A call whose `max_tokens` is limited keeps the budget below it, or omits it.
    assert_eq!(thinks("claude-sonnet-4-5", 9_000, 4_096, hi())["budget_tokens"], json!(4_095));
    assert_eq!(thinks("claude-sonnet-4-5", 9_000, 1_024, hi()), Value::Null);
    // A loop that started without thinking continues without it.
    let bare = own_answer(json!([{"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}}]));
    let open = vec![user("Hi"), bare, results(&[("toolu_1", "ok", false)])];
    assert_eq!(thinks("claude-sonnet-4-5", 2_000, 4_096, open), Value::Null);
    assert_eq!(thinks("claude-sonnet-4-5", 2_000, 4_096, long_history())["type"], json!("enabled"));
}

#[test]
fn without_system_and_tools_neither_is_sent() {
    let bare = ModelRequest { system: " ".to_owned(), tools: Vec::new(), ..request(vec![user("Hi")]) };
    let json = json_of(&bare);
    assert_eq!((json.get("system"), json.get("tools"), json.get("thinking")), (None, None, None));
}

#[test]
fn the_output_is_strict_where_the_model_and_the_schema_allow_it() {
    let output = |properties: Value| ToolSpec {
        name: SUBMIT_OUTPUT.to_owned(),
        description: String::new(),
        input_schema: json!({
            "type": "object", "properties": properties, "required": ["a"], "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    };
    let sent = |model: &str, spec: ToolSpec| {
        let tools = vec![spec];
        json_of(&ModelRequest { model: model.to_owned(), tools, ..request(vec![user("Hi.")]) })["tools"][0]
            .clone()
    };
    let plain = || output(json!({"a": {"type": "string"}}));
    assert_eq!(sent("claude-sonnet-4-5", plain())["strict"], true);
    assert_eq!(sent("claude-opus-4-1", plain()).get("strict"), None);
    assert_eq!(sent("claude-sonnet-4-5", output(json!({"a": {"pattern": "x"}}))).get("strict"), None);
}
