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
    exchange::{Endpoint, Http, Reply, read},
    openai,
};
use crate::{
    base::SecretString,
    domain::{Answer, conversation::ModelRequest},
};

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
    pub(super) fn new(
        http: Http,
        base_url: &Url,
        org_named: bool,
        provider: &str,
        key: SecretString,
    ) -> Self {
        let mut url = base_url.clone();
        url.set_path(&format!("{}/responses", base_url.path().trim_end_matches('/')));
        let headers = Vec::new();
        let endpoint = Endpoint { url, org_named, headers, auth: ("authorization", "Bearer "), key };
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
        let body = request::body(request, &self.provider);
        let sent_bytes = body.len();
        match self.http.send(&self.endpoint, body).await? {
            Reply::Stream(chunks) => read(chunks, stream::Stream::new(request, sent_bytes), deltas).await,
            Reply::Refusal(refusal) => Err(openai::from_refusal(&refusal)),
        }
    }
}
