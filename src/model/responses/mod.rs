//! Adapter of OpenAI's Responses API, streaming and without state at the provider.
//!
//! Called through the port `Model`; calls `exchange`. The raw response is its list of items, which is sent back to the same
//! provider: reasoning is encrypted and bound to the items behind it. (platform.openai.com/docs/api-reference/responses)

mod request;
mod stream;

use async_trait::async_trait;
use url::Url;

use super::{
    Delta, Fault, Model,
    exchange::{Access, Endpoint, Http, Reply, read},
    openai,
};
use crate::domain::{Answer, conversation::ModelRequest};

pub(super) use request::body as encode;

/// Ends the name of a provider in the log: histories of its two APIs have different items. No provider has a slash.
pub(super) const SUFFIX: &str = "/responses";

/// One endpoint and API key of a Responses API.
#[derive(Debug)]
pub(super) struct Responses {
    provider: String,
    http: Http,
    endpoint: Endpoint,
}

impl Responses {
    /// Creates an adapter; `base_url` is the part before `/responses`.
    pub(super) fn new(http: Http, base_url: &Url, access: Access, provider: &str) -> Self {
        let endpoint = Endpoint::openai(base_url, "/responses", access, provider);
        Self { provider: format!("{provider}{SUFFIX}"), http, endpoint }
    }
}

#[async_trait]
impl Model for Responses {
    fn provider(&self) -> &str {
        &self.provider
    }

    async fn answer(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, Fault> {
        let mut body = request::body(request, &self.provider);
        for is_last in [false, true] {
            let sent_bytes = body.len();
            match self.http.send(&self.endpoint, body).await? {
                Reply::Stream(chunks) => {
                    return read(chunks, stream::Stream::new(request, sent_bytes), deltas).await;
                }
                Reply::Refusal(refusal) if is_last || !is_about_reasoning(&refusal.body) => {
                    return Err(openai::from_refusal(&refusal));
                }
                Reply::Refusal(_) => body = request::plain_body(request),
            }
        }
        unreachable!("the second refusal is returned")
    }
}

/// Whether a request was refused for reasoning that another key, or another model, received.
fn is_about_reasoning(refusal: &str) -> bool {
    const WORDS: [&str; 5] = [
        "invalid_encrypted_content",
        "Reasoning input items",
        "required 'reasoning' item",
        "required following item",
        "Items are not persisted",
    ];
    WORDS.iter().any(|words| refusal.contains(words))
}
