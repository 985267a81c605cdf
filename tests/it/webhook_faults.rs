//! Fault table of webhooks: whatever receivers do and whenever the service is killed, every event arrives,
//! under one id and by the documented schedule.
//!
//! Hours pass by a clock that the test moves; no row of a delivery is touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sojourn::domain::DeliveryId;
use sqlx::{PgConnection, Row};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    fake::receiver::{Receiver, Reply},
    support::{
        clock::MovedClock,
        program::Program,
        service::{Caller, Ground, KEY},
        wait::wait_for,
    },
};

/// Documented delays before each attempt, in seconds.
const SCHEDULE: [i64; 10] = [0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
/// Documented time after which another process sends the deliveries of a killed one, in seconds.
const HELD: i64 = 60;
/// Longest attempt of a living process: the timeout of a receiver, and some.
const ATTEMPT: Duration = Duration::from_secs(18);
/// Events to a receiver that accepts none.
const REFUSED: usize = 4;

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

/// One attempt, as its receiver saw it.
#[derive(Clone, Debug)]
struct Attempt {
    id: String,
    /// Time of the attempt, in seconds of the moved clock.
    at: i64,
    is_accepted: bool,
}

/// Attempts by event.
type Attempts = BTreeMap<i64, Vec<Attempt>>;

/// Attempts that arrive until `stop`.
fn collect(mut receiver: Receiver, stop: CancellationToken) -> JoinHandle<Attempts> {
    tokio::spawn(async move {
        let mut attempts = Attempts::new();
        loop {
            let received = tokio::select! {
                biased; // read what has arrived before the end
                received = receiver.next() => received,
                () = stop.cancelled() => return attempts,
            };
            let body: Value = serde_json::from_slice(&received.body).expect("JSON");
            let seq = body["event"]["seq"].as_i64().expect("a seq");
            let at = received.header("webhook-timestamp").parse().expect("seconds");
            let (id, is_accepted) = (received.header("webhook-id").to_owned(), received.is_accepted());
            attempts.entry(seq).or_default().push(Attempt { id, at, is_accepted });
        }
    })
}

/// Asserts that no event is missing, and that each has one id over all attempts. Returns the number of
/// attempts.
fn assert_whole(attempts: &Attempts, sent: usize) -> usize {
    let seqs: Vec<_> = attempts.keys().copied().collect();
    assert_eq!(seqs, (2..=sent as i64 + 1).collect::<Vec<_>>(), "none is missing");
    let is_one = |all: &Vec<Attempt>| all.iter().all(|attempt| attempt.id == all[0].id);
    assert!(attempts.values().all(is_one), "one id over all attempts");
    let ids: BTreeSet<_> = attempts.values().flatten().map(|attempt| &attempt.id).collect();
    assert_eq!(ids.len(), sent, "and a separate one for each event");
    attempts.values().map(Vec::len).sum()
}

/// What the service recorded of a delivery: attempts begun, and the numbers of those whose end it recorded.
type Recorded = BTreeMap<String, (i64, BTreeSet<i64>)>;

/// Asserts that no attempt came before its time. Returns how many came after a killed process.
fn assert_schedule(attempts: &Attempts, recorded: &Recorded) -> usize {
    let mut orphans = 0;
    for all in attempts.values() {
        let (begun, ended) = &recorded[&all[0].id];
        for (number, pair) in (1i64..).zip(all.windows(2)) {
            let waited = pair[1].at - pair[0].at;
            // An attempt that ended with its process before it arrived makes the numbers of later ones unknown.
            let is_known = *begun == all.len() as i64;
            let is_ended = ended.contains(&number);
            let wanted = match (is_known, is_ended) {
                (true, true) => SCHEDULE[number as usize],
                (true, false) => HELD,
                (false, _) => SCHEDULE[1],
            };
            // Both clocks are moved by whole seconds, one after the other.
            assert!(waited + 2 >= wanted, "attempt {number} of {} was repeated after {waited} s", all[0].id);
            orphans += usize::from(!is_ended);
        }
    }
    orphans
}

async fn send_all(program: &Program, session: &str, messages: usize) {
    let http = reqwest::Client::new();
    for _ in 0..messages {
        let request = http.post(format!("{}/sessions/{session}/messages", program.base)).bearer_auth(KEY);
        let answer = request.json(&json!({ "text": "Tell them." })).send().await.expect("an answer");
        assert_eq!(answer.status(), 202);
    }
}

/// Deliveries that are not ended.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    due: i64,
    being_sent: i64,
    /// Time until the next one is due.
    next: Option<Duration>,
}

async fn left(database: &mut PgConnection) -> Left {
    let sql = "select count(*) filter (where ready_at <= now()) as due,
                      count(*) filter (where ready_at > now() and status = 'delivering') as being_sent,
                      extract(epoch from min(ready_at) - now())::float8 as next
               from delivery
               where status not in ('delivered', 'dead_letter')";
    let row = sqlx::query(sql).fetch_one(database).await.expect("a row");
    let next: Option<f64> = row.get("next");
    let next = next.map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
    Left { due: row.get("due"), being_sent: row.get("being_sent"), next }
}

