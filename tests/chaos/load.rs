//! Live sessions with turns whose commands leave countable traces.
//!
//! Each command appends its own token to a file of the workspace, which is on the session's disk. The test
//! program reads the file directly and so knows how often each command really ran.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use sojourn::domain::{EventId, SessionId};
use time::OffsetDateTime;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use uuid::Uuid;

use crate::{
    answers::{self, Answers},
    client::{Client, Violations},
    plan::SeededRng,
    script::{output_schema, script, submitting_script},
    verbs::Verbs,
};

/// File in which commands leave their tokens.
pub const TRACE: &str = "trace";
/// No turn of the load takes longer than this under any fault.
const TURN_PATIENCE: Duration = Duration::from_secs(120);

/// Takes new sessions, each with the end of its driver.
type Fresh = mpsc::UnboundedSender<(String, watch::Receiver<bool>)>;

/// State that all drivers share.
pub struct Load {
    pub client: Arc<Client>,
    pub violations: Arc<Violations>,
    pub agent: String,
    pub stop: AtomicBool,
    /// New sessions for the readers of streams, each with the end of its driver.
    fresh: Mutex<Option<Fresh>>,
    /// Created sessions, with the traces of their commands.
    pub made: Mutex<Vec<Made>>,
    pub turns: AtomicU64,
    pub answers: Answers,
    /// Number of answers that were sent.
    pub answered: AtomicU64,
    /// Number of waits for a child.
    pub waits: AtomicU64,
    /// Number of runs of each verb.
    pub verbs: [AtomicU64; 4],
    /// Sessions whose sandbox was frozen, and hibernated, when they were used again after a pause.
    pub asleep: [AtomicU64; 2],
    /// Turns that were running when they were canceled.
    pub cancels: Mutex<Vec<Canceled>>,
}

/// A canceled turn.
#[derive(Clone, Copy, Debug)]
pub struct Canceled {
    pub session: SessionId,
    pub at: OffsetDateTime,
    /// From the request to the end of the turn, as the caller sees it.
    pub took: Duration,
}

/// One session of the load.
#[derive(Clone, Debug)]
pub struct Made {
    pub session: SessionId,
    /// Acknowledged inputs.
    pub inputs: u64,
    /// Events of acknowledged requests to summarize the history.
    pub compactions: Vec<Uuid>,
    /// Whether its turns have to submit an output.
    pub has_schema: bool,
    /// Lines of the trace as its file had them after the last command; none if it was not read.
    pub trace: Option<Vec<String>>,
}

impl Load {
    /// Creates a load by `client` on sessions of `agent`.
    pub fn new(client: Arc<Client>, violations: Arc<Violations>, agent: String, fresh: Fresh) -> Self {
        Self {
            client,
            violations,
            agent,
            stop: AtomicBool::new(false),
            fresh: Mutex::new(Some(fresh)),
            made: Mutex::default(),
            turns: AtomicU64::new(0),
            answers: Answers::default(),
            answered: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            verbs: Default::default(),
            asleep: Default::default(),
            cancels: Mutex::default(),
        }
    }

    /// Tells the readers that no session follows.
    pub fn close(&self) {
        self.fresh.lock().expect("no driver panics").take();
    }

