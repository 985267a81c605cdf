//! Callers of a deployment: sessions with turns, readers of their streams, a receiver of their webhooks.
//!
//! Callers retry as documented: the same idempotency key, another process. Everything that was acknowledged goes
//! into the ledger.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use axum::{Json, Router, extract::State, routing::post};
use reqwest::{Method, StatusCode, header::RETRY_AFTER};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{ledger::Ledger, process::KEY, reader::Reader};

/// Time for which a request is repeated before the service counts as down.
const PATIENCE: Duration = Duration::from_secs(180);
/// Every answer comes within this time, whatever the database does: requests end after 30 s.
const ANSWER_MAX: Duration = Duration::from_secs(45);
/// No turn of the load takes longer.
const TURN_MAX: Duration = Duration::from_secs(180);

/// Parameters of a load.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Sessions at a time.
    pub drivers: usize,
    /// Whether turns run commands in sandboxes.
    pub has_sandboxes: bool,
    /// Whether the database may lose acknowledged commits.
    pub may_lose: bool,
}

/// Load on a deployment.
pub struct Load {
    pub ledger: Arc<Ledger>,
    pub shape: Shape,
    addresses: Vec<SocketAddr>,
    http: reqwest::Client,
    agent: String,
    stop: AtomicBool,
    numbers: AtomicU64,
}

