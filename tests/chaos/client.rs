//! A caller who does not give up: retries as the documentation says, and notes
//! every answer that the promises forbid.

use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reqwest::{Method, StatusCode, header::RETRY_AFTER};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{plan::Dice, processes::KEY};

/// What the promises forbid and the run has seen.
#[derive(Default)]
pub struct Violations(Mutex<Vec<String>>);

impl Violations {
    /// Notes one.
    pub fn note(&self, words: impl Into<String>) {
        let words = words.into();
        eprintln!("VIOLATION {words}");
        self.0.lock().expect("no noter panics").push(words);
    }

    /// All of them so far.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("no noter panics").clone()
    }
}

/// The API as a caller sees it: some addresses, of which any may be down.
pub struct Client {
    pub addresses: Vec<SocketAddr>,
    pub http: reqwest::Client,
    pub dice: Dice,
    /// Answers 503, each with a Retry-After.
    pub unavailable: AtomicU64,
    requests: AtomicU64,
}

/// How long a request is repeated before the service counts as down.
const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    pub fn new(addresses: Vec<SocketAddr>, dice: Dice) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .timeout(Duration::from_secs(20))
            .no_proxy()
            .build()?;
        let (unavailable, requests) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { addresses, http, dice, unavailable, requests })
    }

    /// Any of the addresses.
    pub fn address(&self) -> SocketAddr {
        self.addresses[self.dice.below(self.addresses.len() as u64) as usize]
    }

    /// Sends a request until it is answered; a write carries one key for all tries.
    pub async fn send(
        &self,
        violations: &Violations,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let key = format!("chaos-{}", self.requests.fetch_add(1, Ordering::Relaxed));
        let until = Instant::now() + PATIENCE;
        loop {
            let url = format!("http://{}/v3{path}", self.address());
            let mut request = self.http.request(method.clone(), url).bearer_auth(KEY);
            if let Some(body) = body {
                request = request.json(body).header("idempotency-key", &key);
            }
            // A connection that is refused or cut is what killing a process means.
            if let Ok(response) = request.send().await {
                let (status, wait) = (response.status(), response.headers().contains_key(RETRY_AFTER));
                if let Ok(text) = response.text().await {
                    match status {
                        status if status.is_success() => {
                            return Ok(serde_json::from_str(&text).unwrap_or_default());
                        }
                        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS if wait => {
                            self.unavailable.fetch_add(1, Ordering::Relaxed);
                        }
                        StatusCode::CONFLICT if wait => {}
                        _ => {
                            violations.note(format!("{method} {path} was answered {status}: {text}"));
                            anyhow::bail!("answered {status}");
                        }
                    }
                }
            }
            if Instant::now() > until {
                violations.note(format!("{method} {path} was not answered for {PATIENCE:?}"));
                anyhow::bail!("no answer");
            }
            sleep(self.dice.millis(50, 250)).await;
        }
    }
}
