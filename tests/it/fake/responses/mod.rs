//! The Responses API: the header, the rules for a history, the events.

mod check;

use serde_json::{Value, json};

use super::{
    anthropic,
    openai::OpenAi,
    provider::{Dialect, Refusal, Request, Said, Step, pieces, sse},
};

/// One fake endpoint, without state.
#[derive(Default)]
pub struct Responses;

/// Validates a request's body alone.
pub fn accept(body: &Value) -> Result<(), Refusal> {
    check::body(body)
}

/// The reasoning item of this text, as far as its provider can be asked for it again.
pub fn reasoning(id: &str, text: &str, is_sealed: bool) -> Value {
    let mut item = json!({"type": "reasoning", "id": id, "content": [],
        "summary": [{"type": "summary_text", "text": text}]});
    if is_sealed {
        item["encrypted_content"] = json!(anthropic::sign(text));
    }
    item
}

/// The item of a message.
pub fn message(id: &str, text: &str) -> Value {
    json!({"type": "message", "id": id, "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

/// The item of a call.
pub fn call(id: &str, call_id: &str, name: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "id": id, "status": "completed", "call_id": call_id, "name": name,
        "arguments": arguments})
}

impl Dialect for Responses {
    const PATH: &'static str = "/v1/responses";
    const TYPES: &'static str = "openai/responses";

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        OpenAi::check_headers(request)?;
        check::body(&request.body)
    }

    fn error_body(&self, refusal: &Refusal) -> Value {
        OpenAi.error_body(refusal)
    }

    fn frames(&self, request: &Request, step: &Step) -> Vec<String> {
        let is_sealed = request.body["include"].to_string().contains("reasoning.encrypted_content");
        let has_reasoning =
            step.said.iter().any(|said| matches!(said, Said::Thinking(_) | Said::Redacted(_)));
        let mut events = vec![json!({"type": "response.created", "response": {"status": "in_progress"}})];
        let mut output = Vec::new();
        for (at, said) in step.said.iter().enumerate() {
            // The provider remembers which items follow reasoning.
            let id =
                |kind: &str| format!("{kind}_{}_{at}{}", request.call, if has_reasoning { "_r" } else { "" });
            let (item, kind, text) = match said {
                Said::Text(text) => (message(&id("msg"), text), "output_text", text.clone()),
                Said::Thinking(text) => {
                    (reasoning(&id("rs"), text, is_sealed), "reasoning_summary_text", text.clone())
                }
                Said::Redacted(_) => {
                    (reasoning(&id("rs"), "", is_sealed), "reasoning_summary_text", String::new())
                }
                Said::Tool(name, input) => {
                    let call_id = format!("call_{}_{at}", request.call);
                    (call(&id("fc"), &call_id, name, input), "function_call_arguments", input.clone())
                }
            };
            events.push(json!({"type": "response.output_item.added", "output_index": at, "item": item}));
            let delta = |text: String| json!({"type": format!("response.{kind}.delta"), "output_index": at, "delta": text});
            events.extend(pieces(&text).into_iter().map(delta));
            events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
            output.push(item);
        }
        let used = step.usage;
        let input = used.input + used.cache_read + used.cache_write;
        let usage = json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": used.cache_read},
            "output_tokens": used.output, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input + used.output});
        let status = if step.stop.is_some() { "incomplete" } else { "completed" };
        events.push(
            json!({"type": format!("response.{status}"), "response": {"status": status, "output": output,
            "usage": usage, "incomplete_details": step.stop.map(|reason| json!({"reason": reason}))}}),
        );
        events.iter().map(|event| sse(event["type"].as_str().unwrap_or_default(), event)).collect()
    }

    fn error_frame(&self, kind: &str, message: &str) -> String {
        sse("error", &json!({"type": "error", "error": {"type": kind, "code": kind, "message": message}}))
    }
}
