//! Readers of streams over connections that are cut anywhere in a log. Each resumes where it stopped, and must
//! finally have received the log: every event once and in order.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    client::{Client, Violations},
    plan::SeededRng,
    processes::KEY,
    proxy::{Cut, Proxy},
};

/// State that all readers share.
pub struct Readers {
    pub client: Arc<Client>,
    pub violations: Arc<Violations>,
    /// Remaining cuts.
    pub left: AtomicU64,
    pub cuts: AtomicU64,
    pub resumes: AtomicU64,
    /// Events received, those of repeated reads included.
    pub events: AtomicU64,
    /// Logs as received by the reader that followed them: id of each event in order, by session.
    pub seen: Mutex<HashMap<String, Vec<String>>>,
}

/// A stream that is silent for this long although events are due is stuck.
const SILENCE: Duration = Duration::from_secs(90);

/// When a reader is done.
#[derive(Clone)]
pub enum Until {
    /// The session's driver has ended; the rest is read by [`Readers::complete`].
    Driven(watch::Receiver<bool>),
    /// It has received this many events.
    Events(usize),
}

impl Until {
    fn is_reached(&self, seen: &[String]) -> bool {
        match self {
            Self::Driven(ended) => *ended.borrow(),
            Self::Events(count) => seen.len() >= *count,
        }
    }

    /// Waits for the end of the driver; never ends for a number of events.
    async fn wait(&mut self) {
        match self {
            // The driver was dropped: it has ended, too.
            Self::Driven(ended) => drop(ended.wait_for(|ended| *ended).await),
            Self::Events(_) => std::future::pending().await,
        }
    }
}

impl Readers {
    /// Creates readers whose streams are cut `cuts` times in total, or more often.
    pub fn new(client: Arc<Client>, violations: Arc<Violations>, cuts: u64) -> Self {
        Self {
            client,
            violations,
            left: AtomicU64::new(cuts),
            cuts: AtomicU64::new(0),
            resumes: AtomicU64::new(0),
            events: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    /// Follows a session while it is driven.
    pub async fn follow(
        self: Arc<Self>,
        session: String,
        driven: watch::Receiver<bool>,
        dice: SeededRng,
    ) -> anyhow::Result<()> {
        let proxy = Proxy::start().await?;
        let mut seen = Vec::new();
        self.read(&session, &proxy, &mut seen, Until::Driven(driven), &dice).await;
        self.seen.lock().expect("no reader panics").insert(session, seen);
        Ok(())
    }

    /// Reads logs that were followed once more from their start, until no cut is left.
    pub async fn repeat(self: Arc<Self>, dice: SeededRng) -> anyhow::Result<()> {
        let proxy = Proxy::start().await?;
        while self.left.load(Ordering::Relaxed) > 0 {
            let Some((session, before)) = self.pick(&dice) else {
                sleep(Duration::from_millis(200)).await;
                continue;
            };
            let mut seen = Vec::new();
            self.read(&session, &proxy, &mut seen, Until::Events(before.len()), &dice).await;
            if !seen.starts_with(&before) {
                self.violations.note(format!("{session}: a second reader received a different log"));
            }
        }
        Ok(())
    }

    /// Reads the rest of a log, up to event number `count`.
    pub async fn complete(
        self: Arc<Self>,
        session: String,
        count: usize,
        dice: SeededRng,
    ) -> anyhow::Result<()> {
        let proxy = Proxy::start().await?;
        let mut seen = self.seen.lock().expect("no reader panics").remove(&session).unwrap_or_default();
        self.read(&session, &proxy, &mut seen, Until::Events(count), &dice).await;
        seen.truncate(count);
        self.seen.lock().expect("no reader panics").insert(session, seen);
        Ok(())
    }

    fn pick(&self, dice: &SeededRng) -> Option<(String, Vec<String>)> {
        let seen = self.seen.lock().expect("no reader panics");
        let mut sessions: Vec<_> = seen.keys().collect();
        sessions.sort_unstable();
        let session = sessions.get(dice.below(sessions.len() as u64) as usize)?;
        Some(((*session).clone(), seen[*session].clone()))
    }

    async fn read(
        &self,
        session: &str,
        proxy: &Proxy,
        seen: &mut Vec<String>,
        mut until: Until,
        dice: &SeededRng,
    ) {
        let mut heard = Instant::now();
        while !until.is_reached(seen) {
            proxy.plan(cut(dice), self.client.address());
            let before = seen.len();
            let ended = self.connection(session, proxy, seen, &mut until).await;
            if seen.len() > before {
                heard = Instant::now();
            }
            match ended {
                Ended::Done => return,
                Ended::Cut => {
                    self.cuts.fetch_add(1, Ordering::Relaxed);
                    // Cuts beyond the plan are done all the same.
                    let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        Some(left.saturating_sub(1))
                    });
                }
                Ended::Refused => sleep(dice.millis(50, 300)).await,
                Ended::Wrong => return,
            }
            if heard.elapsed() > SILENCE && matches!(until, Until::Events(_)) {
                self.violations.note(format!("the stream of {session} is silent for {SILENCE:?}"));
                return;
            }
        }
    }

