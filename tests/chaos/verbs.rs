//! Callers' operations on a session's whole sandbox while the service is killed: pause and resume, stop and
//! start, checkpoint and restore, archive read and write. The files are checked after each.

use std::time::Duration;

use anyhow::{bail, ensure};
use reqwest::{Method, StatusCode, header::RETRY_AFTER};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    load::{Load, TRACE},
    plan::SeededRng,
    processes::KEY,
};

/// Time that one request is retried.
const PATIENCE: Duration = Duration::from_secs(90);
/// Temporary refusals: the holder of the lease was killed, and no other worker has it yet.
const PASSING: [&str; 3] = ["sandbox_busy", "sandbox_in_use", "in_flight"];

/// One of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Pause,
    Stop,
    Restore,
    Archive,
}

/// Body of a request.
enum Sent {
    Nothing,
    Json(Value),
    Bytes(&'static str, Vec<u8>),
}

struct Answer {
    status: StatusCode,
    bytes: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A session whose turn has ended and that no other task uses.
pub struct Verbs<'a> {
    pub load: &'a Load,
    pub session: &'a str,
    pub name: &'a str,
    pub dice: &'a SeededRng,
}

impl Verbs<'_> {
    /// Runs one verb and checks its effect.
    pub async fn play(&self) -> anyhow::Result<Verb> {
        let verb = [Verb::Pause, Verb::Stop, Verb::Restore, Verb::Archive][self.dice.below(4) as usize];
        let before = self.file(TRACE).await?;
        match verb {
            Verb::Pause => self.pause().await?,
            Verb::Stop => self.stop().await?,
            Verb::Restore => self.restore().await?,
            Verb::Archive => self.archive(before.as_deref()).await?,
        }
        let after = self.file(TRACE).await?;
        if after != before {
            let lines =
                |text: &Option<Vec<u8>>| text.as_ref().map(|text| String::from_utf8_lossy(text).into_owned());
            let (before, after) = (lines(&before), lines(&after));
            self.note(&format!("{verb:?} changed the files: {before:?} became {after:?}"));
        }
        Ok(verb)
    }

    async fn pause(&self) -> anyhow::Result<()> {
        let paused = self.act("pause", json!({})).await?;
        if paused["phase"] != "paused" {
            self.note(&format!("after a pause its phase is {}", paused["phase"]));
        }
        let refused = self.ask(Method::POST, "/exec", Sent::Json(json!({ "command": "true" }))).await?;
        if (refused.status, refused.code().as_str()) != (StatusCode::CONFLICT, "paused") {
            self.note(&format!("a command in a paused session was answered {}", refused.status));
        }
        sleep(self.dice.millis(0, 1_500)).await;
        let resumed = self.act("resume", json!({})).await?;
        if resumed["phase"] == "paused" {
            self.note("it is still paused after a resume");
        }
        Ok(())
    }

    async fn stop(&self) -> anyhow::Result<()> {
        self.act("stop", json!({ "reason": self.name })).await?;
        self.until("it has no sandbox any more", |session| {
            matches!(session["sandbox"]["state"].as_str(), None | Some("hibernated"))
        })
        .await?;
        let refused = self.ask(Method::GET, &format!("/files?path={TRACE}"), Sent::Nothing).await?;
        if (refused.status, refused.code().as_str()) != (StatusCode::CONFLICT, "stopped") {
            self.note(&format!("a file of a stopped session was answered {}", refused.status));
        }
        self.act("start", json!({})).await?;
        // An unused one is frozen at once, and hibernated soon.
        self.until("it is not stopped any more", |session| {
            let state = session["sandbox"]["state"].as_str();
            session["phase"] != "stopped" && matches!(state, Some("running" | "frozen" | "hibernated"))
        })
        .await
    }

