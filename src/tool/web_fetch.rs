//! `web_fetch`: fetches a web page. Read-only.
//!
//! Called by the catalog; calls the port [`super::Services`], which enforces the network policy of the
//! session's environment: a host that the sandbox may not reach cannot be fetched.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use super::{CallResult, Fault, Invocation, SandboxHandle, Tool, output, parse, tell};
use crate::{
    base::{limit, text},
    domain::tool::{Replay, ToolSpec},
};

#[derive(Debug, Deserialize)]
struct Args {
    url: String,
}

pub(super) const TOOL: Tool = Tool { spec, parse: parse::<Args> };

fn spec() -> ToolSpec {
    ToolSpec {
        name: "web_fetch".to_owned(),
        description:
            "Fetches a URL with GET and returns the response as text. Only hosts that the session's \
            environment allows can be fetched. Redirects are followed."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "url": {
                    "type": "string", "minLength": 1, "maxLength": limit::NET_URL_BYTES_MAX,
                    "description": "An absolute http or https URL.",
                },
            },
            "required": ["url"],
            "additionalProperties": false,
        }),
        replay: Replay::ReadOnly,
    }
}

#[async_trait]
impl Invocation for Args {
    async fn run(&self, _call_id: &str, handle: &SandboxHandle) -> Result<CallResult, Fault> {
        let page = match handle.services.fetch(&self.url).await {
            Ok(page) => page,
            Err(words) => return tell(format!("Nothing was fetched. {words}")),
        };
        let head = format!("{} answered {} ({})", page.url, page.status, kind(&page.content_type));
        if page.content.contains(&0) {
            return Ok(CallResult::ok(format!("{head}: {} bytes that are no text", page.content.len())));
        }
        let cut = if page.is_cut {
            format!("\n[only the first {} bytes were read]", page.content.len())
        } else {
            String::new()
        };
        let text = output::cap(&text::printable(&page.content), "Fetch a more precise URL.");
        let whole = format!("{head}{cut}\n\n{text}");
        Ok(if page.status < 400 { CallResult::ok(whole) } else { CallResult::error(whole) })
    }
}

fn kind(content_type: &str) -> &str {
    if content_type.is_empty() { "no content type" } else { content_type }
}
