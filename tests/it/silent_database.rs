//! A database host that vanishes without a reset: nothing answers, and no connection is closed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sojourn::{
    base::{
        limit::{IDLE_TRANSACTION_TIMEOUT, STATEMENT_ANSWER_TIMEOUT},
        seal::MasterKey,
    },
    store::{Store, pool::PoolSizes},
};
use sqlx::Connection;
use tokio::time::{sleep, timeout};

use crate::support::{
    gate::Gate,
    program::Program,
    relay::{Mode, Relay},
    service::{Caller, Ground, KEY, Service},
    wait::wait_for,
};

#[tokio::test]
async fn sessions_go_on_once_the_database_answers_again() {
    let ground = Ground::new().await;
    let relay = Relay::start(&ground.urls(), None, Mode::Forward).await;
    let service = Service::on(&relay.urls(&ground.urls()), ground.data_dir.path(), &[]).await;
    let owner = service.owner();
    // Their answers arrive while the database is silent, and shortly before and after.
    let mut sessions = Vec::new();
    for at in 0..8 {
        sessions.push(owner.play(json!([{ "text": "An answer.", "delay_ms": 1_300 + at * 500 }])).await);
    }
    sleep(Duration::from_millis(1_500)).await;
    relay.set(Mode::Silent);
    sleep(Duration::from_secs(3)).await;
    relay.set(Mode::Forward);
    let answers_again = Instant::now();
    // Connections from before are dead for good: every wait on them must end by itself.
    for session in &sessions {
        let log = owner.settled(session, 1).await;
        let seqs: Vec<_> = log.iter().map(|event| event["seq"].as_i64()).collect();
        assert_eq!(seqs, (1..=log.len() as i64).map(Some).collect::<Vec<_>>());
        assert_eq!(log.last().expect("an end")["body"]["yield_reason"], "completed");
    }
    assert!(answers_again.elapsed() < Duration::from_secs(50), "{:?}", answers_again.elapsed());
    let session = owner.play(json!([{ "text": "After it." }])).await;
    owner.settled(&session, 1).await;
    service.stop().await;
}

#[tokio::test]
async fn a_statement_that_is_never_answered_ends() {
    let ground = Ground::new().await;
    ground.serve(&["--role=api"]).await.stop().await;
    let relay = Relay::start(&ground.urls(), None, Mode::Forward).await;
    let master = MasterKey::parse("a passphrase that is long enough for tests").expect("a master key");
    let sizes = PoolSizes { app: 1, system: 1 };
    let store = Store::open(&relay.urls(&ground.urls()), sizes, master).expect("a store");
    store.first_org().await.expect("an answer");
    let mut holder = ground.database.superuser().await;
    let lock = "begin; lock table org in access exclusive mode";
    sqlx::raw_sql(lock).execute(&mut holder).await.expect("the lock");
    let asked = {
        let store = store.clone();
        tokio::spawn(async move { store.first_org().await })
    };
    let waiting = "select count(*)
        from pg_locks l
        join pg_database d on d.oid = l.database and d.datname = current_database()
        where l.relation = 'org'::regclass and not l.granted";
    wait_for("the statement waits", async || (ground.count(waiting).await > 0).then_some(())).await;
    relay.set(Mode::Silent);
    holder.close().await.expect("a clean end");
    let ended = timeout(STATEMENT_ANSWER_TIMEOUT + Duration::from_secs(10), asked).await;
    assert!(ended.expect("it ends").expect("no panic").is_err());
    // Its connection is closed, and the next statement gets another.
    relay.set(Mode::Forward);
    wait_for("the database answers again", async || store.first_org().await.ok()).await;
    store.close().await;
}

/// Creates a session. Returns the path of its messages.
async fn messages(owner: &Caller) -> String {
    let agent = owner.inline_agent().await;
    let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
    format!("/sessions/{}/messages", made["session"]["id"].as_str().expect("an id"))
}

