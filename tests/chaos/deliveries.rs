//! A webhook of the organization, and the comparison of what it received with the logs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use uuid::Uuid;

use crate::{
    client::{Client, Violations},
    cluster::Cluster,
    receiver::{Receiver, Reply},
};

/// Types of events that are sent.
const TYPES: [&str; 3] = ["user.message", "turn.completed", "exec.completed"];
/// The claim of a dead dispatcher ends after a minute; another one then makes the second attempt, and if the receiver
/// refuses that, the third one comes after 5 minutes and a tenth of that.
const PATIENCE: Duration = Duration::from_secs(450);

/// Ids of deliveries under which each event arrived.
type Received = Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>;

/// The receiver of the webhook.
pub struct Deliveries {
    received: Received,
    requests: Arc<Mutex<u64>>,
    task: JoinHandle<()>,
}

impl Deliveries {
    /// Creates the webhook. Some of its first answers are failures, one per delivery at most: the second attempt
    /// comes after 5 s, a third one, if the first attempt was lost with its dispatcher, after 5 minutes.
    pub async fn start(client: &Client, violations: &Violations) -> anyhow::Result<Self> {
        let (mut at, mut refused) = (0, BTreeSet::new());
        let mut receiver = Receiver::choosing(move |headers| {
            at += 1;
            let is_refused = at < 500 && at % 25 == 8 && refused.insert(headers.get("webhook-id").cloned());
            Reply::Status(if is_refused { 500 } else { 200 })
        })
        .await;
        let body = json!({ "url": receiver.url().as_str(), "types": TYPES, "level": "internal" });
        client.send(violations, Method::POST, "/webhooks", Some(&body)).await?;
        let (received, requests) = (Received::default(), Arc::new(Mutex::new(0)));
        let task = tokio::spawn({
            let (received, requests) = (received.clone(), requests.clone());
            async move {
                loop {
                    let request = receiver.next().await;
                    *requests.lock().expect("no holder panics") += 1;
                    if !request.is_accepted() {
                        // It has to arrive once more.
                        continue;
                    }
                    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                    let event = body["eventId"].as_str().unwrap_or_default().to_owned();
                    let id = request.header("webhook-id").to_owned();
                    received.lock().expect("no holder panics").entry(event).or_default().insert(id);
                }
            }
        });
        Ok(Self { received, requests, task })
    }

    /// Waits until every event of the logs has arrived, under one id. Returns their number and that of the
    /// requests.
    pub async fn check(self, cluster: &Cluster, violations: &Violations) -> anyhow::Result<(usize, u64)> {
        let mut connection = cluster.superuser().await?;
        let events: Vec<Uuid> = sqlx::query_scalar("select event_id from event where type = any($1)")
            .bind(TYPES.as_slice())
            .fetch_all(&mut connection)
            .await?;
        let events: BTreeSet<String> = events.into_iter().map(event_id).collect();
        let until = Instant::now() + PATIENCE;
        let mut looks = tokio::time::interval(Duration::from_millis(250));
        while Instant::now() < until && !events.iter().all(|event| self.has(event)) {
            looks.tick().await;
        }
        let received = self.received.lock().expect("no holder panics").clone();
        for event in events.iter().filter(|event| !received.contains_key(*event)) {
            violations.note(format!("{event} was not delivered within {PATIENCE:?}"));
        }
        for event in received.keys().filter(|event| !events.contains(*event)) {
            violations.note(format!("{event} was delivered and is in no log"));
        }
        for (event, ids) in received.iter().filter(|(_, ids)| ids.len() > 1) {
            violations.note(format!("{event} was delivered under {} ids", ids.len()));
        }
        self.task.abort();
        let requests = *self.requests.lock().expect("no holder panics");
        Ok((events.len(), requests))
    }

    fn has(&self, event: &str) -> bool {
        self.received.lock().expect("no holder panics").contains_key(event)
    }
}

/// The public id of an event.
pub fn event_id(id: Uuid) -> String {
    sojourn::domain::EventId::from_uuid(id).to_string()
}
