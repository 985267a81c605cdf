//! Fault table of webhooks: whatever receivers do and whenever the service is killed, every event arrives,
//! under one id.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    fake::receiver::{Receiver, Reply},
    support::{
        program::Program,
        service::{Ground, KEY},
    },
};

/// Replies of a faulty receiver, repeated.
fn faults(count: usize) -> Vec<Reply> {
    let table = |round: usize| {
        [
            // Each one costs the time of a timeout.
            if round.is_multiple_of(10) { Reply::Hang } else { Reply::Status(500) },
            Reply::Status(200),
            Reply::Drop,
            Reply::Status(200),
            Reply::RetryAfter(429, "1"),
            Reply::Cut,
            Reply::Status(404),
            Reply::Redirect("http://127.0.0.1:9/elsewhere".parse().expect("a URL")),
            Reply::Status(204),
            Reply::RetryAfter(503, "3600"),
        ]
    };
    (0..count.div_ceil(10)).flat_map(table).collect()
}

/// Ids under which each event arrived, until `stop`: one id for each delivery.
fn collect(mut receiver: Receiver, stop: CancellationToken) -> JoinHandle<BTreeMap<i64, Vec<String>>> {
    tokio::spawn(async move {
        let mut ids: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        loop {
            let received = tokio::select! {
                biased; // read what has arrived before the end
                received = receiver.next() => received,
                () = stop.cancelled() => return ids,
            };
            let body: Value = serde_json::from_slice(&received.body).expect("JSON");
            let seq = body["event"]["seq"].as_i64().expect("a seq");
            ids.entry(seq).or_default().push(received.header("webhook-id").to_owned());
        }
    })
}

/// Asserts that no event is missing, and that each has one id over all attempts. Returns the number of
/// deliveries.
fn assert_whole(ids: &BTreeMap<i64, Vec<String>>, sent: usize) -> usize {
    let seqs: Vec<_> = ids.keys().copied().collect();
    assert_eq!(seqs, (2..=sent as i64 + 1).collect::<Vec<_>>(), "none is missing");
    assert!(ids.values().all(|ids| ids.iter().all(|id| *id == ids[0])), "one id over all attempts");
    assert_eq!(
        ids.values().flatten().collect::<BTreeSet<_>>().len(),
        sent,
        "and a separate one for each event"
    );
    ids.values().map(Vec::len).sum()
}

async fn send_all(program: &Program, session: &str, messages: usize) {
    let http = reqwest::Client::new();
    for _ in 0..messages {
        let request = http.post(format!("{}/sessions/{session}/messages", program.base)).bearer_auth(KEY);
        let answer = request.json(&json!({ "text": "Tell them." })).send().await.expect("an answer");
        assert_eq!(answer.status(), 202);
    }
}

/// Counts undelivered events, and makes them due: the hours of the retry schedule and the minute of a dead
/// dispatcher's claim are skipped.
async fn left(superuser: &mut PgConnection) -> i64 {
    // Faults are random: no delivery may run out of attempts by chance.
    let sql = "with hurried as (
                   update delivery set ready_at = now(), attempts = least(attempts, 5)
                   where status = 'failed' or (status = 'delivering' and last_attempt_at < now() - interval '3 seconds')
               )
               select count(*) from delivery where status <> 'delivered'";
    sqlx::query_scalar(sql).fetch_one(superuser).await.expect("a count")
}

#[tokio::test]
async fn every_event_arrives_whatever_receivers_do_and_whenever_the_service_dies() {
    let is_full = std::env::var_os("SOJOURN_TEST_FULL").is_some();
    let (messages, kills) = if is_full { (10_000, 50) } else { (200, 3) };
    let ground = Ground::new().await;
    // Fewer faults than attempts: no delivery needs ten attempts.
    let faulty = Receiver::start(faults(messages)).await;
    let healthy = Receiver::start([]).await;
    let mut program = Program::start(&ground, &["--role=api"]);
    sojourn::net::install_tls();
    let http = reqwest::Client::new();
    let post = async |base: &str, path: &str, body: Value| -> Value {
        let request = http.post(format!("{base}{path}")).bearer_auth(KEY).json(&body);
        request.send().await.expect("an answer").json().await.expect("JSON")
    };
    let agent = json!({ "name": "noop", "prompt": "", "model": "scripted/noop" });
    post(&program.base, "/agents", agent).await;
    let both = [&faulty, &healthy].map(|receiver| json!({ "url": receiver.url().as_str() }));
    let created = post(&program.base, "/sessions", json!({ "agent": "noop", "destinations": both })).await;
    let session = created["session"]["id"].as_str().expect("an id").to_owned();
    let stop = CancellationToken::new();
    let collected = [faulty, healthy].map(|receiver| collect(receiver, stop.clone()));
    let mut superuser = ground.database.superuser().await;
    for _ in 0..kills {
        send_all(&program, &session, messages / kills).await;
        left(&mut superuser).await;
        program.kill();
        program = Program::start(&ground, &["--role=api"]);
    }
    let drained = async {
        let mut looks = tokio::time::interval(Duration::from_millis(200));
        while left(&mut superuser).await > 0 {
            looks.tick().await;
        }
    };
    let patience = Duration::from_secs(if is_full { 1_800 } else { 90 });
    tokio::time::timeout(patience, drained).await.expect("everything is delivered in the end");
    superuser.close().await.expect("a clean end");
    program.kill();
    stop.cancel();
    let sent = messages / kills * kills;
    for (name, ids) in ["faulty", "healthy"].into_iter().zip(collected) {
        let deliveries = assert_whole(&ids.await.expect("the collector ends"), sent);
        println!("{name}: {sent} events arrived over {kills} kills, in {deliveries} deliveries");
    }
}