#[tokio::test]
async fn a_process_that_is_frozen_in_a_transaction_delays_others_for_a_limited_time() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let messages = messages(&owner).await;
    // It holds the lock of the session, and sends nothing more.
    let mut frozen = sqlx::PgConnection::connect(&ground.urls().system).await.expect("a connection");
    sqlx::raw_sql("begin; select from session for update").execute(&mut frozen).await.expect("a lock");
    let locked = Instant::now();
    let body = json!({ "text": "Go on." });
    assert_eq!(owner.post(&messages, body.clone()).await.status, 409, "the answer does not wait for it");
    wait_for("the lock ends", async || {
        (owner.post(&messages, body.clone()).await.status == 202).then_some(())
    })
    .await;
    assert!(locked.elapsed() < IDLE_TRANSACTION_TIMEOUT + Duration::from_secs(10), "{:?}", locked.elapsed());
    assert!(sqlx::raw_sql("commit").execute(&mut frozen).await.is_err(), "the server ended the transaction");
    api.stop().await;
}

#[tokio::test]
async fn a_request_whose_transaction_ended_while_its_process_was_frozen_can_be_sent_again() {
    let ground = Ground::new().await;
    let program = Program::start(&ground, &["--role=api"]);
    let owner = Caller::new(&program.base, KEY);
    let messages = messages(&owner).await;
    let trigger = "create trigger block before insert on event for each row execute function block();";
    let gate = Gate::close(&ground, trigger).await;
    let (asked, path) = (owner.clone(), messages.clone());
    let answer = tokio::spawn(async move { asked.post(&path, json!({ "text": "Go on." })).await });
    gate.is_reached().await;
    program.freeze();
    gate.open().await;
    let open =
        "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'";
    wait_for("its transaction is open", async || (ground.count(open).await > 0).then_some(())).await;
    wait_for("its transaction has ended", async || (ground.count(open).await == 0).then_some(())).await;
    program.thaw();
    let answer = answer.await.expect("an answer");
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    answer.error(503);
    owner.post(&messages, json!({ "text": "Go on." })).await.ok();
}

#[tokio::test]
async fn a_request_whose_transaction_the_server_ended_can_be_sent_again() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let messages = messages(&owner).await;
    // As the server says it: after a freeze the end of the connection may arrive first.
    let end = "create function end_transaction() returns trigger language plpgsql as
        $$ begin raise exception 'idle for too long' using errcode = '25P03'; end $$;
        grant execute on function end_transaction() to public;
        create trigger ended before insert on event for each row execute function end_transaction();";
    ground.sql(end).await;
    let answer = owner.post(&messages, json!({ "text": "Go on." })).await;
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    answer.error(503);
    ground.sql("drop trigger ended on event").await;
    owner.post(&messages, json!({ "text": "Go on." })).await.ok();
    api.stop().await;
}

/// Freezes a worker while the server executes its statement that fires this trigger; then another worker comes.
async fn a_worker_is_frozen(trigger: &str) {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let gate = Gate::close(&ground, trigger).await;
    let frozen = Program::start(&ground, &["--lease-ms=1000"]);
    let session = owner.play(json!([{ "text": "One." }, { "text": "Two." }])).await;
    gate.is_reached().await;
    frozen.freeze();
    let at = Instant::now();
    gate.open().await;
    let worker = ground.serve(&["--role=worker"]).await;
    let log = owner.settled(&session, 1).await;
    assert!(at.elapsed() < IDLE_TRANSACTION_TIMEOUT + Duration::from_secs(15), "{:?}", at.elapsed());
    frozen.thaw();
    let message = format!("/sessions/{session}/messages");
    owner
        .post(&message, json!({ "text": json!({ "script": [{ "text": "Three." }] }).to_string() }))
        .await
        .ok();
    let both = owner.settled(&session, 2).await;
    let ids = |log: &[Value]| log.iter().map(|event| event["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&both[..log.len()]), ids(&log), "the frozen worker wrote nothing more");
    let seqs: Vec<_> = both.iter().map(|event| event["seq"].as_i64()).collect();
    assert_eq!(seqs, (1..=both.len() as i64).map(Some).collect::<Vec<_>>());
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_frozen_in_an_append_delays_its_session_for_a_limited_time() {
    a_worker_is_frozen(
        "create trigger block before insert on event for each row when (new.type = 'turn.started')
         execute function block();",
    )
    .await;
}

#[tokio::test]
async fn a_worker_that_is_frozen_in_a_claim_delays_its_jobs_for_a_limited_time() {
    a_worker_is_frozen(
        "create trigger block before update on job for each row
         when (old.worker_id is null and new.worker_id is not null) execute function block();",
    )
    .await;
}
