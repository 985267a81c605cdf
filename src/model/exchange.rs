//! One HTTP exchange with a provider: a POST, then an event stream or an error.
//!
//! Called by the adapters; calls reqwest, and `net` through the [`Guard`] for a URL that an
//! organization set. Every read is bounded in time and bytes, and errors contain no secret.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::{Client, Method, RequestBuilder, Response, header::HeaderMap};
use time::{PrimitiveDateTime, format_description::BorrowedFormatItem, macros::format_description};
use url::Url;

use super::{
    Delta, Fault,
    sse::{Frame, Frames},
};
use crate::{
    base::{ExposeSecret, SecretString, limit, text, trace},
    domain::{Answer, provider_header::default_key_header},
};

/// Validates a URL that an organization set and prepares a POST to the validated address.
///
/// The message of an `Err` is shown to the organization.
pub type Guard = Arc<dyn Fn(&Url) -> Result<RequestBuilder, String> + Send + Sync>;

/// Shorter values of headers, such as a version, are no secrets.
const REDACTED_BYTES_MIN: usize = 8;

/// HTTP client of the adapters; cheap to clone.
#[derive(Clone)]
pub struct Http {
    trusted: Client,
    guard: Option<Guard>,
    first_byte: Duration,
    between_chunks: Duration,
}

impl Http {
    /// Creates a client: `trusted` for the URLs of the settings, `guard` for those of
    /// organizations.
    ///
    /// Without a guard, URLs of organizations are refused.
    pub fn new(trusted: Client, guard: Option<Guard>) -> Self {
        Self {
            trusted,
            guard,
            first_byte: limit::MODEL_FIRST_BYTE_TIMEOUT,
            between_chunks: limit::MODEL_CHUNK_TIMEOUT,
        }
    }

    /// Sets the timeouts after which a provider has stalled.
    pub fn with_timeouts(self, first_byte: Duration, between_chunks: Duration) -> Self {
        Self { first_byte, between_chunks, ..self }
    }

    // The only place that chooses the client for a URL, and the connection to `net`.
    fn post(&self, endpoint: &Endpoint) -> Result<RequestBuilder, Fault> {
        if !endpoint.org_named {
            return Ok(self.trusted.request(Method::POST, endpoint.url.clone()));
        }
        let refused = |reason| Fault::Refused { reason };
        let guard =
            self.guard.as_ref().ok_or_else(|| refused("custom base URLs are disabled here".into()))?;
        guard(&endpoint.url).map_err(refused)
    }

    /// Sends `body` and waits for the head of the response.
    pub(super) async fn send(&self, endpoint: &Endpoint, body: Vec<u8>) -> Result<Reply, Fault> {
        let mut request = self.post(endpoint)?.header("content-type", "application/json").body(body);
        for (name, value) in &endpoint.headers {
            request = request.header(name, value.expose_secret());
        }
        if let Some(context) = trace::current() {
            request = request.header(trace::TRACEPARENT, context);
        }
        let response = within(self.first_byte, "no first byte", request.send())
            .await?
            .map_err(|error| unavailable(&format!("no connection: {}", cause(error))))?;
        let chunks = Chunks {
            response,
            read: 0,
            patience: self.first_byte,
            between_chunks: self.between_chunks,
            secrets: endpoint.secrets.clone(),
        };
        if chunks.response.status().is_success() {
            return chunks.event_stream().map(Reply::Stream);
        }
        Ok(Reply::Refusal(chunks.refusal().await))
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("guarded", &self.guard.is_some()).finish_non_exhaustive()
    }
}

/// Creates the client for URLs of the settings: no redirects, the platform's root certificates.
///
/// # Panics
/// If the platform's certificate store cannot be read at all.
pub fn trusted_client() -> Client {
    // Ignored if the process already has a provider; any provider works.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(limit::MODEL_CONNECT_TIMEOUT)
        .build()
        .expect("a client with default settings can be built")
}

/// Authentication and headers of a provider's calls, as its credential has them.
#[derive(Clone, Debug)]
pub(super) struct Access {
    /// Whether an organization set the URL, not the settings.
    pub org_named: bool,
    pub key: SecretString,
    /// The header of the key, if it is not that of the API.
    pub key_header: Option<String>,
    /// Further headers, with names in lower case.
    pub headers: Vec<(String, SecretString)>,
}

/// URL and headers of a provider.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    url: Url,
    /// Whether an organization set the URL, not the settings.
    org_named: bool,
    headers: Vec<(String, SecretString)>,
    /// Texts that no error of the provider may show.
    secrets: Vec<SecretString>,
}

