//! The API as the command line speaks it: one client, plain JSON in and out.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use futures::{Stream, StreamExt};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;

use super::settings;
use crate::base::{ExposeSecret, SecretString};

/// Where `sojourn serve` listens when it is told nothing else.
const LOCAL: &str = "http://127.0.0.1:8080";
/// Pause before a cut stream is resumed.
const RESUME_DELAY: Duration = Duration::from_secs(1);
/// Tries to resume a stream that gives nothing in between.
const RESUMES_MAX: u32 = 60;

/// Which service, and as whom.
#[derive(Clone, Debug, Args)]
pub struct Connection {
    /// Address of the service [default: http://127.0.0.1:8080]
    #[arg(long, global = true, env = "SOJOURN_URL", value_name = "URL")]
    pub url: Option<String>,

    /// API key [default: that of the configuration file, else the one that a local `sojourn serve` keeps in its data directory]
    #[arg(long, global = true, env = "SOJOURN_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,

    /// Where a local service keeps that key
    #[arg(long, global = true, default_value = "./data", env = "SOJOURN_DATA_DIR", value_name = "DIRECTORY")]
    pub data_dir: PathBuf,

    /// Print JSON: one document, or one line an event
    #[arg(long, global = true)]
    pub json: bool,
}

/// A caller of the API.
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: SecretString,
}

impl Connection {
    /// A client: by the command line and the environment, else by the configuration
    /// file, else of a local service.
    pub fn client(&self) -> anyhow::Result<Client> {
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
    /// A client of the service at `url`, with or without `/v3`.
    pub fn new(url: &str, key: SecretString) -> anyhow::Result<Self> {
        let root = url.trim_end_matches('/').trim_end_matches("/v3");
        let http = reqwest::Client::builder()
            .user_agent(concat!("sojourn-cli/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self { http, base: format!("{root}/v3"), key })
    }

    /// Reads a resource.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.request(Method::GET, path)).await
    }

    /// Sends a command.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// Changes a resource.
    pub async fn patch(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(self.request(Method::PATCH, path).json(body)).await
    }

    /// Puts a resource in its place.
    pub async fn put(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    /// Removes a resource.
    pub async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Follows a session's log from `after`, resuming over cuts, in order and
    /// without gaps. Ends only when the caller stops reading.
    pub fn follow<'a>(
        &'a self,
        session: &'a str,
        level: &'a str,
        after: i64,
    ) -> impl Stream<Item = anyhow::Result<Value>> + 'a {
        let start = Tail { client: self, session, level, after, failures: 0, frames: None };
        futures::stream::try_unfold(start, |mut tail| async move {
            let event = tail.next().await?;
            Ok(Some((event, tail)))
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(self.key.expose_secret())
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let response = request.send().await.context("the service cannot be reached")?;
        let status = response.status();
        let text = response.text().await?;
        if status.is_success() {
            return Ok(serde_json::from_str(&text).unwrap_or(Value::Null));
        }
        bail!(refusal(status, &text))
    }
}

/// A stream that resumes itself.
struct Tail<'a> {
    client: &'a Client,
    session: &'a str,
    level: &'a str,
    after: i64,
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
                Some(event) => {
                    self.failures = 0;
                    self.after = event["seq"].as_i64().unwrap_or(self.after);
                    return Ok(event);
                }
                None => self.frames = None,
            }
        }
    }

    /// Opens the stream; `None` after a pause when the service is not there yet.
    async fn connect(&mut self) -> anyhow::Result<Option<Frames>> {
        let path =
            format!("/sessions/{}/events?stream=sse&level={}&after={}", self.session, self.level, self.after);
        match self.client.request(Method::GET, &path).send().await {
            Ok(response) if response.status().is_success() => {
                return Ok(Some(Frames { chunks: response.bytes_stream().boxed(), buffer: Vec::new() }));
            }
            Ok(response) if !response.status().is_server_error() => {
                let status = response.status();
                bail!(refusal(status, &response.text().await.unwrap_or_default()))
            }
            Ok(_) | Err(_) => {}
        }
        self.failures += 1;
        if self.failures >= RESUMES_MAX {
            bail!("the stream was cut and the service did not come back");
        }
        tokio::time::sleep(RESUME_DELAY).await;
        Ok(None)
    }
}

impl Frames {
    /// The next event; `None` when the stream is cut.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let frame = String::from_utf8_lossy(&frame);
                let data = frame.lines().find_map(|line| line.strip_prefix("data: "));
                if let Some(event) = data.and_then(|data| serde_json::from_str(data).ok()) {
                    return Some(event);
                }
                continue;
            }
            self.buffer.extend_from_slice(&self.chunks.next().await?.ok()?);
        }
    }
}

fn refusal(status: StatusCode, text: &str) -> String {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or("the service answered without a reason");
    match body["error"]["request_id"].as_str() {
        Some(id) => format!("{message} ({status}, {id})"),
        None => format!("{message} ({status})"),
    }
}