    /// One connection, until it is cut. `seen[n]` is the event with `seq` n + 1.
    async fn connection(
        &self,
        session: &str,
        proxy: &Proxy,
        seen: &mut Vec<String>,
        until: &mut Until,
    ) -> Ended {
        let after = seen.len();
        let url = format!("http://{}/v3/sessions/{session}/events?stream=sse", proxy.address);
        // A new connection each time: a cut one is not reused.
        let request = self.client.http.get(url).bearer_auth(KEY).timeout(SILENCE);
        let request = request.header("connection", "close").header("last-event-id", after.to_string());
        let Ok(response) = request.send().await else { return Ended::Refused };
        if !response.status().is_success() {
            let status = response.status();
            if status.is_server_error() && status.as_u16() != 503 {
                self.violations.note(format!("the stream of {session} was answered {status}"));
            }
            return Ended::Refused;
        }
        if after > 0 {
            self.resumes.fetch_add(1, Ordering::Relaxed);
        }
        let mut chunks = response.bytes_stream();
        let mut buffer = Vec::new();
        loop {
            let chunk = tokio::select! {
                chunk = timeout(SILENCE, chunks.next()) => chunk,
                () = until.wait() => return Ended::Done,
            };
            let Ok(Some(Ok(chunk))) = chunk else { return Ended::Cut };
            buffer.extend_from_slice(&chunk);
            while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = buffer.drain(..end + 2).collect();
                if !self.frame(session, &String::from_utf8_lossy(&frame), seen) {
                    return Ended::Wrong;
                }
                if until.is_reached(seen) {
                    return Ended::Done;
                }
            }
        }
    }

    /// Takes one frame. Returns whether it continues the log.
    fn frame(&self, session: &str, frame: &str, seen: &mut Vec<String>) -> bool {
        let Some(data) = frame.lines().find_map(|line| line.strip_prefix("data: ")) else { return true };
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            self.violations.note(format!("the stream of {session} contains an incomplete frame: {frame}"));
            return false;
        };
        let (seq, wanted) = (event["seq"].as_u64().unwrap_or_default(), seen.len() as u64 + 1);
        if seq != wanted {
            let what = if seq < wanted { "doubled" } else { "lost" };
            self.violations
                .note(format!("the stream of {session} {what} an event: {seq} after {}", wanted - 1));
            return false;
        }
        self.events.fetch_add(1, Ordering::Relaxed);
        seen.push(event["id"].as_str().unwrap_or_default().to_owned());
        true
    }
}

/// A place anywhere in a log: often soon, so that there are many, sometimes far away.
fn cut(dice: &SeededRng) -> Cut {
    let frames = dice.below(if dice.once_in(3) { 60 } else { 8 }) as usize;
    let bytes = if dice.once_in(2) { 1 + dice.below(300) as usize } else { 0 };
    // Between two frames there is a frame before.
    let frames = if bytes == 0 { frames + 1 } else { frames };
    Cut { frames, bytes, reset: dice.once_in(2) }
}

/// The end of a connection.
enum Ended {
    /// It was cut.
    Cut,
    /// No response, or a temporary refusal.
    Refused,
    /// The reader has what it was to read.
    Done,
    /// A guarantee was violated; it was recorded.
    Wrong,
}
