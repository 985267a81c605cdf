//! Agents that schedule their own wake.

use std::time::Duration;

use serde_json::{Value, json};
use sojourn::{
    base::{Id, Origin},
    domain::scheduled_wake::When,
    store::{
        record::Fence,
        scheduled_wake::{NewScheduledWake, Set},
    },
};

use crate::support::service::{Caller, Ground};

fn scheduled_wake(input: Value) -> Value {
    json!({ "tool": "schedule_wake", "input": input })
}

fn of<'a>(log: &'a [Value], kind: &str) -> Vec<&'a Value> {
    log.iter().filter(|event| event["type"] == kind).collect()
}

/// A session whose agent waits for an hour.
async fn waiting(owner: &Caller) -> String {
    let wait = scheduled_wake(json!({ "after_seconds": 3_600, "note": "Look." }));
    let session = owner.play(json!([{ "tools": [wait] }, { "text": "I wait." }])).await;
    owner.settled(&session, 1).await;
    session
}

const PENDING: &str = "select count(*) from scheduled_wake where fired_at is null";

#[tokio::test]
async fn an_agent_is_woken_when_it_asked_to_be() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let wait = scheduled_wake(json!({ "after_seconds": 1, "note": "Is the build green?" }));
    let session = owner.play(json!([{ "tools": [wait] }, { "text": "I wait." }])).await;
    let log = owner.settled(&session, 2).await;
    let [scheduled] = of(&log, "wake.scheduled")[..] else { panic!("one timer: {log:#?}") };
    let call = &of(&log, "tool.call")[0]["body"]["call_id"];
    assert_eq!(
        (&scheduled["body"]["note"], &scheduled["body"]["call_id"]),
        (&json!("Is the build green?"), call)
    );
    let at = scheduled["body"]["at"].as_str().expect("a time");
    let result = &of(&log, "tool.result")[0]["body"];
    assert_eq!(
        (&result["output"], &result["is_error"]),
        (&json!(format!("You will be woken at {at}.")), &json!(false))
    );
    assert!(of(&log, "sandbox.created").is_empty(), "it needs no sandbox");
    let woken = of(&log, "user.message")[1];
    assert_eq!(woken["actor"], json!({ "id": call, "display": "schedule_wake", "type": "trigger" }));
    assert_eq!(woken["body"]["envelope"], json!({ "id": call, "source": "schedule_wake" }));
    assert!(
        woken["body"]["text"].as_str().is_some_and(|text| text.ends_with("Is the build green?")),
        "{woken}"
    );
    assert!(woken["ts"].as_str() >= Some(at), "not before its time");
    assert_eq!(ground.count(PENDING).await, 0);
    service.stop().await;
}

#[tokio::test]
async fn an_invalid_wake_is_reported_to_the_agent() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let calls = [
        json!({ "note": "x" }),
        json!({ "note": "x", "at": "2999-01-01T00:00:00Z", "after_seconds": 5 }),
        json!({ "note": "x", "at": "tomorrow" }),
        json!({ "note": "x", "at": "2020-01-01T00:00:00Z" }),
        json!({ "note": "x", "at": "2999-01-01T00:00:00Z" }),
        json!({ "note": "", "after_seconds": 5 }),
        json!({ "note": "x", "after_seconds": 0 }),
    ];
    let words = ["either", "either", "RFC 3339", "in the past", "days ahead", "/note", "/after_seconds"];
    let session = owner.play(json!([{ "tools": calls.map(scheduled_wake) }])).await;
    let log = owner.settled(&session, 1).await;
    let results = of(&log, "tool.result");
    assert_eq!(results.len(), words.len());
    for (result, words) in results.into_iter().zip(words) {
        let body = &result["body"];
        assert!(
            body["is_error"] == true && body["output"].as_str().is_some_and(|text| text.contains(words)),
            "{body}"
        );
    }
    assert!(of(&log, "wake.scheduled").is_empty());
    // The maximum number of wakes, and one more.
    let waits =
        (0..17).map(|at| scheduled_wake(json!({ "after_seconds": 3_600, "note": format!("wake {at}") })));
    let session = owner.play(json!([{ "tools": waits.collect::<Vec<_>>() }])).await;
    let log = owner.settled(&session, 1).await;
    assert_eq!(of(&log, "wake.scheduled").len(), 16);
    let refused: Vec<_> =
        of(&log, "tool.result").into_iter().filter(|result| result["body"]["is_error"] == true).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(ground.count(PENDING).await, 16);
    service.stop().await;
}

