//! Fairness: one organization's flood and another's single message.

use std::time::Duration;

use serde_json::{Value, json};
use sojourn::{
    base::{Origin, seal::MasterKey},
    domain::OrgId,
    store::{Store, pool::PoolSizes},
};
use tokio::time::timeout;

use crate::support::service::{Caller, Ground};

async fn sessions(caller: &Caller, count: usize) -> Vec<String> {
    let mut sessions = Vec::new();
    for number in 0..count {
        sessions.push(caller.play(json!([{ "text": format!("Turn {number}.") }])).await);
    }
    sessions
}

/// Start and end of a session's only turn.
async fn span(caller: &Caller, session: &str) -> (String, String) {
    let log = caller.settled(session, 1).await;
    let at = |kind: &str| -> String {
        let event: Option<&Value> = log.iter().find(|event| event["type"] == kind);
        event.and_then(|event| event["ts"].as_str()).expect("a time").to_owned()
    };
    (at("turn.started"), at("turn.completed"))
}

#[tokio::test]
async fn a_flood_does_not_delay_another_orgs_turn() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let flood = api.owner();
    let single = api.caller(&ground.organization("single").await);
    let many = sessions(&flood, 12).await;
    let one = sessions(&single, 1).await;
    let worker = ground.serve(&["--role=worker", "--max-concurrent-turns=1"]).await;
    let (_, ended) = span(&single, &one[0]).await;
    let mut before = 0;
    for session in &many {
        before += usize::from(span(&flood, session).await.1 < ended);
    }
    assert!(before <= 2, "{before} turns of the flood ran before the other organization's only one");
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn long_turns_of_one_organization_leave_a_slot_for_another() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--max-concurrent-turns=2"]).await;
    let (flood, single) = (service.owner(), service.caller(&ground.organization("single").await));
    let slow = json!([{ "text": "Slow.", "delay_ms": 20_000 }]);
    let mut long = Vec::new();
    for _ in 0..4 {
        long.push(flood.play(slow.clone()).await);
    }
    for session in &long[..2] {
        flood.until(&format!("/sessions/{session}"), |shown| shown["status"] == "running").await;
    }
    let begun = std::time::Instant::now();
    let one = sessions(&single, 1).await;
    span(&single, &one[0]).await;
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    // Its own places are not more than before.
    let running = flood.get("/sessions?status=running").await.ok();
    assert_eq!(running["data"].as_array().map(Vec::len), Some(2));
    service.stop().await;
}

#[tokio::test]
async fn beside_a_flood_others_get_several_turns_at_once_and_leave_some_for_each_other() {
    let ground = Ground::new().await;
    // Four slots in addition: two for organizations that hold none, two also for those that hold few.
    let service = ground.serve(&["--max-concurrent-turns=16"]).await;
    let slow = json!([{ "text": "Slow.", "delay_ms": 60_000 }]);
    let starts = async |caller: &Caller, sessions: usize, running: usize| {
        for _ in 0..sessions {
            caller.play(slow.clone()).await;
        }
        let is_wanted = |list: &Value| list["data"].as_array().map(Vec::len) == Some(running);
        caller.until("/sessions?status=running", is_wanted).await;
    };
    starts(&service.owner(), 20, 16).await;
    for (name, running) in [("second", 2), ("third", 1), ("fourth", 1)] {
        starts(&service.caller(&ground.organization(name).await), 4, running).await;
    }
    starts(&service.owner(), 0, 16).await;
    service.stop().await;
}

#[tokio::test]
async fn the_transactions_of_one_organization_leave_connections_to_others() {
    let ground = Ground::new().await;
    let master = MasterKey::generate(&Origin::system());
    let store = Store::open(&ground.urls(), PoolSizes { app: 4, system: 1 }, master).unwrap();
    let (greedy, other): (OrgId, OrgId) = (Origin::system().id(), Origin::system().id());
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(store.begin(greedy).await.unwrap());
    }
    let mut waiting = Box::pin(store.begin(greedy));
    let begun = timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(begun.is_err(), "it has three of four");
    store.begin(other).await.unwrap().commit().await.unwrap();
    held.pop();
    waiting.await.unwrap();
}

#[tokio::test]
async fn an_organization_runs_no_more_turns_at_once_than_it_may() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let mut superuser = ground.database.superuser().await;
    sqlx::query("update org set concurrency = 1").execute(&mut superuser).await.expect("a cap");
    let owner = api.owner();
    let waiting = sessions(&owner, 4).await;
    let worker = ground.serve(&["--role=worker", "--max-concurrent-turns=4"]).await;
    let mut spans = Vec::new();
    for session in &waiting {
        spans.push(span(&owner, session).await);
    }
    spans.sort();
    for pair in spans.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two turns ran at once: {spans:?}");
    }
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn a_queued_session_has_its_queue_position() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    for (place, session) in (1..).zip(sessions(&owner, 3).await) {
        let session = owner.get(&format!("/sessions/{session}")).await.ok();
        assert_eq!(session["status"], "queued");
        assert_eq!(session["queue_position"], place);
    }
    api.stop().await;
}
