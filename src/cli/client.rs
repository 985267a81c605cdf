//! API client of the command line: plain JSON in and out.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use futures::{Stream, StreamExt};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use super::settings;
use crate::base::{ExposeSecret, SecretString, limit::FILE_READ_BYTES_MAX};

/// Default address of `sojourn serve`.
const LOCAL: &str = "http://127.0.0.1:8080";
/// Delay before an interrupted stream is resumed.
const RESUME_DELAY: Duration = Duration::from_secs(1);
/// Maximum consecutive failures to resume a stream.
const RESUMES_MAX: u32 = 60;

/// Address of the service and API key.
#[derive(Clone, Debug, Args)]
pub(super) struct Connection {
    /// Address of the service [default: http://127.0.0.1:8080]
    #[arg(long, global = true, env = "SOJOURN_URL", value_name = "URL")]
    pub url: Option<String>,

    /// API key [default: from the configuration file, else the key in the data directory of a local `sojourn
    /// serve`]
    #[arg(long, global = true, env = "SOJOURN_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,

    /// Data directory of a local service, which contains its API key
    #[arg(long, global = true, default_value = "./data", env = "SOJOURN_DATA_DIR", value_name = "DIRECTORY")]
    pub data_dir: PathBuf,

    /// Print JSON: one document, or one line per event
    #[arg(long, global = true)]
    pub json: bool,
}

/// Client of the API.
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    key: SecretString,
}

impl Connection {
    /// Creates a client. Settings are taken from the command line or environment, then from the configuration
    /// file, then from a local service.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        let file = settings::File::read()?;
        let url = self.url.clone().or(file.url).unwrap_or_else(|| LOCAL.to_owned());
        let key = match self.api_key.clone().or(file.api_key) {
            Some(key) => key,
            None => {
                let file = self.data_dir.join("api-key");
                fs::read_to_string(&file).with_context(|| {
                    format!("no API key: set SOJOURN_API_KEY ({} cannot be read)", file.display())
                })?
            }
        };
        Client::new(&url, key.trim().to_owned().into())
    }
}

impl Client {
    /// Creates a client of the service at `url`, with or without `/v3`.
    pub(super) fn new(url: &str, key: SecretString) -> anyhow::Result<Self> {
        let root = url.trim_end_matches('/').trim_end_matches("/v3");
        let http = reqwest::Client::builder()
            .user_agent(concat!("sojourn-cli/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self { http, base: format!("{root}/v3"), key })
    }

    /// Absolute URL of a path in a response.
    pub(super) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.base.trim_end_matches("/v3"))
    }

    /// Reads a resource.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.request(Method::GET, path)).await
    }

    /// Sends a POST request.
    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// Sends an idempotent POST request, repeating it while the service is unavailable. Does not wait for the
    /// result of the operation.
    pub(super) async fn claim_slot(&self, path: &str, body: &Value, key: &str) -> anyhow::Result<Value> {
        for _ in 0..RESUMES_MAX {
            let request = self.request(Method::POST, path).header("idempotency-key", key).json(body);
            let request = request.header("prefer", "wait=0");
            match request.send().await {
                Ok(response) if !response.status().is_server_error() => {
                    return Ok(accepted(response).await?.json().await?);
                }
                Ok(_) | Err(_) => tokio::time::sleep(RESUME_DELAY).await,
            }
        }
        bail!("the service cannot be reached")
    }

    /// Updates a resource.
    pub(super) async fn patch(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(self.request(Method::PATCH, path).json(body)).await
    }

    /// Creates or replaces a resource.
    pub(super) async fn put(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    /// Deletes a resource.
    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Follows a session's log from `after`, in order and without gaps. Resumes after interruptions; ends
    /// only when the caller stops reading.
    pub(super) fn follow<'a>(
        &'a self,
        session: &'a str,
        level: &'a str,
        after: i64,
    ) -> impl Stream<Item = anyhow::Result<Value>> + 'a {
        self.tail(format!("/sessions/{session}/events?stream=sse&level={level}&after={after}"))
    }

    /// Follows the list of sessions filtered by `query`; resumes after interruptions.
    pub(super) fn follow_list<'a>(&'a self, query: &str) -> impl Stream<Item = anyhow::Result<Value>> + 'a {
        let more = query.strip_prefix('?').map(|more| format!("&{more}")).unwrap_or_default();
        self.tail(format!("/sessions?stream=sse{more}"))
    }

    /// Follows a command's output, resuming after interruptions; the last frame reports its end.
    pub(super) fn follow_exec<'a>(&'a self, path: &str) -> impl Stream<Item = anyhow::Result<Value>> + 'a {
        self.tail(format!("{path}?stream=sse"))
    }

    fn tail(&self, path: String) -> impl Stream<Item = anyhow::Result<Value>> + '_ {
        let start = Tail { client: self, path, last_id: None, failures: 0, frames: None };
        futures::stream::try_unfold(start, |mut tail| async move {
            let event = tail.next().await?;
            Ok(Some((event, tail)))
        })
    }

    /// Streams a response to a writer. A truncated response is an error.
    pub(super) async fn download(&self, path: &str, into: &mut impl Write) -> anyhow::Result<()> {
        let response = self.request(Method::GET, path).send().await;
        let response = accepted(response.context("the service cannot be reached")?).await?;
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            into.write_all(&chunk.context("the response was interrupted; the output is incomplete")?)?;
        }
        Ok(into.flush()?)
    }

    /// Writes a response to a file, or to standard output.
    pub(super) async fn download_to(&self, path: &str, output: Option<&Path>) -> anyhow::Result<()> {
        let Some(output) = output else { return self.download(path, &mut io::stdout().lock()).await };
        let created = File::create(output);
        let file = created.with_context(|| format!("{} cannot be written", output.display()))?;
        self.download(path, &mut BufWriter::new(file)).await
    }

    /// Writes a file in parts of the maximum response size.
    pub(super) async fn download_parts(&self, path: &str, into: &mut impl Write) -> anyhow::Result<()> {
        let mut first: u64 = 0;
        loop {
            let last = first + FILE_READ_BYTES_MAX - 1;
            let request = self.request(Method::GET, path).header("range", format!("bytes={first}-{last}"));
            let response = accepted(request.send().await.context("the service cannot be reached")?).await?;
            let headers = response.headers().clone();
            let part = response.bytes().await.context("the response was interrupted")?;
            into.write_all(&part)?;
            first += part.len() as u64;
            let range = headers.get("content-range").and_then(|range| range.to_str().ok());
            let size: Option<u64> = range.and_then(|range| range.rsplit('/').next()?.parse().ok());
            if part.is_empty() || size.is_none_or(|size| first >= size) {
                return Ok(into.flush()?);
            }
        }
    }

    /// Uploads a file with PUT.
    pub(super) async fn upload_in_place(&self, path: &str, body: Vec<u8>) -> anyhow::Result<Value> {
        let request = self.request(Method::PUT, path).header("content-type", "application/octet-stream");
        self.send(request.body(body)).await
    }

    /// Uploads an archive with PUT, streaming it.
    pub(super) async fn upload_archive(
        &self,
        path: &str,
        from: impl AsyncRead + Send + Sync + 'static,
    ) -> anyhow::Result<Value> {
        let request = self.request(Method::PUT, path).header("content-type", "application/x-tar");
        self.send(request.body(reqwest::Body::wrap_stream(ReaderStream::new(from)))).await
    }

    /// Uploads a file with POST.
    pub(super) async fn upload(&self, path: &str, kind: &str, body: Vec<u8>) -> anyhow::Result<Value> {
        self.send(self.request(Method::POST, path).header("content-type", kind).body(body)).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        request.header("x-sojourn-client", "cli").bearer_auth(self.key.expose_secret())
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let response = accepted(request.send().await.context("the service cannot be reached")?).await?;
        Ok(serde_json::from_str(&response.text().await?).unwrap_or(Value::Null))
    }
}

