//! A database host that vanishes without a reset: nothing answers, and no connection is closed.

use std::time::{Duration, Instant};

use serde_json::json;
use sojourn::base::limit::IDLE_TRANSACTION_TIMEOUT;
use sqlx::Connection;
use tokio::time::sleep;

use crate::support::{
    relay::{Mode, Relay},
    service::{Ground, Service},
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
async fn a_process_that_is_frozen_in_a_transaction_delays_others_for_a_limited_time() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let agent = owner.inline_agent().await;
    let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let messages = format!("/sessions/{}/messages", made["session"]["id"].as_str().expect("an id"));
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