    /// Runs one session after another until the end of the run.
    pub async fn drive(self: Arc<Self>, driver: usize, dice: SeededRng) {
        for round in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // The error was recorded where it happened; the next session continues.
            let name = format!("d{driver}.{round}");
            let driven = if dice.once_in(4) {
                self.commands(&name, &dice).await
            } else if dice.once_in(4) {
                self.parent_and_child(&name, &dice).await
            } else {
                self.turns(&name, &dice).await
            };
            if let Err(error) = driven {
                eprintln!("a session of driver {driver} failed: {error:#}");
            }
        }
    }

    /// A session of an agent: turns, beside and between them commands of the caller, verbs and pauses.
    async fn turns(&self, name: &str, dice: &SeededRng) -> anyhow::Result<()> {
        // In some sessions, each command waits for a person.
        let permissions = if dice.once_in(4) { json!([answers::ask()]) } else { json!([]) };
        let has_schema = dice.once_in(4);
        let play = |name: &str| if has_schema { submitting_script(name, dice) } else { script(name, dice) };
        let mut body = json!({
            "agent": self.agent, "permissions": permissions, "ask": answers::waiting_ask(),
            "input": play(&format!("{name}.0")),
        });
        if has_schema {
            body["output_schema"] = output_schema();
        }
        let (id, mut made, _driving) = self.create(&body, 1).await?;
        made.has_schema = has_schema;
        let mut driven = Ok(());
        for turn in 1..=2 + dice.below(3) {
            // A caller's own command beside the turn, or in the pause after it.
            let mine = format!("{name}.x{turn}");
            driven = if dice.once_in(3) {
                let (turn, direct) = tokio::join!(self.one_turn(&id, dice), self.direct(&id, &mine, dice));
                turn.and(direct)
            } else {
                self.one_turn(&id, dice).await
            };
            if driven.is_ok() && dice.once_in(6) {
                driven = self.direct(&id, &format!("{mine}y"), dice).await;
            }
            if driven.is_ok() && dice.once_in(4) && !self.stop.load(Ordering::Relaxed) {
                driven = self.one_verb(&id, &mine, dice).await;
            }
            if driven.is_err() || self.stop.load(Ordering::Relaxed) {
                break;
            }
            driven = self.pause(&id, dice).await;
            if driven.is_ok() && dice.once_in(5) {
                driven = self.compact(&id, &mut made).await;
            }
            if driven.is_err() {
                break;
            }
            let text = play(&format!("{name}.{turn}")).to_string();
            driven = self.post(&format!("/sessions/{id}/messages"), &json!({ "text": text })).await.map(drop);
            if driven.is_err() {
                break;
            }
            made.inputs += 1;
            if dice.once_in(3) {
                // Often read by the turn that runs meanwhile, else by the next one.
                sleep(dice.millis(0, 1_500)).await;
                let text = play(&format!("{name}.{turn}s")).to_string();
                let message = json!({ "text": text, "mode": "steer" });
                driven = self.post(&format!("/sessions/{id}/messages"), &message).await.map(drop);
                if driven.is_err() {
                    break;
                }
                made.inputs += 1;
            }
        }
        if driven.is_ok() {
            driven = self.one_turn(&id, dice).await;
        }
        self.end(&id, name, made, driven, dice).await
    }

    /// A session whose turn sends a child a message and waits until it has nothing to do.
    async fn parent_and_child(&self, name: &str, dice: &SeededRng) -> anyhow::Result<()> {
        let tools = json!(["session_message", "session_wait"]);
        let (top, mut of_top, _driving_top) =
            self.create(&json!({ "agent": self.agent, "tools": tools }), 0).await?;
        let input = script(&format!("{name}.0"), dice);
        let body = json!({
            "agent": self.agent, "ask": answers::waiting_ask(), "parent_session_id": top, "input": input,
        });
        let (below, mut of_below, _driving_below) = self.create(&body, 1).await?;
        let said = script(&format!("{name}.1"), dice).to_string();
        let message =
            json!({ "tool": "session_message", "input": { "id": below, "text": said, "mode": "queue" } });
        let wait = json!({ "tool": "session_wait", "input": { "ids": [below], "timeout_seconds": 86_400 } });
        let steps = json!([
            { "tools": [message], "new_ids": true }, { "tools": [wait], "new_ids": true },
            { "text": format!("Done with {name}.") },
        ]);
        let text = json!({ "script": steps }).to_string();
        let mut driven =
            self.post(&format!("/sessions/{top}/messages"), &json!({ "text": text })).await.map(drop);
        if driven.is_ok() {
            (of_top.inputs, of_below.inputs) = (1, 2);
            let turns_below = async {
                loop {
                    self.one_turn(&below, dice).await?;
                    sleep(dice.millis(50, 150)).await;
                }
            };
            driven = tokio::select! {
                settled = self.settled(&top, dice, None) => settled,
                failed = turns_below => failed,
            };
        }
        if driven.is_ok() {
            driven = self.one_turn(&below, dice).await;
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        let ended = if driven.is_ok() { Ok(()) } else { Err(anyhow::anyhow!("a child of {name} failed")) };
        self.end(&top, name, of_top, ended, dice).await?;
        self.end(&below, name, of_below, driven, dice).await
    }

    /// A session without an agent: commands of the caller only.
    async fn commands(&self, name: &str, dice: &SeededRng) -> anyhow::Result<()> {
        let (id, made, _driving) = self.create(&json!({}), 0).await?;
        let mut driven = Ok(());
        for command in 0..2 + dice.below(4) {
            let mine = format!("{name}.c{command}");
            driven = self.direct(&id, &mine, dice).await;
            if driven.is_ok() && dice.once_in(4) && !self.stop.load(Ordering::Relaxed) {
                driven = self.one_verb(&id, &mine, dice).await;
            }
            if driven.is_ok() && !self.stop.load(Ordering::Relaxed) {
                driven = self.pause(&id, dice).await;
            }
            if driven.is_err() || self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        self.end(&id, name, made, driven, dice).await
    }

    /// Creates a session. Its readers know by the last value when it is not driven any more.
    async fn create(&self, body: &Value, inputs: u64) -> anyhow::Result<(String, Made, Driving)> {
        let created = self.post("/sessions", body).await?;
        let id = created["session"]["id"].as_str().unwrap_or_default().to_owned();
        let made =
            Made { session: id.parse()?, inputs, compactions: Vec::new(), has_schema: false, trace: None };
        let (driving, driven) = watch::channel(false);
        if let Some(fresh) = &*self.fresh.lock().expect("no driver panics") {
            // The readers end after the drivers.
            let _ = fresh.send((id.clone(), driven));
        }
        Ok((id, made, Driving(driving)))
    }

    /// Reads the trace, and archives some sessions.
    async fn end(
        &self,
        id: &str,
        name: &str,
        mut made: Made,
        mut driven: anyhow::Result<()>,
        dice: &SeededRng,
    ) -> anyhow::Result<()> {
        if driven.is_ok() {
            match (Verbs { load: self, session: id, name, dice }).file(TRACE).await {
                Ok(trace) => made.trace = Some(lines(&trace.unwrap_or_default())),
                Err(error) => driven = Err(error),
            }
        }
        if driven.is_ok() && dice.once_in(3) && !self.stop.load(Ordering::Relaxed) {
            driven = self.post(&format!("/sessions/{id}/archive"), &json!({})).await.map(drop);
        }
        self.made.lock().expect("no driver panics").push(made);
        driven
    }

    /// Sometimes leaves the sandbox alone: until it is frozen or in the middle of it, or is hibernated.
    async fn pause(&self, id: &str, dice: &SeededRng) -> anyhow::Result<()> {
        if !dice.once_in(3) {
            return Ok(());
        }
        sleep(if dice.once_in(2) { dice.millis(200, 900) } else { dice.millis(3_000, 8_000) }).await;
        let path = format!("/sessions/{id}");
        let session = self.client.send(&self.violations, Method::GET, &path, None).await?;
        match session["sandbox"]["state"].as_str() {
            Some("frozen") => drop(self.asleep[0].fetch_add(1, Ordering::Relaxed)),
            Some("hibernated") => drop(self.asleep[1].fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        Ok(())
    }

    /// Waits for the running turn, and sometimes cancels it.
    async fn one_turn(&self, id: &str, dice: &SeededRng) -> anyhow::Result<()> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let mut canceled = None;
        if dice.once_in(8) {
            sleep(dice.millis(300, 3_000)).await;
            let asked = (OffsetDateTime::now_utc(), Instant::now());
            let session = self.post(&format!("/sessions/{id}/cancel"), &json!({})).await?;
            canceled = matches!(session["status"].as_str(), Some("queued" | "running")).then_some(asked);
        }
        self.settled(id, dice, canceled).await
    }

    /// Waits until no turn runs, and answers what it needs. A turn that failed is retried, unless it was canceled.
    async fn settled(
        &self,
        id: &str,
        dice: &SeededRng,
        canceled: Option<(OffsetDateTime, Instant)>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + TURN_PATIENCE;
        loop {
            let session =
                self.client.send(&self.violations, Method::GET, &format!("/sessions/{id}"), None).await?;
            let waits = session["last_turn"]["state"] == "waiting";
            if waits {
                self.answer(id, dice).await?;
            } else if matches!(
                session["status"].as_str(),
                Some("idle" | "awaiting_input" | "failed" | "archived")
            ) {
                let last = &session["last_turn"];
                if canceled.is_none() && !last["error_code"].is_null() {
                    let path =
                        format!("/sessions/{id}/turns/{}/retry", last["id"].as_str().unwrap_or_default());
                    self.post(&path, &json!({})).await?;
                    continue;
                }
                if let Some((at, asked)) = canceled {
                    let canceled = Canceled { session: id.parse()?, at, took: asked.elapsed() };
                    self.cancels.lock().expect("no driver panics").push(canceled);
                }
                return Ok(());
            }
            if Instant::now() > until {
                self.violations.note(format!("{id} is stuck {} for {TURN_PATIENCE:?}", session["status"]));
                anyhow::bail!("stuck");
            }
            sleep(dice.millis(150, 350)).await;
        }
    }

    /// Runs a command directly and waits for its end, which is always known: no fault destroys a sandbox.
    async fn direct(&self, id: &str, token: &str, dice: &SeededRng) -> anyhow::Result<()> {
        let seconds = if dice.once_in(4) { 3.0 } else { dice.below(8) as f64 / 10.0 };
        let body = json!({ "command": format!("echo {token} >> {TRACE}; sleep {seconds}; echo {token}") });
        let mut ran = self.post(&format!("/sessions/{id}/exec"), &body).await?;
        let until = Instant::now() + TURN_PATIENCE;
        while matches!(ran["state"].as_str(), Some("queued" | "running")) {
            if Instant::now() > until {
                self.violations
                    .note(format!("{token} of {id} is stuck {} for {TURN_PATIENCE:?}", ran["state"]));
                anyhow::bail!("stuck");
            }
            sleep(dice.millis(150, 350)).await;
            let path = format!("/sessions/{id}/exec/{}", ran["id"].as_str().unwrap_or_default());
            ran = self.client.send(&self.violations, Method::GET, &path, None).await?;
        }
        if ran["state"] != "completed" || ran["stdout"] != format!("{token}\n") {
            self.violations.note(format!("{token} of {id} ended unexpectedly: {ran}"));
        }
        Ok(())
    }

    /// Requests a summary of the history, if there is any.
    async fn compact(&self, id: &str, made: &mut Made) -> anyhow::Result<()> {
        let (path, body) = (format!("/sessions/{id}/compact"), json!({}));
        let codes = ["nothing_to_compact"];
        let asked =
            self.client.send_unless(&self.violations, Method::POST, &path, Some(&body), &codes).await?;
        if let Some(asked) = asked {
            let event: EventId = asked["event"]["id"].as_str().unwrap_or_default().parse()?;
            made.compactions.push(event.uuid());
        }
        Ok(())
    }

    /// Runs one verb on the whole sandbox, between two turns.
    async fn one_verb(&self, session: &str, name: &str, dice: &SeededRng) -> anyhow::Result<()> {
        let verb = Verbs { load: self, session, name, dice }.play().await?;
        self.verbs[verb as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Continuously reads the list of overdue sessions, which must stay empty under any fault.
    pub async fn watch_overdue(&self) {
        loop {
            sleep(Duration::from_secs(2)).await;
            let path = "/sessions?overdue=true";
            let Ok(page) = self.client.send(&self.violations, Method::GET, path, None).await else {
                continue;
            };
            for session in page["data"].as_array().into_iter().flatten() {
                self.violations.note(format!("{} is overdue: {}", session["id"], session["status"]));
            }
        }
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.client.send(&self.violations, Method::POST, path, Some(body)).await
    }
}

/// Lines that the commands of a session left on its disk, if it has one.
pub fn trace(data_dir: &Path, session: SessionId) -> Option<Vec<String>> {
    let orgs = std::fs::read_dir(data_dir.join("sandboxes")).into_iter().flatten().flatten();
    let mut files =
        orgs.map(|org| org.path().join(session.uuid().to_string()).join("files/workspace").join(TRACE));
    files.find_map(|file| std::fs::read(file).ok()).map(|text| lines(&text))
}

fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).lines().map(str::to_owned).collect()
}

/// Tells the readers of a session, when dropped, that it is not driven any more.
struct Driving(watch::Sender<bool>);

impl Drop for Driving {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}