/// Lets time pass until every delivery is delivered or dead.
async fn drain(clock: &mut MovedClock) {
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    let mut since = Instant::now();
    let mut sending = 0;
    loop {
        looks.tick().await;
        let Left { due, being_sent, next } = left(clock.database()).await;
        let Some(next) = next else { return };
        if being_sent != sending || due > 0 {
            (since, sending) = (Instant::now(), being_sent);
        }
        // A living process is heard of within the time of an attempt; what is left belonged to a dead one.
        if due == 0 && (being_sent == 0 || since.elapsed() > ATTEMPT) {
            clock.advance(next + Duration::from_secs(1)).await;
        }
    }
}

async fn recorded(database: &mut PgConnection) -> Recorded {
    let rows: Vec<(uuid::Uuid, i32, Vec<i32>)> = sqlx::query_as(
        "select v.delivery_id, v.attempts,
                array(select number from delivery_attempt a where a.delivery_id = v.delivery_id)
         from delivery v",
    )
    .fetch_all(database)
    .await
    .expect("rows");
    let numbers = |all: Vec<i32>| all.into_iter().map(i64::from).collect();
    rows.into_iter()
        .map(|(id, begun, ended)| (DeliveryId::from_uuid(id).to_string(), (i64::from(begun), numbers(ended))))
        .collect()
}

async fn session_with(program: &Program, receivers: &[&Receiver]) -> String {
    let destinations: Vec<_> = receivers.iter().map(|one| json!({ "url": one.url().as_str() })).collect();
    let body = json!({ "agent": "noop", "destinations": destinations });
    let created = post(&program.base, "/sessions", body).await;
    created["session"]["id"].as_str().expect("an id").to_owned()
}

async fn post(base: &str, path: &str, body: Value) -> Value {
    let request = reqwest::Client::new().post(format!("{base}{path}")).bearer_auth(KEY).json(&body);
    request.send().await.expect("an answer").json().await.expect("JSON")
}

#[tokio::test]
async fn every_event_arrives_whatever_receivers_do_and_whenever_the_service_dies() {
    let is_full = std::env::var_os("SOJOURN_TEST_FULL").is_some();
    let (messages, kills) = if is_full { (10_000, 50) } else { (200, 3) };
    let ground = Ground::new().await;
    let mut clock = MovedClock::new(&ground).await;
    sojourn::net::install_tls();
    let start = |clock: &MovedClock| Program::with_environment(&ground, &["--role=api"], clock.environment());
    // Fewer faults than attempts: no delivery to it needs ten.
    let faulty = Receiver::start(faults(messages)).await;
    let healthy = Receiver::start([]).await;
    let refusing = Receiver::start(vec![Reply::Status(500); 1_000]).await;
    let mut program = start(&clock);
    post(&program.base, "/agents", json!({ "name": "noop", "prompt": "", "model": "scripted/noop" })).await;
    let session = session_with(&program, &[&faulty, &healthy]).await;
    let refused = session_with(&program, &[&refusing]).await;
    let stop = CancellationToken::new();
    let collected = [faulty, healthy, refusing].map(|receiver| collect(receiver, stop.clone()));
    for _ in 0..kills {
        send_all(&program, &session, messages / kills).await;
        program.kill();
        program = start(&clock);
    }
    send_all(&program, &refused, REFUSED).await;
    let patience = Duration::from_secs(if is_full { 3_600 } else { 150 });
    tokio::time::timeout(patience, drain(&mut clock)).await.expect("everything ends");
    program.kill();
    stop.cancel();
    let recorded = recorded(clock.database()).await;
    let sent = messages / kills * kills;
    let [faulty, healthy, refusing] = collected;
    for (name, attempts) in [("faulty", faulty), ("healthy", healthy)] {
        let attempts = attempts.await.expect("the collector ends");
        let count = assert_whole(&attempts, sent);
        let is_accepted = |all: &Vec<Attempt>| all.iter().any(|attempt| attempt.is_accepted);
        assert!(attempts.values().all(is_accepted), "each is accepted in the end");
        let orphans = assert_schedule(&attempts, &recorded);
        println!(
            "{name}: {sent} events arrived over {kills} kills, in {count} attempts, {orphans} after a kill"
        );
    }
    let attempts = refusing.await.expect("the collector ends");
    assert_whole(&attempts, REFUSED);
    assert_schedule(&attempts, &recorded);
    for all in attempts.values() {
        assert_eq!(all.len(), SCHEDULE.len(), "attempts until a delivery is dead");
        assert!(all[9].at - all[0].at >= 3 * 86_400, "three days");
    }
    let (delivered, dead): (i64, i64) = sqlx::query_as(
        "select count(*) filter (where status = 'delivered'), count(*) filter (where status = 'dead_letter')
         from delivery",
    )
    .fetch_one(clock.database())
    .await
    .expect("counts");
    assert_eq!((delivered, dead), (2 * sent as i64, REFUSED as i64));
}

