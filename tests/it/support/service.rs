//! The whole service in a test: the real server, on its own database.
//!
//! It runs inside the test's process, listens on a free loopback port, and the test uses it only over HTTP.
//! Only timing differs from production: leases are short, so that a takeover does not take 15 seconds.

use std::{
    collections::BTreeMap,
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use clap::Parser;
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sojourn::{
    app,
    base::{Origin, seal::MasterKey},
    config::Settings,
    store::{Store, Urls, pool::PoolSizes},
};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{contract, database::Database, pages, pooler::Pooler};

/// API key of the first organization in every test.
pub const KEY: &str = "sjk_test_the_first_organization";

/// A running service. Stop it with [`Service::stop`]; drop only requests the stop.
pub struct Service {
    pub base: String,
    metrics: Option<SocketAddr>,
    stop: CancellationToken,
    http: reqwest::Client,
    served: JoinHandle<anyhow::Result<()>>,
}

/// Database and data directory that the services of one test share.
pub struct Ground {
    pub database: Database,
    pub data_dir: TempDir,
    /// With `SOJOURN_TEST_POOLER=1` every service of the test connects through it.
    pooler: Option<Pooler>,
}

impl Ground {
    /// Creates a database and a data directory.
    pub async fn new() -> Self {
        let ground = Self::on(Database::create().await);
        if env::var_os("SOJOURN_TEST_POOLER").is_some() { ground.pooled().await } else { ground }
    }

    /// The same without a schema in the database, for tests of restore.
    pub async fn empty() -> Self {
        Self::on(Database::empty().await)
    }

    fn on(database: Database) -> Self {
        let data_dir = tempfile::Builder::new().prefix("sojourn-it-").tempdir().expect("a directory");
        Self { database, data_dir, pooler: None }
    }

    /// Puts a pooler in transaction mode between the services and the database.
    pub async fn pooled(mut self) -> Self {
        self.pooler = Some(Pooler::start(&self.urls()).await);
        self
    }

    /// Starts a service on this ground, with more command-line settings.
    pub async fn serve(&self, more: &[&str]) -> Service {
        let mut settings = settings(&self.service_urls(), self.data_dir.path(), more);
        settings.database.listen_database_url = self.pooler.is_some().then_some(self.urls().system);
        Service::start(settings).await
    }

    /// Starts a service with another clock.
    pub async fn serve_by(&self, origin: Origin, more: &[&str]) -> Service {
        let settings = settings(&self.urls(), self.data_dir.path(), more);
        let started = Service::try_start_by(settings, origin).await;
        started.unwrap_or_else(|error| panic!("the service did not start: {error}"))
    }

    /// Starts a service that does not know the owner's URL.
    pub async fn serve_without_owner(&self, more: &[&str]) -> Service {
        let mut settings = settings(&self.urls(), self.data_dir.path(), more);
        settings.database.owner_database_url = None;
        Service::start(settings).await
    }

    /// Starts a service whose connections all use the owner's role.
    pub async fn serve_as_one_role(&self) -> Service {
        let owner = &self.database.owner_url;
        let urls = ["database-url", "owner-database-url", "system-database-url"];
        let words: Vec<_> = urls.iter().map(|name| format!("--{name}={owner}")).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        Service::start(settings(&self.urls(), self.data_dir.path(), &words)).await
    }

    /// Database URL of each role, through the pooler if there is one.
    pub fn service_urls(&self) -> Urls {
        let direct = self.urls();
        self.pooler.as_ref().map_or_else(|| direct.clone(), |pooler| pooler.urls(&direct))
    }

    /// Database URL of each role.
    pub fn urls(&self) -> Urls {
        let Database { owner_url, app_url, system_url, .. } = &self.database;
        Urls { owner: owner_url.clone(), app: app_url.clone(), system: system_url.clone() }
    }

    /// Opens the database as another process does, with at most `system` connections of the service and two of the
    /// organizations.
    pub fn store(&self, system: u32) -> Store {
        let master = MasterKey::parse("a passphrase that is long enough for tests").expect("a master key");
        Store::open(&self.urls(), PoolSizes { app: 2, system }, master).expect("a store")
    }

    /// Makes the blob directory below `data_dir` the deployment's. Returns whether it was another.
    pub async fn adopt_blob_store(&self, data_dir: &Path) -> bool {
        app::adopt_blob_store(&settings(&self.urls(), data_dir, &[]), &|_| {}).await.expect("a blob store")
    }

    /// Creates another organization; returns its API key.
    pub async fn organization(&self, name: &str) -> String {
        let settings = settings(&self.urls(), self.data_dir.path(), &[]);
        let pools = sojourn::store::pool::PoolSizes { app: 1, system: 1 };
        let record =
            app::Record::open(&settings.database, pools, app::Migration::Own, app::Startup::system(&|_| {}))
                .await
                .expect("the record");
        let (_, key) = record.create_org(name).await.expect("an organization");
        record.close().await.expect("a clean end");
        sojourn::base::ExposeSecret::expose_secret(&key).to_owned()
    }
}

/// A caller with an API key.
#[derive(Clone)]
pub struct Caller {
    pub base: String,
    pub key: String,
    http: reqwest::Client,
}

/// A complete response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

#[derive(Parser)]
#[command(args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    settings: Settings,
}

