//! Readers of streams over connections that are cut. Each resumes where it stopped, and must finally have
//! received the log: every event once and in order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use serde_json::Value;
use tokio::{
    sync::{Mutex, mpsc},
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
    pub fresh: Mutex<mpsc::Receiver<String>>,
    /// Remaining cuts.
    pub left: AtomicU64,
    pub cuts: AtomicU64,
    pub resumes: AtomicU64,
    pub events: AtomicU64,
    /// Logs as received: session, and id of each event in order.
    pub seen: std::sync::Mutex<Vec<(String, Vec<String>)>>,
}

/// A stream that is silent for this long is stuck.
const SILENCE: Duration = Duration::from_secs(90);

impl Readers {
    /// Creates readers of `sessions` whose streams are cut `cuts` times in total.
    pub fn new(
        client: Arc<Client>,
        violations: Arc<Violations>,
        sessions: mpsc::Receiver<String>,
        cuts: u64,
    ) -> Self {
        Self {
            client,
            violations,
            fresh: Mutex::new(sessions),
            left: AtomicU64::new(cuts),
            cuts: AtomicU64::new(0),
            resumes: AtomicU64::new(0),
            events: AtomicU64::new(0),
            seen: std::sync::Mutex::default(),
        }
    }

    /// Reads one session after another until all cuts are done.
    pub async fn read(self: Arc<Self>, dice: SeededRng) -> anyhow::Result<()> {
        let proxy = Proxy::start().await?;
        while self.left.load(Ordering::Relaxed) > 0 {
            let next = timeout(Duration::from_millis(500), async { self.fresh.lock().await.recv().await });
            match next.await {
                Ok(Some(session)) => self.follow(&session, &proxy, &dice).await,
                Ok(None) => return Ok(()),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Follows a session to the end of its first turn.
    async fn follow(&self, session: &str, proxy: &Proxy, dice: &SeededRng) {
        let mut seen: Vec<String> = Vec::new();
        let mut heard = Instant::now();
        for attempt in 0u64.. {
            let inside = 1 + dice.below(300) as usize;
            let (frames, bytes) = if attempt % 2 == 0 { (0, inside) } else { (1, 0) };
            proxy.plan(Cut { frames, bytes, reset: dice.once_in(2) }, self.client.address());
            let before = seen.len();
            let ended = self.connection(session, proxy, &mut seen).await;
            if seen.len() > before {
                heard = Instant::now();
            }
            match ended {
                Ended::Turn => break,
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
            if heard.elapsed() > SILENCE {
                self.violations.note(format!("the stream of {session} is silent for {SILENCE:?}"));
                return;
            }
        }
        self.seen.lock().expect("no reader panics").push((session.to_owned(), seen));
    }

    /// One connection, until it is cut. `seen[n]` is the event with `seq` n + 1.
    async fn connection(&self, session: &str, proxy: &Proxy, seen: &mut Vec<String>) -> Ended {
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
        while let Some(Ok(chunk)) = chunks.next().await {
            buffer.extend_from_slice(&chunk);
            while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = buffer.drain(..end + 2).collect();
                match self.frame(session, &String::from_utf8_lossy(&frame), seen) {
                    None => {}
                    Some(ended) => return ended,
                }
            }
        }
        Ended::Cut
    }

    fn frame(&self, session: &str, frame: &str, seen: &mut Vec<String>) -> Option<Ended> {
        let data = frame.lines().find_map(|line| line.strip_prefix("data: "))?;
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            self.violations.note(format!("the stream of {session} contains an incomplete frame: {frame}"));
            return Some(Ended::Wrong);
        };
        let (seq, wanted) = (event["seq"].as_u64().unwrap_or_default(), seen.len() as u64 + 1);
        if seq != wanted {
            let what = if seq < wanted { "doubled" } else { "lost" };
            self.violations
                .note(format!("the stream of {session} {what} an event: {seq} after {}", wanted - 1));
            return Some(Ended::Wrong);
        }
        self.events.fetch_add(1, Ordering::Relaxed);
        seen.push(event["id"].as_str().unwrap_or_default().to_owned());
        (event["type"] == "turn.completed").then_some(Ended::Turn)
    }
}

/// The end of a connection.
enum Ended {
    /// It was cut.
    Cut,
    /// No response, or a temporary refusal.
    Refused,
    /// The turn has ended.
    Turn,
    /// A guarantee was violated; it was recorded.
    Wrong,
}
