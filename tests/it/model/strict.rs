//! Tests of the fakes: they reject the requests that the real endpoints reject.

use serde_json::{Value, json};

use super::Named;
use crate::fake::{
    Fake, Step,
    anthropic::{Anthropic, VERSIONS},
    openai::OpenAi,
};

fn messages_body() -> Value {
    json!({"model": "m", "max_tokens": 2_000, "stream": true,
    "tools": [{"name": "bash", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}]},
    ]})
}

fn completions_body() -> Value {
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}});
    json!({"model": "m", "stream": true, "stream_options": {"include_usage": true},
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}],
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    ]})
}

/// The body with one value changed; `null` removes it.
fn changed(mut body: Value, pointer: &str, to: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer has a slash");
    match (body.pointer_mut(parent).expect("the place is there"), to) {
        (Value::Object(fields), Value::Null) => {
            fields.shift_remove(field);
        }
        (Value::Object(fields), to) => {
            fields.insert(field.to_owned(), to);
        }
        (Value::Array(items), Value::Null) => {
            items.remove(field.parse().expect("an index"));
        }
        (Value::Array(items), to) => items.insert(field.parse().expect("an index"), to),
        (other, _) => panic!("{other} has no fields"),
    }
    body
}

async fn status<D: Named>(body: &Value, headers: &[(&'static str, &str)]) -> u16 {
    let fake = Fake::script(D::default(), [Step::text("ok")]).await;
    let client = sojourn::model::trusted_client();
    let mut request = client.post(format!("{}{}", fake.base_url, D::PATH)).body(body.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.expect("the fake answers");
    let status = response.status().as_u16();
    let body = response.text().await.expect("a body");
    assert!(status == 200 || body.contains(r#""error":{"#), "{body}");
    status
}

#[tokio::test]
async fn the_messages_api_refuses_what_breaks_its_rules() {
    let headers =
        [("x-api-key", "k"), ("anthropic-version", "2023-06-01"), ("content-type", "application/json")];
    assert_eq!(status::<Anthropic>(&messages_body(), &headers).await, 200);
    let text = |text: &str| json!({"type": "text", "text": text});
    let mark = json!({"type": "ephemeral"});
    for (place, to) in [
        ("/surprise", json!(1)),
        ("/model", Value::Null),
        ("/max_tokens", json!(0)),
        ("/stream", Value::Null),
        ("/thinking", json!({"type": "enabled", "budget_tokens": 1_023})),
        ("/thinking", json!({"type": "enabled", "budget_tokens": 2_000})),
        ("/thinking", json!({"type": "enabled", "budget_tokens": 1_024})),
        ("/output_config", json!({"effort": "extreme"})),
        ("/messages/0", Value::Null),
        ("/messages/1", Value::Null),
        ("/messages/2", Value::Null),
        ("/messages/3", json!({"role": "user", "content": "twice"})),
        ("/messages/3", json!({"role": "assistant", "content": "prefill"})),
        ("/messages/0/name", json!("x")),
        ("/messages/0/content", json!([])),
        ("/messages/0/content/0", text("")),
        ("/messages/0/content/0", text(" \n")),
        ("/messages/0/content/0/extra", json!(1)),
        ("/messages/2/content/0", text("first")),
        ("/messages/2/content/0", json!({"type": "tool_result", "tool_use_id": "toolu_9", "content": "x"})),
        ("/messages/1/content/1", json!({"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}})),
        ("/messages/1/content/1", json!({"type": "tool_use", "id": "toolu_2", "name": "bash", "input": {}})),
        ("/messages/1/content/0/input", json!("{}")),
        ("/messages/1/content/0/name", json!("not a name")),
        ("/messages/1/content/0", json!({"type": "thinking", "thinking": "x", "signature": "forged"})),
        ("/tools/0/name", json!("not a name")),
        ("/tools/0/replay", json!("unsafe")),
        ("/tools/0/input_schema/type", json!("string")),
        ("/tools/0/input_schema/properties/x", json!({"type": "strange"})),
        ("/tools/1", json!({"name": "bash", "input_schema": {"type": "object"}})),
    ] {
        let body = changed(messages_body(), place, to.clone());
        assert_eq!(status::<Anthropic>(&body, &headers).await, 400, "{place} {to}");
    }
    let mut marked = changed(messages_body(), "/tools/0/cache_control", mark.clone());
    marked["system"] = json!(
        (0..4).map(|_| json!({"type": "text", "text": "s", "cache_control": mark})).collect::<Vec<_>>()
    );
    assert_eq!(status::<Anthropic>(&marked, &headers).await, 400);
    for (missing, wanted) in [(0, 401), (1, 400), (2, 400)] {
        let mut fewer = headers.to_vec();
        fewer.remove(missing);
        assert_eq!(
            status::<Anthropic>(&messages_body(), &fewer).await,
            wanted,
            "without {}",
            headers[missing].0
        );
    }
    for (version, wanted) in [(VERSIONS[0], 200), (VERSIONS[1], 400)] {
        let headers = [headers[0], ("anthropic-version", version), headers[2]];
        let sampled = changed(messages_body(), "/temperature", json!(1.0));
        assert_eq!(status::<Anthropic>(&sampled, &headers).await, wanted, "{version}");
    }
}

#[tokio::test]
async fn chat_completions_refuse_what_breaks_their_rules() {
    let headers = [("authorization", "Bearer k"), ("content-type", "application/json")];
    assert_eq!(status::<OpenAi>(&completions_body(), &headers).await, 200);
    for (place, to) in [
        ("/surprise", json!(1)),
        ("/max_tokens", json!(1)),
        ("/max_completion_tokens", json!(0)),
        ("/reasoning_effort", json!("extreme")),
        ("/tools", json!([])),
        ("/tools/0/function/name", json!("not a name")),
        ("/tools/0/function/replay", json!("unsafe")),
        ("/messages", json!([])),
        ("/messages/2", Value::Null),
        ("/messages/3", Value::Null),
        ("/messages/3", json!({"role": "user", "content": "between"})),
        ("/messages/4", json!({"role": "tool", "tool_call_id": "call_1", "content": "twice"})),
        ("/messages/4", json!({"role": "assistant", "content": null})),
        ("/messages/1/content", Value::Null),
        ("/messages/1/role", json!("narrator")),
        ("/messages/2/tool_calls", json!([])),
        ("/messages/2/tool_calls/0/id", json!("x".repeat(41))),
        ("/messages/2/tool_calls/0/function/arguments", json!("{")),
        ("/messages/3/is_error", json!(true)),
    ] {
        let body = changed(completions_body(), place, to.clone());
        assert_eq!(status::<OpenAi>(&body, &headers).await, 400, "{place} {to}");
    }
    assert_eq!(status::<OpenAi>(&completions_body(), &headers[1..]).await, 401);
    assert_eq!(status::<OpenAi>(&completions_body(), &headers[..1]).await, 400);
}