impl Endpoint {
    /// Returns the endpoint of an API of `provider` that needs `own` headers.
    pub(super) fn new(url: Url, access: Access, provider: &str, own: &[(&str, &str)]) -> Self {
        let Access { org_named, key, key_header: named, headers } = access;
        let key_header = named.unwrap_or_else(|| default_key_header(provider).to_owned());
        let prefix = if key_header == "authorization" { "Bearer " } else { "" };
        let value = format!("{prefix}{}", key.expose_secret());
        let is_own = |name: &str| name != key_header && headers.iter().all(|(further, _)| further != name);
        let own = own.iter().filter(|(name, _)| is_own(name));
        let mut all: Vec<(String, SecretString)> =
            own.map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        all.push((key_header, value.into()));
        let values = headers.iter().map(|(_, value)| value.clone());
        let values = values.filter(|value| value.expose_secret().len() >= REDACTED_BYTES_MIN);
        let key = Some(key).filter(|key| !key.expose_secret().is_empty());
        let secrets = key.into_iter().chain(values).collect();
        all.extend(headers);
        Self { url, org_named, headers: all, secrets }
    }

    /// Returns the endpoint of an API of OpenAI, whose path follows that of the base.
    pub(super) fn openai(base: &Url, path: &str, access: Access, provider: &str) -> Self {
        let mut url = base.clone();
        url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
        Self::new(url, access, provider, &[])
    }
}

/// Response of a provider.
pub(super) enum Reply {
    Stream(Chunks),
    Refusal(Refusal),
}

/// A response other than 2xx.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub status: u16,
    pub retry_after: Option<Duration>,
    /// The beginning of the body; the key is redacted.
    pub body: String,
}

/// A response body, bounded in time and bytes.
pub(super) struct Chunks {
    response: Response,
    read: usize,
    // The first byte may take longer than later ones.
    patience: Duration,
    between_chunks: Duration,
    secrets: Vec<SecretString>,
}

impl Chunks {
    fn event_stream(self) -> Result<Self, Fault> {
        let kind = self.response.headers().get("content-type").and_then(|value| value.to_str().ok());
        match kind {
            Some(kind) if !kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream") => {
                let kind = text::truncate(kind, 80);
                Err(Fault::Refused { reason: format!("the server returned {kind}, not text/event-stream") })
            }
            Some(_) | None => Ok(self),
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        let chunk = within(self.patience, "the stream stalled", self.response.chunk())
            .await?
            .map_err(|error| unavailable(&format!("the stream was interrupted: {}", cause(error))))?;
        self.patience = self.between_chunks;
        self.read += chunk.as_ref().map_or(0, Bytes::len);
        if self.read > limit::MODEL_RESPONSE_BYTES_MAX {
            let most = limit::MODEL_RESPONSE_BYTES_MAX;
            return Err(Fault::Refused { reason: format!("the response is longer than {most} bytes") });
        }
        Ok(chunk)
    }

    // Reads the rest after the last frame, normally nothing. A connection is reused only if its
    // body was read to the end.
    async fn drain(&mut self) {
        let all = async { while let Ok(Some(_)) = self.next().await {} };
        let _ = tokio::time::timeout(limit::MODEL_DRAIN_TIMEOUT, all).await;
    }

    // If the body does not arrive, the status alone is used.
    async fn refusal(mut self) -> Refusal {
        let status = self.response.status().as_u16();
        let whole = self.patience;
        let retry_after = retry_after(self.response.headers());
        let mut body = Vec::new();
        let all = async {
            while body.len() < limit::MODEL_ERROR_BYTES_MAX
                && let Ok(Some(chunk)) = self.next().await
            {
                body.extend_from_slice(&chunk);
            }
        };
        // One timeout for all chunks: a body that arrives too slowly is a stall too.
        let _ = tokio::time::timeout(whole, all).await;
        body.truncate(limit::MODEL_ERROR_BYTES_MAX);
        let body = redacted(&self.secrets, String::from_utf8_lossy(&body).into_owned());
        Refusal { status, retry_after, body }
    }
}

/// Assembles the frames of one response.
pub(super) trait Reader {
    /// Processes one frame; returns `true` if it was the last one.
    fn frame(&mut self, frame: &Frame, deltas: &mut (dyn FnMut(Delta) + Send)) -> Result<bool, Fault>;