    /// A file written after a checkpoint is gone after its restore.
    async fn restore(&self) -> anyhow::Result<()> {
        let saved = self.act("checkpoints", json!({})).await?;
        let junk = format!("junk-{}", self.name);
        self.put(&format!("/files?path={junk}"), "application/octet-stream", b"junk".to_vec()).await?;
        ensure!(self.file(&junk).await?.as_deref() == Some(b"junk"), "a file was not written");
        self.act("restore", json!({ "checkpoint_id": saved["id"] })).await?;
        if self.file(&junk).await?.is_some() {
            self.note("a file written after a checkpoint exists after its restore");
        }
        Ok(())
    }

    async fn archive(&self, trace: Option<&[u8]>) -> anyhow::Result<()> {
        let packed = self.ask(Method::GET, "/archive.tar?path=.", Sent::Nothing).await?;
        self.expect(&packed, "an archive was not given")?;
        let copy = format!("copies/{}", self.name);
        self.put(&format!("/archive.tar?path={copy}"), "application/x-tar", packed.bytes).await?;
        if self.file(&format!("{copy}/{TRACE}")).await?.as_deref() != trace {
            self.note("an archive differs from the packed files");
        }
        Ok(())
    }

    /// Contents of a file, if it exists.
    pub async fn file(&self, path: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let read = self.ask(Method::GET, &format!("/files?path={path}"), Sent::Nothing).await?;
        if read.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.expect(&read, "a file was not given")?;
        Ok(Some(read.bytes))
    }

    async fn put(&self, path: &str, kind: &'static str, bytes: Vec<u8>) -> anyhow::Result<()> {
        let written = self.ask(Method::PUT, path, Sent::Bytes(kind, bytes)).await?;
        self.expect(&written, "a file was not taken")
    }

    async fn act(&self, verb: &str, body: Value) -> anyhow::Result<Value> {
        let done = self.ask(Method::POST, &format!("/{verb}"), Sent::Json(body)).await?;
        self.expect(&done, verb)?;
        Ok(done.json())
    }

    fn expect(&self, answer: &Answer, what: &str) -> anyhow::Result<()> {
        if answer.status.is_success() {
            return Ok(());
        }
        self.note(&format!("{what}: {} {}", answer.status, String::from_utf8_lossy(&answer.bytes)));
        bail!("answered {}", answer.status)
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let session = self.ask(Method::GET, "", Sent::Nothing).await?.json();
            if is_so(&session) {
                return Ok(());
            }
            if Instant::now() > until {
                self.note(&format!(
                    "not reached within {PATIENCE:?}: {what}; its sandbox is {}",
                    session["sandbox"]
                ));
                bail!("stuck");
            }
            sleep(self.dice.millis(100, 300)).await;
        }
    }

    fn note(&self, words: &str) {
        self.load.violations.note(format!("{}: {words}", self.session));
    }

    /// Sends a request until its response is not a temporary refusal.
    async fn ask(&self, method: Method, path: &str, sent: Sent) -> anyhow::Result<Answer> {
        let client = &self.load.client;
        let key = format!("chaos-{}-{}", self.name, client.dice.below(u64::MAX));
        let until = Instant::now() + PATIENCE;
        loop {
            let url = format!("http://{}/v3/sessions/{}{path}", client.address(), self.session);
            let request = client.http.request(method.clone(), url).bearer_auth(KEY);
            let request = match &sent {
                Sent::Nothing => request,
                Sent::Json(body) => request.json(body).header("idempotency-key", &key),
                Sent::Bytes(kind, bytes) => request.header("content-type", *kind).body(bytes.clone()),
            };
            if let Ok(response) = request.send().await {
                let (status, waits) = (response.status(), response.headers().contains_key(RETRY_AFTER));
                if let Ok(bytes) = response.bytes().await {
                    let answer = Answer { status, bytes: bytes.to_vec() };
                    let passes = waits || status == 409 && PASSING.contains(&answer.code().as_str());
                    if !passes {
                        return Ok(answer);
                    }
                }
            }
            if Instant::now() > until {
                self.note(&format!("{method} {path} was not answered for {PATIENCE:?}"));
                bail!("no answer");
            }
            sleep(self.dice.millis(50, 250)).await;
        }
    }
}
