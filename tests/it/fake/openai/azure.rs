//! Azure's chat completions: the key is in the header `api-key`.

use serde_json::Value;

use super::{OpenAi, check};
use crate::fake::provider::{Dialect, Refusal, Request, Step, header};

/// A resource of Azure that takes keys, and no tokens of Entra ID.
pub struct Azure;

impl Dialect for Azure {
    const PATH: &'static str = "/openai/v1/chat/completions";
    const TYPES: &'static str = "openai";

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let message = match (header(request, "api-key"), header(request, "authorization")) {
            (None | Some(""), _) => "Access denied due to missing subscription key.",
            (Some(_), Some(_)) => "Access denied due to an invalid token.",
            (Some(_), None) => return check::body(&request.body),
        };
        Err(Refusal { status: 401, kind: "401", message: message.to_owned() })
    }

    fn error_body(&self, refusal: &Refusal) -> Value {
        OpenAi.error_body(refusal)
    }

    fn frames(&self, request: &Request, step: &Step) -> Vec<String> {
        OpenAi.frames(request, step)
    }

    fn error_frame(&self, kind: &str, message: &str) -> String {
        OpenAi.error_frame(kind, message)
    }
}