/// An event stream that resumes itself.
struct Tail<'a> {
    client: &'a Client,
    path: String,
    /// Id of the last frame.
    last_id: Option<String>,
    failures: u32,
    frames: Option<Frames>,
}

struct Frames {
    chunks: futures::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: Vec<u8>,
}

impl Tail<'_> {
    async fn next(&mut self) -> anyhow::Result<Value> {
        loop {
            if self.frames.is_none() {
                self.frames = self.connect().await?;
            }
            let Some(frames) = &mut self.frames else { continue };
            match frames.next().await {
                Some((id, event)) => {
                    self.failures = 0;
                    self.last_id = id.or(self.last_id.take());
                    return Ok(event);
                }
                None => self.frames = None,
            }
        }
    }

    /// Opens the stream; `None` after a delay if the service is unavailable.
    async fn connect(&mut self) -> anyhow::Result<Option<Frames>> {
        let mut request = self.client.request(Method::GET, &self.path);
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        match request.send().await {
            Ok(response) if !response.status().is_server_error() => {
                let chunks = accepted(response).await?.bytes_stream().boxed();
                return Ok(Some(Frames { chunks, buffer: Vec::new() }));
            }
            Ok(_) | Err(_) => {}
        }
        self.failures += 1;
        if self.failures >= RESUMES_MAX {
            bail!("the stream was interrupted and the service did not become available");
        }
        tokio::time::sleep(RESUME_DELAY).await;
        Ok(None)
    }
}

impl Frames {
    /// Next event with its id; `None` when the stream is interrupted.
    async fn next(&mut self) -> Option<(Option<String>, Value)> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let frame = String::from_utf8_lossy(&frame);
                let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
                if let Some(event) = field("data: ").and_then(|data| serde_json::from_str(data).ok()) {
                    return Some((field("id: ").map(str::to_owned), event));
                }
                continue;
            }
            self.buffer.extend_from_slice(&self.chunks.next().await?.ok()?);
        }
    }
}

/// Query string of the given values, including its `?`; empty if there are none.
pub(super) fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, Option<String>)>) -> String {
    let mut written = url::form_urlencoded::Serializer::new(String::new());
    let pairs = pairs.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let query = written.extend_pairs(pairs).finish();
    if query.is_empty() { query } else { format!("?{query}") }
}

/// Returns the response if its status is a success, otherwise the service's reason as the error.
async fn accepted(response: Response) -> anyhow::Result<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let path = response.url().path().to_owned();
    let body: Value = serde_json::from_str(&response.text().await?).unwrap_or_default();
    let mut message =
        body["error"]["message"].as_str().unwrap_or("the service returned no reason").to_owned();
    if status == StatusCode::NOT_FOUND {
        message = format!("{message}: {path}");
    }
    match body["error"]["request_id"].as_str() {
        Some(id) => bail!("{message} ({status}, {id})"),
        None => bail!("{message} ({status})"),
    }
}
