//! Adapter of OpenAI's chat completions API, streaming, at any compatible URL.
//!
//! Called through the port `Model`; calls `exchange`. The raw response is one assistant message,
//! which is sent back to the same provider verbatim. (platform.openai.com/docs/api-reference/chat)

mod fault;
mod request;
mod stream;

use async_trait::async_trait;
use url::Url;

use super::{
    Delta, Fault, Model,
    exchange::{Access, Endpoint, Http, Reply, read},
};
use crate::domain::{Answer, conversation::ModelRequest};

pub(super) use fault::{from_event, from_refusal};
pub(super) use request::body as encode;

/// OpenAI's provider name in model names, credentials and histories.
pub(super) const PROVIDER: &str = "openai";

/// One endpoint and API key of a chat completions API.
#[derive(Debug)]
pub(super) struct OpenAi {
    provider: String,
    http: Http,
    endpoint: Endpoint,
}

impl OpenAi {
    /// Creates an adapter; `base_url` is the part before `/chat/completions`.
    pub(super) fn new(http: Http, base_url: &Url, access: Access, provider: &str) -> Self {
        let endpoint = Endpoint::openai(base_url, "/chat/completions", access, provider);
        Self { provider: provider.to_owned(), http, endpoint }
    }
}

#[async_trait]
impl Model for OpenAi {
    fn provider(&self) -> &str {
        &self.provider
    }

    async fn answer(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, Fault> {
        let body = request::body(request, &self.provider);
        let sent_bytes = body.len();
        match self.http.send(&self.endpoint, body).await? {
            Reply::Stream(chunks) => read(chunks, stream::Stream::new(request, sent_bytes), deltas).await,
            Reply::Refusal(refusal) => Err(fault::from_refusal(&refusal)),
        }
    }
}
