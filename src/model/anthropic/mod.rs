//! Adapter of Anthropic's Messages API, streaming.
//!
//! Called through the port `Model`; calls `exchange`. The provider's blocks are stored and sent
//! back verbatim, because the signatures of its thinking depend on them.
//! (platform.claude.com/docs/en/api/messages)

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

pub(super) use request::PROVIDER;
pub(super) use request::body as encode;

/// The default `anthropic-version` header.
///
/// `2026-10-21` works too: the parameters that it removed (sampling) are never sent.
pub(super) const VERSION_DEFAULT: &str = "2023-06-01";

/// One endpoint and API key of the Messages API.
#[derive(Debug)]
pub(super) struct Anthropic {
    http: Http,
    endpoint: Endpoint,
}

impl Anthropic {
    /// Creates an adapter; `base_url` is the part before `/v1/messages`.
    pub(super) fn new(http: Http, base_url: &Url, access: Access, version: &str) -> Self {
        let own = [("anthropic-version", version)];
        Self { http, endpoint: Endpoint::new(messages_url(base_url), access, PROVIDER, &own) }
    }
}

#[async_trait]
impl Model for Anthropic {
    fn provider(&self) -> &str {
        PROVIDER
    }

    async fn answer(
        &self,
        request: &ModelRequest,
        deltas: &mut (dyn FnMut(Delta) + Send),
    ) -> Result<Answer, Fault> {
        match self.http.send(&self.endpoint, request::body(request)).await? {
            Reply::Stream(chunks) => read(chunks, stream::Stream::default(), deltas).await,
            Reply::Refusal(refusal) => Err(fault::from_refusal(&refusal)),
        }
    }
}

// Operators configure the base URL both with and without the version segment.
fn messages_url(base: &Url) -> Url {
    let mut url = base.clone();
    let path = base.path().trim_end_matches('/');
    url.set_path(&format!("{}/v1/messages", path.strip_suffix("/v1").unwrap_or(path)));
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_url_is_read_with_and_without_its_version() {
        for base in
            ["https://a.example", "https://a.example/", "https://a.example/v1", "https://a.example/v1/"]
        {
            let url = messages_url(&base.parse().expect("an address"));
            assert_eq!(url.as_str(), "https://a.example/v1/messages", "{base}");
        }
        let url = messages_url(&"https://a.example/proxy".parse().expect("an address"));
        assert_eq!(url.as_str(), "https://a.example/proxy/v1/messages");
    }
}
