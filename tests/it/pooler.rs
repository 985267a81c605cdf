//! The service behind PgBouncer in transaction mode. `SOJOURN_TEST_POOLER=1` puts it in front of every other test
//! as well.

use serde_json::json;

use crate::{
    fake::receiver::{Receiver, Reply},
    support::{pooler::SERVER_CONNECTIONS, service::Ground},
};

/// Connections of the pooler, which all come from its relay, and those that listen.
const POOLED: &str = "select count(*) from pg_stat_activity
                      where datname = current_database() and application_name in ('sojourn-app', 'sojourn-system')";
const LISTENING: &str = "select count(*) from pg_stat_activity
                         where datname = current_database() and application_name = 'sojourn-listen'";

#[tokio::test]
async fn sessions_streams_and_webhooks_work_behind_a_pooler_in_transaction_mode() {
    let ground = Ground::new().await.pooled().await;
    let (api, other) = (ground.serve(&["--role=api"]).await, ground.serve(&["--role=api"]).await);
    let workers = [ground.serve(&["--role=worker"]).await, ground.serve(&["--role=worker"]).await];
    let (owner, reader) = (api.owner(), other.owner());
    let agent = owner.inline_agent().await;
    let mut receiver = Receiver::start(vec![Reply::Status(200); 64]).await;
    let sessions = 12;
    let mut created = Vec::new();
    for number in 0..sessions {
        let body = json!({
            "agent": agent,
            "input": { "script": [{ "text": format!("Answer {number}.") }] },
            "destinations": [{ "url": receiver.url().as_str(), "types": ["turn.completed"] }],
        });
        let made = owner.post("/sessions", body).await.ok();
        created.push(made["session"]["id"].as_str().expect("an id").to_owned());
    }
    for session in &created {
        // The reader's process did not take the message.
        let log = reader.settled(session, 1).await;
        let seqs: Vec<_> = log.iter().map(|event| event["seq"].as_i64()).collect();
        assert_eq!(seqs, (1..=log.len() as i64).map(Some).collect::<Vec<_>>());
        let message = json!({ "text": "Once more." });
        owner.post(&format!("/sessions/{session}/messages"), message).await.ok();
        reader.settled(session, 2).await;
    }
    for _ in 0..2 * sessions {
        receiver.next().await;
    }
    assert_eq!(ground.count(LISTENING).await, 4, "each process listens on a connection of its own");
    let pooled = ground.count(POOLED).await;
    assert!((1..=2 * SERVER_CONNECTIONS as i64).contains(&pooled), "{pooled} connections of the pooler");
    for service in [api, other].into_iter().chain(workers) {
        service.stop().await;
    }
}