impl Load {
    /// Creates the agent and the organization webhook of a load on these API processes. `hooks` is an address for
    /// the receiver that they reach.
    pub async fn new(
        addresses: Vec<SocketAddr>,
        hooks: SocketAddr,
        shape: Shape,
    ) -> anyhow::Result<Arc<Self>> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .timeout(ANSWER_MAX)
            .no_proxy()
            .build()?;
        let ledger = Arc::new(Ledger::default());
        let mut load = Self {
            ledger: ledger.clone(),
            shape,
            addresses,
            http,
            agent: String::new(),
            stop: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
        };
        let listener = TcpListener::bind(hooks).await?;
        let hooks = format!("http://{}/", listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, receiver(ledger)).await });
        let agent = json!({ "name": "failover", "prompt": "Play the script.", "model": "scripted/inline" });
        let agent = load.send(Method::POST, "/agents", Some(&agent)).await?;
        load.agent = agent["id"].as_str().context("an agent")?.to_owned();
        let webhook = json!({ "url": hooks, "level": "internal" });
        load.send(Method::POST, "/webhooks", Some(&webhook)).await?;
        Ok(Arc::new(load))
    }

    /// Starts the drivers.
    pub fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut drivers = JoinSet::new();
        for _ in 0..self.shape.drivers {
            drivers.spawn(self.clone().drive());
        }
        drivers
    }

    /// Stops the drivers after their current sessions and waits for them.
    pub async fn stop(&self, mut drivers: JoinSet<()>) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = drivers.join_next().await {
            if let Err(error) = ended {
                self.ledger.violation(format!("a driver panicked: {error}"));
            }
        }
    }

    /// Whether drivers begin no further turns.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    async fn drive(self: Arc<Self>) {
        while !self.is_stopping() {
            if let Err(error) = self.one_session().await {
                eprintln!("a session of the load failed: {error:#}");
            }
        }
    }

    async fn one_session(self: &Arc<Self>) -> anyhow::Result<()> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let word = format!("word-{number}-0-");
        let body = json!({ "agent": self.agent, "input": self.script(&word, number) });
        let created = self.send(Method::POST, "/sessions", Some(&body)).await?;
        let id = created["session"]["id"].as_str().context("a session")?.to_owned();
        self.ledger.session(&id, |session| session.inputs.push(word));
        let reader = Reader::start(self.clone(), id.clone());
        let driven = self.turns(&id, number).await;
        if self.ledger.sessions().get(&id).is_some_and(|session| session.is_lost) {
            self.ledger.lost_sessions.fetch_add(1, Ordering::Relaxed);
            reader.abort();
            return Ok(());
        }
        reader.finish(&driven).await;
        driven.map(drop)
    }

    /// Steers the session a few times, also while its turn runs. Returns its last `seq`.
    async fn turns(&self, id: &str, number: u64) -> anyhow::Result<i64> {
        for turn in 1..=3 {
            if turn != 2 {
                self.settled(id).await?;
            }
            if self.is_stopping() {
                break;
            }
            let word = format!("word-{number}-{turn}-");
            let text = self.script(&word, number + turn).to_string();
            self.send(Method::POST, &format!("/sessions/{id}/messages"), Some(&json!({ "text": text })))
                .await?;
            self.ledger.session(id, |session| session.inputs.push(word));
        }
        self.settled(id).await
    }

    /// Waits until the session is at rest. Returns its last `seq`.
    async fn settled(&self, id: &str) -> anyhow::Result<i64> {
        let until = Instant::now() + TURN_MAX;
        loop {
            let session = self.send(Method::GET, &format!("/sessions/{id}"), None).await;
            let session = match session {
                Err(error) if error.is::<Missing>() => {
                    self.ledger.session(id, |session| session.is_lost = true);
                    return Err(error);
                }
                session => session?,
            };
            if session["status"] == "idle" {
                let page = self.send(Method::GET, &format!("/sessions/{id}/events?limit=500"), None).await?;
                let last = page["data"].as_array().and_then(|events| events.last()?["seq"].as_i64());
                return last.context("an event");
            }
            if !matches!(session["status"].as_str(), Some("queued" | "running")) {
                self.ledger.violation(format!("{id} is {}", session["status"]));
                bail!("unexpected status");
            }
            if Instant::now() > until {
                self.ledger.violation(format!("{id} is still {} after {TURN_MAX:?}", session["status"]));
                bail!("stuck");
            }
            sleep(Duration::from_millis(150)).await;
        }
    }

    /// A turn of about one second. Each command leaves its word once in a file.
    fn script(&self, word: &str, number: u64) -> Value {
        let mut steps = vec![json!({ "text": word, "delay_ms": 100 + number % 5 * 100 })];
        if self.shape.has_sandboxes && number.is_multiple_of(3) {
            let command = format!("echo {word} >> {TRACE}; sleep 0.3");
            let tools = json!([{ "tool": "bash", "input": { "command": command } }]);
            steps[0]["tools"] = tools;
            steps[0]["new_ids"] = json!(true);
        } else {
            let tools = json!([{ "tool": "read", "input": { "path": "none" } }]);
            if self.shape.has_sandboxes {
                steps[0]["tools"] = tools;
                steps[0]["new_ids"] = json!(true);
            }
        }
        steps.push(json!({ "text": "Done.", "delay_ms": 200 }));
        json!({ "script": steps })
    }

    /// The URL of a path at one of the processes.
    pub fn url(&self, path: &str) -> String {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) as usize;
        format!("http://{}/v3{path}", self.addresses[number % self.addresses.len()])
    }

    /// Sends a request until it is answered; a write has one idempotency key for all attempts.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let key = format!("key-{}", self.numbers.fetch_add(1, Ordering::Relaxed));
        let until = Instant::now() + PATIENCE;
        loop {
            let asked = Instant::now();
            let mut request = self.http.request(method.clone(), self.url(path)).bearer_auth(KEY);
            if let Some(body) = body {
                request = request.json(body).header("idempotency-key", &key);
            }
            match self.answer(request).await {
                Ok((status, waits, text)) => {
                    self.ledger.answered(asked.elapsed());
                    if status.is_success() {
                        if method != Method::GET {
                            self.ledger.accepted();
                        }
                        return Ok(serde_json::from_str(&text)?);
                    }
                    self.judge(status, waits, &method, path, &text)?;
                }
                Err(error) if error.is_timeout() && !error.is_connect() => {
                    self.ledger.violation(format!("{method} {path} was not answered within {ANSWER_MAX:?}"));
                }
                // Refused or lost, as when a process ends.
                Err(_) => {}
            }
            if Instant::now() > until {
                self.ledger.violation(format!("{method} {path} failed for {PATIENCE:?}"));
                bail!("no answer");
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> reqwest::Result<(StatusCode, bool, String)> {
        let response = request.send().await?;
        let (status, waits) = (response.status(), response.headers().contains_key(RETRY_AFTER));
        Ok((status, waits, response.text().await?))
    }

    /// Returns if the request may be repeated.
    fn judge(
        &self,
        status: StatusCode,
        waits: bool,
        method: &Method,
        path: &str,
        text: &str,
    ) -> anyhow::Result<()> {
        match status {
            StatusCode::SERVICE_UNAVAILABLE if waits => {
                self.ledger.unavailable.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS if waits => Ok(()),
            StatusCode::NOT_FOUND if self.shape.may_lose => Err(Missing.into()),
            _ => {
                self.ledger.violation(format!("{method} {path} was answered {status}: {text}"));
                bail!("answered {status}")
            }
        }
    }

    /// The client, for requests that are not repeated.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }
}

/// File of a workspace in which commands leave their words.
pub const TRACE: &str = "trace";

/// The answer 404 where the database may lose commits.
#[derive(Debug, thiserror::Error)]
#[error("the session does not exist any more")]
struct Missing;

/// Receiver of webhooks that accepts everything.
fn receiver(ledger: Arc<Ledger>) -> Router {
    let receive = async |State(ledger): State<Arc<Ledger>>, Json(delivery): Json<Value>| {
        ledger.delivered(delivery["eventId"].as_str().unwrap_or_default());
    };
    Router::new().route("/", post(receive)).with_state(ledger)
}
