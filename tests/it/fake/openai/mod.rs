//! Chat completions: the header, the rules for a history, the chunks.

mod azure;
mod check;

use serde_json::{Value, json};

pub use azure::Azure;

use super::provider::{Dialect, Refusal, Request, Said, Step, header, pieces, refuse, sse};

/// A key that the fake rejects.
pub const BAD_KEY: &str = "sk-revoked";

/// One fake endpoint, without state.
#[derive(Default)]
pub struct OpenAi;

/// Validates a request's body alone.
pub fn accept(body: &Value) -> Result<(), Refusal> {
    check::body(body)
}

impl OpenAi {
    /// Checks the headers, which both APIs share.
    pub fn check_headers(request: &Request) -> Result<(), Refusal> {
        let denied = |message: &str| {
            Err(Refusal { status: 401, kind: "invalid_api_key", message: message.to_owned() })
        };
        match header(request, "authorization").and_then(|value| value.strip_prefix("Bearer ")) {
            None | Some("") => return denied("You didn't provide an API key."),
            Some(BAD_KEY) => return denied("Incorrect API key provided: sk-r****ked."),
            Some(_) => {}
        }
        if header(request, "content-type") != Some("application/json") {
            return refuse("Invalid Content-Type header");
        }
        Ok(())
    }
}

impl Dialect for OpenAi {
    const PATH: &'static str = "/v1/chat/completions";
    const TYPES: &'static str = "openai";

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        Self::check_headers(request)?;
        check::body(&request.body)
    }

    fn error_body(&self, refusal: &Refusal) -> Value {
        let kind = if refusal.status < 429 { "invalid_request_error" } else { refusal.kind };
        json!({"error": {"message": refusal.message, "type": kind, "param": null, "code": refusal.kind}})
    }

    fn frames(&self, request: &Request, step: &Step) -> Vec<String> {
        let id = format!("chatcmpl-{}", request.call);
        let chunk = |choices: Value, usage: Value| {
            json!({"id": id, "object": "chat.completion.chunk", "created": 1, "model": request.body["model"],
                "choices": choices, "usage": usage})
        };
        let delta =
            |delta: Value| chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null);
        let mut chunks = vec![delta(json!({"role": "assistant", "content": null}))];
        let mut calls = 0;
        for said in &step.said {
            match said {
                Said::Text(text) => {
                    chunks.extend(pieces(text).into_iter().map(|text| delta(json!({"content": text}))))
                }
                Said::Thinking(text) | Said::Redacted(text) => {
                    chunks.extend(
                        pieces(text).into_iter().map(|text| delta(json!({"reasoning_content": text}))),
                    );
                }
                Said::Tool(name, input) => {
                    let call = |more: Value| delta(json!({"tool_calls": [more]}));
                    let id = format!("call_{}_{calls}", request.call);
                    let function = json!({"name": name, "arguments": ""});
                    chunks.push(call(
                        json!({"index": calls, "id": id, "type": "function", "function": function}),
                    ));
                    let more = |part| call(json!({"index": calls, "function": {"arguments": part}}));
                    chunks.extend(pieces(input).into_iter().map(more));
                    calls += 1;
                }
            }
        }
        let stop = step.stop.unwrap_or(if step.has_tools() { "tool_calls" } else { "stop" });
        chunks.push(chunk(json!([{"index": 0, "delta": {}, "finish_reason": stop}]), Value::Null));
        let used = step.usage;
        let prompt = used.input + used.cache_read + used.cache_write;
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": used.output,
            "total_tokens": prompt + used.output, "prompt_tokens_details": {"cached_tokens": used.cache_read}});
        chunks.push(chunk(json!([]), usage));
        let mut frames: Vec<String> = chunks.iter().map(|chunk| sse("", chunk)).collect();
        frames.push("data: [DONE]\n\n".to_owned());
        frames
    }

    fn error_frame(&self, kind: &str, message: &str) -> String {
        sse("", &json!({"error": {"message": message, "type": kind, "param": null, "code": kind}}))
    }
}