fn settings(urls: &Urls, data_dir: &Path, more: &[&str]) -> Settings {
    let data_dir: PathBuf = data_dir.to_owned();
    let mut words = vec![
        "sojourn".to_owned(),
        format!("--data-dir={}", data_dir.display()),
        format!("--database-url={}", urls.app),
        format!("--owner-database-url={}", urls.owner),
        format!("--system-database-url={}", urls.system),
        "--listen=127.0.0.1:0".to_owned(),
        format!("--bootstrap-api-key={KEY}"),
        "--lease-ms=1000".to_owned(),
        "--allow-private-webhooks=on".to_owned(),
        "--allow-private-models=on".to_owned(),
        "--master-key=a passphrase that is long enough for tests".to_owned(),
    ];
    // Most tests have two organizations; `turns::admission` shows what happens without.
    words.push("--allow-shared-host=on".to_owned());
    words.extend(more.iter().map(|word| (*word).to_owned()));
    CommandLine::try_parse_from(words).expect("settings").settings
}

impl Service {
    /// Starts a service on any database.
    pub async fn on(urls: &Urls, data_dir: &Path, more: &[&str]) -> Self {
        Self::start(settings(urls, data_dir, more)).await
    }

    /// The same; returns why it did not start.
    pub async fn try_on(urls: &Urls, data_dir: &Path, more: &[&str]) -> Result<Self, String> {
        Self::try_start(settings(urls, data_dir, more)).await
    }

    async fn start(settings: Settings) -> Self {
        Self::try_start(settings).await.unwrap_or_else(|error| panic!("the service did not start: {error}"))
    }

    async fn try_start(settings: Settings) -> Result<Self, String> {
        Self::try_start_by(settings, Origin::system()).await
    }

    async fn try_start_by(settings: Settings, origin: Origin) -> Result<Self, String> {
        assert_eq!(settings.problems(), Vec::<String>::new());
        let stop = CancellationToken::new();
        let (tell, told) = oneshot::channel();
        // Own runtime, as in production: the test cannot starve it.
        let served = thread::spawn({
            let stop = stop.clone();
            move || {
                let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                let startup = app::Startup { origin, says: &|_| {} };
                runtime.block_on(app::serve(settings, stop, startup, |started| {
                    tell.send((started.address, started.metrics)).ok();
                }))
            }
        });
        let Ok((address, metrics)) = told.await else {
            let ended = served.join().expect("no panic");
            return Err(ended.err().map_or_else(|| "it ended".to_owned(), |error| format!("{error:#}")));
        };
        let base = address.map_or_else(String::new, |address| format!("http://{address}/v3"));
        Ok(Self { base, metrics, stop, http: reqwest::Client::new(), served })
    }

    /// Metrics of a scrape, by name and labels.
    pub async fn metrics(&self) -> BTreeMap<String, f64> {
        let text = self.metrics_text().await;
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').expect("a name and a value");
                (name.to_owned(), value.parse().expect("a number"))
            })
            .collect()
    }

    /// Text of a scrape.
    pub async fn metrics_text(&self) -> String {
        let address = self.metrics.expect("a service with --metrics-listen");
        let scraped = self.http.get(format!("http://{address}/metrics")).send().await.expect("an answer");
        assert_eq!(scraped.status(), StatusCode::OK);
        scraped.text().await.expect("a text")
    }

    /// The owner of the first organization.
    pub fn owner(&self) -> Caller {
        self.caller(KEY)
    }

    /// A caller with any API key.
    pub fn caller(&self, key: &str) -> Caller {
        Caller { base: self.base.clone(), key: key.to_owned(), http: self.http.clone() }
    }

    /// Stops as on SIGTERM and waits for the end.
    pub async fn stop(self) {
        self.stop.cancel();
        let joined =
            tokio::task::spawn_blocking(|| self.served.join()).await.expect("the wait does not panic");
        joined.expect("no panic").expect("a clean end");
    }
}

