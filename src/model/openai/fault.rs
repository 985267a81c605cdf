//! Mapping of chat completions errors to [`Fault`].
//!
//! Called by the adapter for a response other than 2xx, and by `stream` for an error object in
//! mid-stream, which compatible servers send after a 200.
//! (platform.openai.com/docs/guides/error-codes)

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::model::{
    Fault,
    exchange::{Refusal, short},
    sent_file,
};

/// The `error` object of an error response; compatible servers differ in its fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ErrorBody {
    message: Value,
    #[serde(rename = "type")]
    kind: Value,
    code: Value,
}

#[derive(Deserialize)]
struct Envelope {
    error: ErrorBody,
}

/// Messages of context overflows, from OpenAI, vLLM, llama.cpp and the large routers.
const TOO_LONG: [&str; 5] = [
    "context_length_exceeded",
    "maximum context length",
    "context length of",
    "exceeds the available context size",
    "prompt is too long",
];

/// Codes of quotas that do not refill with time.
const NO_MONEY: [&str; 4] =
    ["insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient balance"];

/// Checks the code and message first: a 429 may mean billing, a 400 the context.
pub(in crate::model) fn from_refusal(refusal: &Refusal) -> Fault {
    let error = match serde_json::from_str::<Envelope>(&refusal.body) {
        Ok(envelope) => envelope.error.words(),
        Err(_) => refusal.body.trim().to_owned(),
    };
    classify(refusal.status, &format!("{} {error}", refusal.status), refusal.retry_after)
}

/// Maps an error within a stream; the response so far is discarded.
pub(super) fn from_chunk(error: &ErrorBody) -> Fault {
    // Without a status, a server failure is the most likely cause.
    let status = error.code.as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
    classify(status, &error.words(), None)
}

/// Codes of failures in a stream of the Responses API that a retry cannot fix; policies and images have more.
const PERMANENT: [&str; 5] =
    ["invalid_prompt", "invalid_request", "invalid_encrypted_content", "policy", "image"];

/// Maps the error of an event of the Responses API, which has no status.
pub(in crate::model) fn from_event(error: &Value) -> Fault {
    let error: ErrorBody = serde_json::from_value(error.clone()).unwrap_or_default();
    let words = error.words();
    let code = error.code.as_str().unwrap_or_default();
    let status = match error.code.as_u64().and_then(|code| u16::try_from(code).ok()) {
        Some(status) => status,
        None if code.contains("rate_limit") => 429,
        None if PERMANENT.iter().any(|permanent| code.contains(permanent)) => 400,
        None => 500,
    };
    classify(status, &words, None)
}

impl ErrorBody {
    fn words(&self) -> String {
        let word = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
        };
        let words = [word(&self.kind), word(&self.code), word(&self.message)];
        words.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(": ")
    }
}

fn classify(status: u16, words: &str, retry_after: Option<Duration>) -> Fault {
    let lower = words.to_ascii_lowercase();
    let has = |list: &[&str]| list.iter().any(|part| lower.contains(part));
    let reason = short(words);
    match status {
        _ if has(&TOO_LONG) => Fault::ContextTooLong { reason },
        _ if has(&NO_MONEY) => Fault::PaymentRequired { reason },
        413 => Fault::ContextTooLong { reason },
        402 => Fault::PaymentRequired { reason },
        401 | 403 => Fault::Unauthorized { reason },
        408 | 409 | 425 | 429 | 500..=599 => Fault::Unavailable { reason, retry_after },
        status => sent_file::refused(status, reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &str) -> Fault {
        from_refusal(&Refusal { status, retry_after: None, body: body.to_owned() })
    }

    fn body(kind: &str, code: &str, message: &str) -> String {
        format!(r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":"{code}"}}}}"#)
    }

    #[test]
    fn a_server_that_takes_only_text_refuses_the_files() {
        for words in [
            "Invalid content type. image_url is only supported by certain models.",
            "m-1 is not a multimodal model",
            "unknown variant `image_url`, expected `text`",
            "'messages.0.content' must be a string",
        ] {
            let refused = refusal(400, &body("invalid_request_error", "", words));
            assert!(matches!(refused, Fault::FilesRefused { .. }), "{words}");
        }
        assert!(matches!(refusal(404, &body("", "model_not_found", "no image-1")), Fault::Refused { .. }));
    }

    #[test]
    fn each_refusal_says_what_the_caller_will_do() {
        let poor = body("insufficient_quota", "insufficient_quota", "You exceeded your current quota");
        assert!(matches!(refusal(429, &poor), Fault::PaymentRequired { .. }));
        let busy = body("requests", "rate_limit_exceeded", "Rate limit reached");
        assert!(matches!(refusal(429, &busy), Fault::Unavailable { .. }));
        let long = body("invalid_request_error", "context_length_exceeded", "too long");
        assert!(matches!(refusal(400, &long), Fault::ContextTooLong { .. }));
        let vllm = r#"{"error":{"message":"This model's maximum context length is 8 tokens","code":400}}"#;
        assert!(matches!(refusal(400, vllm), Fault::ContextTooLong { .. }));
        let key = body("invalid_request_error", "invalid_api_key", "Incorrect API key");
        assert!(matches!(refusal(401, &key), Fault::Unauthorized { .. }));
        assert!(matches!(refusal(503, "upstream"), Fault::Unavailable { .. }));
        assert!(matches!(refusal(404, &body("", "model_not_found", "no")), Fault::Refused { .. }));
    }

    #[test]
    fn an_error_in_mid_stream_is_the_servers_trouble_unless_it_says_more() {
        let chunk = |json: &str| from_chunk(&serde_json::from_str(json).expect("an error object"));
        assert!(matches!(chunk(r#"{"message":"boom"}"#), Fault::Unavailable { .. }));
        assert!(matches!(chunk(r#"{"message":"no","code":401}"#), Fault::Unauthorized { .. }));
        assert!(matches!(chunk(r#"{"code":"insufficient_quota"}"#), Fault::PaymentRequired { .. }));
    }
}