#[tokio::test]
async fn a_session_that_is_closed_or_deleted_is_not_woken() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let (archived, deleted, canceled) = (waiting(&owner).await, waiting(&owner).await, waiting(&owner).await);
    owner.post(&format!("/sessions/{canceled}/cancel"), json!({})).await.ok();
    assert_eq!(ground.count(PENDING).await, 3, "a cancellation ends the turn, and keeps the scheduled wakes");
    owner.post(&format!("/sessions/{archived}/archive"), json!({})).await.ok();
    owner.delete(&format!("/sessions/{deleted}")).await.ok();
    assert_eq!(ground.count("select count(*) from scheduled_wake").await, 1);
    ground.sql("update scheduled_wake set fire_at = now()").await;
    owner.settled(&canceled, 2).await;
    let log = owner.get(&format!("/sessions/{archived}/events")).await.ok();
    assert_eq!(of(log["data"].as_array().expect("a page"), "user.message").len(), 1);
    service.stop().await;
}

#[tokio::test]
async fn a_wake_fires_once_with_several_processes() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let (other, third) = (ground.serve(&["--role=api"]).await, ground.serve(&["--role=api"]).await);
    let owner = service.owner();
    let mut sessions = Vec::new();
    for _ in 0..8 {
        sessions.push(waiting(&owner).await);
    }
    ground.sql("update scheduled_wake set fire_at = now() - interval '1 minute'").await;
    for session in &sessions {
        let log = owner.settled(session, 2).await;
        assert_eq!(of(&log, "user.message").len(), 2);
    }
    // All were claimed, so no further one can follow.
    assert_eq!(ground.count(PENDING).await, 0);
    let messages = "select count(*) from event where type = 'user.message'";
    assert_eq!(ground.count(messages).await, 16);
    other.stop().await;
    third.stop().await;
    service.stop().await;
}

#[tokio::test]
async fn a_repeated_call_finds_its_scheduled_wake() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let owner = service.owner();
    let agent = owner.inline_agent().await;
    let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let session = made["session"]["id"].as_str().expect("an id").parse().expect("an id");
    let store = ground.store(1);
    let org = store.find_key(&owner.key).await.expect("the owner's key").expect("a key").org;
    let worker = Id::<sojourn::domain::SessionKind>::uuid(Origin::system().id());
    let fence = Fence { org, session, epoch: 0, worker, generation: store.generation() };
    let new_wake = |call_id, seconds| NewScheduledWake {
        call_id,
        when: When::After(Duration::from_secs(seconds)),
        note: "x",
        ahead_max: Duration::from_secs(100),
        pending_max: 1,
    };
    let first = store.set_scheduled_wake(fence, new_wake("one", 50)).await.expect("an answer");
    assert!(matches!(first, Set::At(_)));
    assert_eq!(store.set_scheduled_wake(fence, new_wake("one", 70)).await.expect("an answer"), first);
    assert_eq!(store.set_scheduled_wake(fence, new_wake("two", 50)).await.expect("an answer"), Set::Full);
    assert!(matches!(
        store.set_scheduled_wake(fence, new_wake("two", 200)).await.expect("an answer"),
        Set::TooFar(_)
    ));
    // After it fired, a late repetition does not set a second one.
    ground.sql("update scheduled_wake set fired_at = now()").await;
    assert_eq!(store.set_scheduled_wake(fence, new_wake("one", 50)).await.expect("an answer"), first);
    let stale = Fence { epoch: 7, ..fence };
    assert_eq!(store.set_scheduled_wake(stale, new_wake("three", 50)).await.expect("an answer"), Set::Stale);
    assert_eq!(ground.count(PENDING).await, 0);
    store.close().await;
    service.stop().await;
}