impl Caller {
    /// A caller of a service elsewhere, at `http://host:port/v3`.
    pub fn new(base: &str, key: &str) -> Self {
        sojourn::net::install_tls();
        Self { base: base.to_owned(), key: key.to_owned(), http: reqwest::Client::new() }
    }

    /// Any request with this caller's key.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.key)
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::PATCH, path).json(&body)).await
    }

    /// Uploads a file.
    pub async fn upload(&self, name: &str, content: Vec<u8>) -> Answer {
        let request = self.request(Method::POST, &format!("/files?name={name}"));
        send(request.header("content-type", "application/octet-stream").body(content)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    /// Creates an agent on `scripted/inline`; returns its id.
    pub async fn inline_agent(&self) -> String {
        let agent = json!({ "name": "inline", "prompt": "Play the script.", "model": "scripted/inline" });
        self.post("/agents", agent).await.ok()["id"].as_str().expect("an id").to_owned()
    }

    /// Creates a session that plays `script`; returns its id.
    pub async fn play(&self, script: Value) -> String {
        let agent = self.inline_agent().await;
        let session = json!({ "agent": agent, "input": { "script": script } });
        let created = self.post("/sessions", session).await.ok();
        created["session"]["id"].as_str().expect("an id").to_owned()
    }

    /// The same in an environment, given by name or as an object.
    pub async fn play_in(&self, script: Value, environment: Value) -> String {
        let agent = self.inline_agent().await;
        let session = json!({ "agent": agent, "input": { "script": script }, "environment": environment });
        let created = self.post("/sessions", session).await.ok();
        created["session"]["id"].as_str().expect("an id").to_owned()
    }

    /// Follows a session's stream until `done` returns true; returns all events.
    pub async fn follow(&self, session: &str, done: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.follow_from(session, 0, done).await
    }

    /// As [`Caller::follow`], after sequence number `after`.
    pub async fn follow_from(&self, session: &str, after: i64, done: impl Fn(&Value) -> bool) -> Vec<Value> {
        let path = format!("/sessions/{session}/events?stream=sse&after={after}");
        let response = self.request(Method::GET, &path).send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK, "{}", response.text().await.unwrap_or_default());
        let mut chunks = response.bytes_stream();
        let (mut buffer, mut seen) = (Vec::new(), Vec::new());
        let limit = tokio::time::sleep(std::time::Duration::from_secs(60));
        tokio::pin!(limit);
        loop {
            let chunk = tokio::select! {
                chunk = chunks.next() => chunk.expect("the stream continues").expect("a chunk"),
                () = &mut limit => panic!("the stream did not end within a minute: {seen:#?}"),
            };
            buffer.extend_from_slice(&chunk);
            while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = buffer.drain(..end + 2).collect();
                let frame = String::from_utf8(frame).expect("UTF-8");
                let Some(data) = frame.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
                let event: Value = serde_json::from_str(data).expect("JSON");
                pages::check_event(&event);
                let is_done = done(&event);
                seen.push(event);
                if is_done {
                    return seen;
                }
            }
        }
    }

    /// Waits for the `count`-th end of a turn; returns the log until then.
    pub async fn settled(&self, session: &str, count: usize) -> Vec<Value> {
        let ended = std::cell::Cell::new(0);
        self.follow(session, |event| {
            ended.set(ended.get() + usize::from(event["type"] == "turn.completed"));
            ended.get() == count
        })
        .await
    }
}

impl Answer {
    /// Returns the body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!(self.status.is_success(), "{}: {}", self.status, self.body);
        self.body
    }

    /// Returns the error of a failure with this status.
    #[track_caller]
    pub fn error(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        let error = self.body["error"].clone();
        assert!(error["type"].is_string() && error["message"].is_string(), "{error}");
        assert!(error["request_id"].as_str().is_some_and(|id| id.starts_with("req_")), "{error}");
        error
    }
}

/// Sends a request, reads the whole response and checks it against openapi.yaml.
pub async fn send(request: reqwest::RequestBuilder) -> Answer {
    let (http, request) = request.build_split();
    let request = request.expect("a request");
    let (method, path) = (request.method().clone(), request.url().path().to_owned());
    let response = http.execute(request).await.expect("an answer");
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.expect("a body");
    let body = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    };
    let content_type = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    contract::check(method.as_str(), &path, status.as_u16(), content_type, &body);
    Answer { status, headers, body }
}
