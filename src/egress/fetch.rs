//! Fetching of a page for a tool, under the same rules as for the sandbox.
//!
//! Called by `turn` for `web_fetch`; calls `exchange`. Each redirect is authorized as a new request;
//! placeholders in a URL are replaced as in the sandbox's requests.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{
    Method, Request, Response,
    header::{ACCEPT_ENCODING, CONTENT_TYPE, HOST, LOCATION, USER_AGENT},
};
use tokio::time::timeout;
use url::Url;

use super::{
    decision::{Decision, Reason, Verdict},
    message::{Body, Refusal, Target, whole},
    proxy::Proxy,
};
use crate::{
    base::limit::{FETCH_BYTES_MAX, FETCH_REDIRECTS_MAX, FETCH_TIMEOUT},
    domain::network::{BadHost, canonical},
};

/// Response to a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// URL of the response, after redirects.
    pub url: String,
    pub status: u16,
    pub content_type: String,
    pub content: Vec<u8>,
    /// Whether the content was truncated.
    pub is_cut: bool,
}

/// Reason why nothing was fetched, as text for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FetchFault(pub String);

const AGENT: &str = concat!("sojourn/", env!("CARGO_PKG_VERSION"));

impl Proxy {
    /// Fetches a page with GET and follows redirects.
    pub async fn fetch(&self, url: &str) -> Result<Fetched, FetchFault> {
        let within = timeout(FETCH_TIMEOUT, self.follow(url)).await;
        within.unwrap_or_else(|_| Err(FetchFault(format!("no answer within {} s", seconds(FETCH_TIMEOUT)))))
    }

    async fn follow(&self, url: &str) -> Result<Fetched, FetchFault> {
        let mut url = Url::parse(url).map_err(|error| FetchFault(format!("not a URL: {error}")))?;
        for _ in 0..=FETCH_REDIRECTS_MAX {
            let answer = self.ask(&url).await?;
            let next = answer.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            match next.filter(|_| answer.status().is_redirection()) {
                Some(next) => {
                    url = url.join(next).map_err(|_| FetchFault(format!("{url} has an invalid redirect")))?;
                }
                None => return read(url, answer).await,
            }
        }
        Err(FetchFault(format!("more than {FETCH_REDIRECTS_MAX} redirects")))
    }

    async fn ask(&self, url: &Url) -> Result<Response<Body>, FetchFault> {
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(FetchFault("only http and https URLs can be fetched".to_owned())),
        };
        let port = url.port_or_known_default().unwrap_or_default();
        let host = url.host_str().unwrap_or_default();
        let refused = |refusal: Refusal| FetchFault(format!("{host}: {refusal}"));
        let target = match canonical(host) {
            Ok(name) => Target { host: name, port, tls },
            Err(bad) => {
                let reason = match bad {
                    BadHost::Address => Reason::AddressLiteral,
                    BadHost::Name | BadHost::Wildcard => Reason::BadHost,
                };
                let verdict = Verdict::Denied(reason);
                let decision =
                    Decision { host: host.to_owned(), port, method: Method::GET.to_string(), verdict };
                return Err(refused(self.refuse(decision, reason).await));
            }
        };
        let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let request = Request::get(path)
            .header(HOST, format!("{}:{port}", target.host))
            .header(USER_AGENT, AGENT)
            .header(ACCEPT_ENCODING, "identity")
            .body(whole(String::new()))
            .map_err(|_| FetchFault("this URL cannot be fetched".to_owned()))?;
        self.exchange(&target, request).await.map_err(refused)
    }
}

async fn read(url: Url, answer: Response<Body>) -> Result<Fetched, FetchFault> {
    let status = answer.status().as_u16();
    let content_type = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_owned();
    let (mut body, mut content, mut is_cut) = (answer.into_body(), Vec::new(), false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| FetchFault(format!("{url} broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let space_left = FETCH_BYTES_MAX - content.len();
        content.extend_from_slice(&data[..data.len().min(space_left)]);
        if data.len() > space_left {
            is_cut = true;
            break;
        }
    }
    Ok(Fetched { url: url.to_string(), status, content_type, content, is_cut })
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs()
}
