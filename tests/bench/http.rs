//! A caller of the service: requests, and a stream reader with little overhead.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail};
use futures::{StreamExt, stream::BoxStream};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::ground::KEY;

/// One caller with its own connections.
#[derive(Clone)]
pub struct Caller {
    http: reqwest::Client,
    base: String,
}

/// An open stream.
pub struct Reader {
    chunks: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: Vec<u8>,
}

impl Caller {
    pub fn of(address: SocketAddr) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
        Ok(Self { http, base: format!("http://{address}/v3") })
    }

    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        answer(self.http.post(format!("{}{path}", self.base)).bearer_auth(KEY).json(body)).await
    }

    /// As [`Caller::post`], with an idempotency key that makes a retry safe.
    pub async fn post_once(&self, path: &str, key: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self.http.post(format!("{}{path}", self.base)).bearer_auth(KEY).json(body);
        answer(request.header("idempotency-key", key)).await
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        answer(self.http.get(format!("{}{path}", self.base)).bearer_auth(KEY)).await
    }

    /// A request with an invalid token: it is looked up and rejected.
    pub async fn stranger(&self, path: &str) -> anyhow::Result<()> {
        let token = "sjc_a_token_that_opens_nothing";
        let response = self.http.get(format!("{}{path}", self.base)).bearer_auth(token).send().await?;
        if response.status() != reqwest::StatusCode::UNAUTHORIZED {
            bail!("an invalid token is answered {}", response.status());
        }
        Ok(())
    }

    /// Creates an agent whose turns play the script of their input.
    pub async fn agent(&self) -> anyhow::Result<String> {
        let agent = json!({ "name": "bench", "prompt": "Play the script.", "model": "scripted/inline" });
        id(&self.post("/agents", &agent).await?)
    }

    /// Creates a session of an agent; with input, its first turn is queued.
    pub async fn session(&self, agent: &str, input: Option<&Value>) -> anyhow::Result<String> {
        let mut body = json!({ "agent": agent });
        if let Some(input) = input {
            body["input"] = input.clone();
        }
        id(&self.post("/sessions", &body).await?["session"])
    }

    pub async fn steer(&self, session: &str, text: &str) -> anyhow::Result<Value> {
        self.post(&format!("/sessions/{session}/messages"), &json!({ "text": text })).await
    }

    /// Waits until a session is idle.
    pub async fn settled(&self, session: &str) -> anyhow::Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            let found = self.get(&format!("/sessions/{session}")).await?;
            if matches!(found["status"].as_str(), Some("idle" | "failed")) {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("{session} did not become idle")
    }

    /// Number of lines of a response that is read as it arrives.
    pub async fn lines(&self, path: &str) -> anyhow::Result<usize> {
        let response = self.http.get(format!("{}{path}", self.base)).bearer_auth(KEY).send().await?;
        let mut chunks = response.error_for_status()?.bytes_stream();
        let mut lines = 0;
        while let Some(chunk) = chunks.next().await {
            lines += chunk?.iter().filter(|byte| **byte == b'\n').count();
        }
        Ok(lines)
    }

    /// Follows a session after `after`.
    pub async fn follow(&self, session: &str, after: i64) -> anyhow::Result<Reader> {
        self.read(&format!("{}/sessions/{session}/events?stream=sse&after={after}", self.base)).await
    }

    /// Follows a session from its first event, at every level.
    pub async fn follow_all(&self, session: &str) -> anyhow::Result<Reader> {
        self.read(&format!("{}/sessions/{session}/events?stream=sse&level=internal", self.base)).await
    }

    async fn read(&self, url: &str) -> anyhow::Result<Reader> {
        let response = self.http.get(url).bearer_auth(KEY).send().await?.error_for_status()?;
        Ok(Reader { chunks: response.bytes_stream().boxed(), buffer: Vec::new() })
    }
}

impl Reader {
    /// The next frame that is an event: its `seq` and its JSON line.
    pub async fn next(&mut self) -> anyhow::Result<(i64, String)> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let frame = std::str::from_utf8(&frame)?;
                let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(seq), Some(data)) = (field("id: "), field("data: ")) {
                    return Ok((seq.parse()?, data.to_owned()));
                }
                continue;
            }
            let chunk = self.chunks.next().await.context("the stream ended")??;
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// Reads until an event of this type.
    pub async fn until(&mut self, kind: &str) -> anyhow::Result<Value> {
        self.until_any(&[kind]).await
    }

    /// Reads until an event of one of these types.
    pub async fn until_any(&mut self, kinds: &[&str]) -> anyhow::Result<Value> {
        let marks: Vec<_> = kinds.iter().map(|kind| format!("\"type\":\"{kind}\"")).collect();
        loop {
            let (_, data) = self.next().await?;
            if marks.iter().any(|mark| data.contains(mark)) {
                return Ok(serde_json::from_str(&data)?);
            }
        }
    }
}

/// Id of a created resource.
pub fn id(made: &Value) -> anyhow::Result<String> {
    Ok(made["id"].as_str().context("an id")?.to_owned())
}

async fn answer(request: reqwest::RequestBuilder) -> anyhow::Result<Value> {
    let response = request.send().await?;
    let status = response.status();
    let text = response.text().await?;
    anyhow::ensure!(status.is_success(), "answered {status}: {text}");
    Ok(serde_json::from_str(&text)?)
}
