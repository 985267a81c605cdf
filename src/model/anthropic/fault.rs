//! Mapping of Anthropic's error responses to [`Fault`].
//!
//! Called by the adapter for a response other than 2xx, and by `stream` for an `error` event, which
//! contains the same object after a 200. (platform.claude.com/docs/en/api/errors)

use std::time::Duration;

use serde::Deserialize;

use crate::model::{
    Fault,
    exchange::{Refusal, short},
    sent_file,
};

/// The `error` object of an error response and of an `error` event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ErrorBody {
    #[serde(rename = "type")]
    kind: String,
    message: String,
}

#[derive(Deserialize)]
struct Envelope {
    error: ErrorBody,
}

/// Maps an error response by the error's type if present, else by the status.
pub(super) fn from_refusal(refusal: &Refusal) -> Fault {
    let error = match serde_json::from_str::<Envelope>(&refusal.body) {
        Ok(envelope) => envelope.error,
        Err(_) => ErrorBody::default(),
    };
    let kind = match refusal.status {
        // An intermediate proxy sends bodies of another format.
        status if error.kind.is_empty() => kind_of_status(status),
        _ => error.kind.as_str(),
    };
    let words = if error.message.is_empty() { refusal.body.trim() } else { &error.message };
    let reason = format!("{} {kind}: {words}", refusal.status);
    fault(kind, &reason, refusal.retry_after)
}

/// Maps an `error` event within a stream; the response so far is discarded.
pub(super) fn from_event(error: &ErrorBody) -> Fault {
    // An unknown type in mid-stream is a failure of the provider, not of the request.
    let kind = if error.kind.is_empty() { "api_error" } else { &error.kind };
    fault(kind, &format!("{kind}: {}", error.message), None)
}

fn kind_of_status(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        408 | 409 | 500..=599 => "api_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        _ => "invalid_request_error",
    }
}

fn fault(kind: &str, reason: &str, retry_after: Option<Duration>) -> Fault {
    let lower = reason.to_ascii_lowercase();
    let reason = short(reason);
    match kind {
        "overloaded_error" | "rate_limit_error" | "api_error" | "timeout_error" | "conflict_error" => {
            Fault::Unavailable { reason, retry_after }
        }
        "authentication_error" | "permission_error" => Fault::Unauthorized { reason },
        "billing_error" => Fault::PaymentRequired { reason },
        "request_too_large" => Fault::ContextTooLong { reason },
        _ if lower.contains("credit balance is too low") => Fault::PaymentRequired { reason },
        _ if lower.contains("prompt is too long") || lower.contains("exceed context limit") => {
            Fault::ContextTooLong { reason }
        }
        "invalid_request_error" => sent_file::refused(400, reason),
        _ => Fault::Refused { reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &str) -> Fault {
        from_refusal(&Refusal { status, retry_after: Some(Duration::from_secs(3)), body: body.to_owned() })
    }

    fn body(kind: &str, message: &str) -> String {
        format!(
            r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}"}},"request_id":"req_1"}}"#
        )
    }

    #[test]
    fn a_refused_image_is_told_apart_from_another_refusal() {
        let image = body("invalid_request_error", "Could not process image");
        assert!(matches!(refusal(400, &image), Fault::FilesRefused { .. }));
        let other = body("not_found_error", "model: image-1");
        assert!(matches!(refusal(404, &other), Fault::Refused { .. }));
    }

    #[test]
    fn each_refusal_says_what_the_caller_will_do() {
        use Fault::{ContextTooLong, PaymentRequired, Refused, Unauthorized, Unavailable};
        for (status, kind) in [(429, "rate_limit_error"), (529, "overloaded_error"), (500, "api_error")] {
            let fault = refusal(status, &body(kind, "later"));
            let wait = Some(Duration::from_secs(3));
            assert!(matches!(fault, Unavailable { retry_after, .. } if retry_after == wait), "{fault:?}");
        }
        assert!(matches!(refusal(502, "<html>bad gateway</html>"), Unavailable { .. }));
        assert!(matches!(refusal(429, ""), Unavailable { .. }));
        let long = body("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum");
        assert!(matches!(refusal(400, &long), ContextTooLong { .. }));
        let clip = "input length and `max_tokens` exceed context limit: 1 + 2 > 2, decrease";
        assert!(matches!(refusal(400, &body("invalid_request_error", clip)), ContextTooLong { .. }));
        assert!(matches!(refusal(413, ""), ContextTooLong { .. }));
        assert!(matches!(
            refusal(401, &body("authentication_error", "invalid x-api-key")),
            Unauthorized { .. }
        ));
        assert!(matches!(refusal(403, "{}"), Unauthorized { .. }));
        assert!(matches!(refusal(402, &body("billing_error", "pay")), PaymentRequired { .. }));
        let poor = "Your credit balance is too low to access the Anthropic API.";
        assert!(matches!(refusal(400, &body("invalid_request_error", poor)), PaymentRequired { .. }));
        assert!(matches!(refusal(404, &body("not_found_error", "model: x")), Refused { .. }));
        assert!(matches!(refusal(301, ""), Refused { .. }));
    }

    #[test]
    fn an_error_event_is_judged_by_its_type() {
        let event = |kind: &str| from_event(&ErrorBody { kind: kind.to_owned(), message: "m".to_owned() });
        assert!(matches!(event("overloaded_error"), Fault::Unavailable { .. }));
        assert!(matches!(event(""), Fault::Unavailable { .. }));
        assert!(matches!(event("authentication_error"), Fault::Unauthorized { .. }));
        assert!(matches!(event("invalid_request_error"), Fault::Refused { .. }));
    }
}