    /// Returns the response, or an error if it is incomplete.
    fn finish(self) -> Result<Answer, Fault>;
}

/// Reads a stream to its last frame, or to its end.
pub(super) async fn read(
    chunks: Chunks,
    reader: impl Reader + Send,
    deltas: &mut (dyn FnMut(Delta) + Send),
) -> Result<Answer, Fault> {
    let secrets = chunks.secrets.clone();
    let answer = read_frames(chunks, reader, deltas).await;
    answer.map_err(|fault| fault.map_reason(|reason| redacted(&secrets, reason)))
}

/// Replaces the texts that no error may show, also in the form that JSON has for them.
fn redacted(secrets: &[SecretString], mut text: String) -> String {
    for secret in secrets {
        let plain = secret.expose_secret();
        let quoted = serde_json::Value::from(plain).to_string();
        text = text.replace(plain, "[key]").replace(quoted.trim_matches('"'), "[key]");
    }
    text
}

async fn read_frames(
    mut chunks: Chunks,
    mut reader: impl Reader + Send,
    deltas: &mut (dyn FnMut(Delta) + Send),
) -> Result<Answer, Fault> {
    let mut frames = Frames::default();
    while let Some(chunk) = chunks.next().await? {
        for frame in frames.push(&chunk) {
            if reader.frame(&frame, deltas)? {
                chunks.drain().await;
                return reader.finish();
            }
        }
    }
    reader.finish()
}

/// Returns a fault that a retry may resolve.
pub(super) fn unavailable(reason: &str) -> Fault {
    Fault::Unavailable { reason: short(reason), retry_after: None }
}

/// Truncates a provider's message to the size that an event stores.
pub(super) fn short(reason: &str) -> String {
    text::truncate(reason, limit::MODEL_REASON_BYTES_MAX).to_owned()
}

async fn within<T>(time: Duration, stalled: &str, work: impl Future<Output = T>) -> Result<T, Fault> {
    let elapsed = |_| unavailable(&format!("{stalled} within {} s", time.as_secs_f64()));
    tokio::time::timeout(time, work).await.map_err(elapsed)
}

/// Returns the innermost cause. reqwest's own message contains the URL, which may be private to the
/// operator. The cause may also be a refusal of the guard, which does not distinguish a private
/// name from one that DNS cannot resolve at the moment.
fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut source: &dyn std::error::Error = &error;
    while let Some(inner) = source.source() {
        source = inner;
    }
    source.to_string()
}

const HTTP_DATE: &[BorrowedFormatItem<'_>] =
    format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");

/// Returns the wait that the provider requests: `retry-after-ms`, or `retry-after` in seconds or as
/// a date, relative to the response's `date` header.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let date = |text: &str| PrimitiveDateTime::parse(text, HTTP_DATE).ok().map(PrimitiveDateTime::assume_utc);
    let seconds =
        |text: &str| text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let until = |text: &str| -> Option<Duration> {
        let wait: time::Duration = date(text)? - header("date").and_then(date)?;
        Some(wait.try_into().unwrap_or(Duration::ZERO))
    };
    let millis = header("retry-after-ms").and_then(|text| text.parse().ok()).map(Duration::from_millis);
    let wait =
        millis.or_else(|| header("retry-after").and_then(|text| seconds(text).or_else(|| until(text))))?;
    Some(wait.min(limit::MODEL_RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn wait(headers: &[(&'static str, &'static str)]) -> Option<Duration> {
        let pairs = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        retry_after(&pairs.collect())
    }

    #[test]
    fn retry_after_is_read_in_every_form_and_never_believed_beyond_its_bound() {
        let date = ("date", "Wed, 21 Oct 2026 07:28:00 GMT");
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[("retry-after", "0.5")]), Some(Duration::from_millis(500)));
        assert_eq!(
            wait(&[("retry-after-ms", "250"), ("retry-after", "9")]),
            Some(Duration::from_millis(250))
        );
        let later = ("retry-after", "Wed, 21 Oct 2026 07:29:30 GMT");
        assert_eq!(wait(&[date, later]), Some(Duration::from_secs(90)));
        let past = ("retry-after", "Wed, 21 Oct 2026 07:00:00 GMT");
        assert_eq!(wait(&[date, past]), Some(Duration::ZERO));
        assert_eq!(wait(&[("retry-after", "99999999999")]), Some(limit::MODEL_RETRY_AFTER_MAX));
        for nonsense in ["", "soon", "-1", "nan", "inf", "1e400"] {
            assert_eq!(wait(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
    }
}
