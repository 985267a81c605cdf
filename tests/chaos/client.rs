//! A persistent caller: retries as documented, and records every response that violates a guarantee.

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

use crate::{plan::SeededRng, processes::KEY};

/// Violations found so far.
#[derive(Default)]
pub struct Violations(Mutex<Vec<String>>);

impl Violations {
    /// Records a violation.
    pub fn note(&self, words: impl Into<String>) {
        let words = words.into();
        eprintln!("VIOLATION {words}");
        self.0.lock().expect("no holder panics").push(words);
    }

    /// Returns the result; an error is recorded, with what it means.
    pub fn noted<T>(&self, words: &str, outcome: anyhow::Result<T>) -> Option<T> {
        outcome.inspect_err(|error| self.note(format!("{words}: {error:#}"))).ok()
    }

    /// All violations so far.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("no holder panics").clone()
    }
}

/// API client with several addresses, of which any may be down.
pub struct Client {
    pub addresses: Vec<SocketAddr>,
    pub http: reqwest::Client,
    pub dice: SeededRng,
    /// 503 responses, each with a Retry-After.
    pub unavailable: AtomicU64,
    requests: AtomicU64,
}

/// Time that a request is retried before the service counts as down.
const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    pub fn new(addresses: Vec<SocketAddr>, dice: SeededRng) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .timeout(Duration::from_secs(20))
            .no_proxy()
            .build()?;
        let (unavailable, requests) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { addresses, http, dice, unavailable, requests })
    }

    /// A random address.
    pub fn address(&self) -> SocketAddr {
        self.addresses[self.dice.below(self.addresses.len() as u64) as usize]
    }

    /// Sends a request until it is answered; a write has one idempotency key for all attempts.
    pub async fn send(
        &self,
        violations: &Violations,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        Ok(self.send_unless(violations, method, path, body, &[]).await?.unwrap_or_default())
    }

    /// The same; `None` if it is refused with a conflict of one of these codes.
    pub async fn send_unless(
        &self,
        violations: &Violations,
        method: Method,
        path: &str,
        body: Option<&Value>,
        codes: &[&str],
    ) -> anyhow::Result<Option<Value>> {
        let key = format!("chaos-{}", self.requests.fetch_add(1, Ordering::Relaxed));
        let until = Instant::now() + PATIENCE;
        loop {
            let url = format!("http://{}/v3{path}", self.address());
            let mut request = self.http.request(method.clone(), url).bearer_auth(KEY);
            if let Some(body) = body {
                request = request.json(body).header("idempotency-key", &key);
            }
            // A refused or lost connection is expected when a process is killed.
            if let Ok(response) = request.send().await {
                let (status, wait) = (response.status(), response.headers().contains_key(RETRY_AFTER));
                if let Ok(text) = response.text().await {
                    match status {
                        status if status.is_success() => {
                            return Ok(Some(serde_json::from_str(&text).unwrap_or_default()));
                        }
                        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS if wait => {
                            self.unavailable.fetch_add(1, Ordering::Relaxed);
                        }
                        StatusCode::CONFLICT if wait => {}
                        StatusCode::CONFLICT if has_code(&text, codes) => return Ok(None),
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

fn has_code(text: &str, codes: &[&str]) -> bool {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    body["error"]["code"].as_str().is_some_and(|code| codes.contains(&code))
}