#[tokio::test]
async fn a_delivery_that_cannot_be_prepared_ends_as_a_dead_letter() {
    let ground = Ground::new().await;
    let mut clock = MovedClock::new(&ground).await;
    let program = Program::with_environment(&ground, &["--role=api"], clock.environment());
    let owner = Caller::new(&program.base, KEY);
    let hook = owner.post("/webhooks", json!({ "url": "http://127.0.0.1:9/hook" })).await.ok();
    // Secrets that no key of the deployment opens.
    ground.sql("update destination set sealed_secret = '\\x00010203'").await;
    let agent = owner.inline_agent().await;
    owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let path = format!("/webhooks/{}/deliveries", hook["id"].as_str().expect("an id"));
    for attempt in 1..=10 {
        let is_tried = |page: &Value| {
            let row = &page["data"][0];
            row["attempts"] == attempt && matches!(row["status"].as_str(), Some("failed" | "dead_letter"))
        };
        let page = owner.until(&path, is_tried).await;
        let row = &page["data"][0];
        assert_eq!(row["status"], if attempt == 10 { "dead_letter" } else { "failed" }, "{row}");
        assert!(row["error"].as_str().is_some_and(|error| error.contains("cannot be prepared")), "{row}");
        if let Some(next) = left(clock.database()).await.next {
            clock.advance(next + Duration::from_secs(1)).await;
        }
    }
    program.kill();
}

#[tokio::test]
async fn a_delivery_whose_sender_dies_in_every_attempt_ends_as_a_dead_letter() {
    let ground = Ground::new().await;
    let mut clock = MovedClock::new(&ground).await;
    let start = |clock: &MovedClock| Program::with_environment(&ground, &["--role=api"], clock.environment());
    let mut receiver = Receiver::start(vec![Reply::Hang; 100]).await;
    let mut program = start(&clock);
    let owner = Caller::new(&program.base, KEY);
    let hook = owner.post("/webhooks", json!({ "url": receiver.url().as_str() })).await.ok();
    let agent = owner.inline_agent().await;
    owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let path = format!("/webhooks/{}/deliveries", hook["id"].as_str().expect("an id"));
    for _ in 0..10 {
        receiver.next().await;
        program.kill();
        program = start(&clock);
        let next = left(clock.database()).await.next.expect("a delivery");
        clock.advance(next + Duration::from_secs(1)).await;
    }
    let owner = Caller::new(&program.base, KEY);
    let page = owner.until(&path, |page| page["data"][0]["status"] == "dead_letter").await;
    let row = &page["data"][0];
    assert_eq!(
        (&row["error"], &row["attempts"]),
        (&json!("the last attempt ended without a result"), &json!(10))
    );
    program.kill();
}

#[tokio::test]
async fn a_claim_without_the_database_is_no_attempt_of_a_delivery() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api", "--metrics-listen=127.0.0.1:0"]).await;
    let owner = service.owner();
    // Nobody listens there.
    let hook = owner.post("/webhooks", json!({ "url": "http://127.0.0.1:9/hook" })).await.ok();
    let agent = owner.inline_agent().await;
    owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let path = format!("/webhooks/{}/deliveries", hook["id"].as_str().expect("an id"));
    let is_prepared = |row: &Value| !row["error"].as_str().is_some_and(|why| why.contains("prepared"));
    let tried = |page: &Value, attempts: i64| {
        let row = &page["data"][0];
        row["status"] == "failed" && row["attempts"] == attempts && is_prepared(row)
    };
    owner.until(&path, |page| tried(page, 1)).await;
    // The second attempt is due after 5 s. Until then claims succeed, and nothing else.
    let name = &ground.database.name;
    ground
        .sql(&format!("alter role sojourn_system in database {name} set statement_timeout = '300ms'"))
        .await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and usename = 'sojourn_system'";
    ground.sql(end).await;
    let mut blocker = ground.database.superuser().await;
    sqlx::raw_sql("begin; lock table event in access exclusive mode")
        .execute(&mut blocker)
        .await
        .expect("a lock");
    wait_for("it is postponed twice", async || {
        let metrics = service.metrics().await;
        let postponed = metrics.get("sojourn_delivery_attempts_total{outcome=\"postponed\"}");
        postponed.is_some_and(|count| *count >= 2.0).then_some(())
    })
    .await;
    let page = owner.get(&path).await.ok();
    assert_eq!(page["data"][0]["attempts"], 1, "{page}");
    sqlx::raw_sql("rollback").execute(&mut blocker).await.expect("an end");
    owner.until(&path, |page| tried(page, 2)).await;
    service.stop().await;
}
