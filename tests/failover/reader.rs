//! A reader of one session's stream, which resumes wherever it was interrupted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use reqwest::StatusCode;
use serde_json::Value;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{load::Load, process::KEY};

/// Longest silence of a stream: heartbeats come more often.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// Everything must have arrived within this time after the end of the last turn.
const ARRIVAL_MAX: Duration = Duration::from_secs(90);

/// A running reader.
pub struct Reader {
    load: Arc<Load>,
    session: String,
    seen: Arc<AtomicI64>,
    task: JoinHandle<()>,
}

impl Reader {
    /// Starts to read from the first event.
    pub fn start(load: Arc<Load>, session: String) -> Self {
        let seen = Arc::new(AtomicI64::new(0));
        let task = tokio::spawn(read(load.clone(), session.clone(), seen.clone()));
        Self { load, session, seen, task }
    }

    /// Ends it once everything has arrived. `driven` has the last `seq`.
    pub async fn finish(self, driven: &anyhow::Result<i64>) {
        if let Ok(last) = driven {
            let arrived = async {
                while self.seen.load(Ordering::Relaxed) < *last {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            if timeout(ARRIVAL_MAX, arrived).await.is_err() {
                let seen = self.seen.load(Ordering::Relaxed);
                let words = format!("the reader of {} is at {seen} of {last}", self.session);
                self.load.ledger.violation(words);
            }
        }
        self.load.ledger.session(&self.session, |session| session.is_read = true);
        self.task.abort();
    }

    /// Ends it at once.
    pub fn abort(&self) {
        self.task.abort();
    }
}

/// Reads until it is aborted.
async fn read(load: Arc<Load>, session: String, seen: Arc<AtomicI64>) {
    loop {
        connection(&load, &session, &seen).await;
        load.ledger.resumes.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(100)).await;
    }
}

/// One connection, until it ends.
async fn connection(load: &Load, session: &str, seen: &AtomicI64) {
    let after = seen.load(Ordering::Relaxed);
    let url = load.url(&format!("/sessions/{session}/events?stream=sse"));
    // Without the timeout of a whole answer: a stream is open for minutes.
    let request = load.http().get(url).bearer_auth(KEY).timeout(Duration::from_secs(3_600));
    let request = request.header("last-event-id", after.to_string());
    let Ok(Ok(response)) = timeout(SILENCE_MAX, request.send()).await else { return };
    match response.status() {
        StatusCode::OK => {}
        StatusCode::CONFLICT => {
            let answer: Value = response.json().await.unwrap_or_default();
            if answer["error"]["code"] == "events_lost" && load.shape.may_lose {
                load.ledger.told_lost.fetch_add(1, Ordering::Relaxed);
                load.ledger.session(session, |session| session.frames.clear());
                seen.store(0, Ordering::Relaxed);
            } else {
                load.ledger.violation(format!("the stream of {session} after {after} was answered {answer}"));
            }
            return;
        }
        StatusCode::SERVICE_UNAVAILABLE => return,
        StatusCode::NOT_FOUND if load.shape.may_lose => return,
        status => return load.ledger.violation(format!("the stream of {session} was answered {status}")),
    }
    let (mut chunks, mut buffer) = (response.bytes_stream(), Vec::new());
    loop {
        let chunk = match timeout(SILENCE_MAX, chunks.next()).await {
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(_)) | None) => return,
            Err(_) => return load.ledger.violation(format!("the stream of {session} is silent")),
        };
        buffer.extend_from_slice(&chunk);
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let frame: Vec<u8> = buffer.drain(..end + 2).collect();
            let frame = String::from_utf8_lossy(&frame);
            let Some(data) = frame.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
            let event: Value = serde_json::from_str(data).unwrap_or_default();
            take(load, session, seen, &event);
        }
    }
}

/// Records one frame, which must be the next one.
fn take(load: &Load, session: &str, seen: &AtomicI64, event: &Value) {
    let (seq, before) = (event["seq"].as_i64().unwrap_or_default(), seen.load(Ordering::Relaxed));
    if seq != before + 1 {
        load.ledger.violation(format!("the stream of {session} sent {seq} after {before}"));
    }
    let id = event["id"].as_str().unwrap_or_default().to_owned();
    load.ledger.session(session, |session| session.frames.insert(seq, id).map_or((), drop));
    load.ledger.frames.fetch_add(1, Ordering::Relaxed);
    seen.store(seq, Ordering::Relaxed);
}
