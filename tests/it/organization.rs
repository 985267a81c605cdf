//! Webhooks of an organization: they receive events of every session, and no receiver delays another.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use sojourn::webhook::{Secret, sign};
use sqlx::{AssertSqlSafe, Connection};

use crate::{
    fake::receiver::{Received, Receiver, Reply},
    support::{
        gate::Gate,
        service::{Caller, Ground, Service},
        wait::wait_for,
    },
    turns,
};

/// A service that starts no turns, and its owner.
async fn still() -> (Ground, Service, Caller) {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let owner = service.owner();
    let agent = json!({ "name": "noop", "prompt": "", "model": "scripted/noop" });
    owner.post("/agents", agent).await.ok();
    (ground, service, owner)
}

async fn sql(ground: &Ground, statement: &str) {
    let mut superuser = ground.database.superuser().await;
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut superuser).await.expect(statement);
    superuser.close().await.expect("a clean end");
}

async fn webhook(owner: &Caller, more: Value) -> Value {
    owner.post("/webhooks", more).await.ok()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

async fn session(owner: &Caller, input: &str) -> String {
    let created = owner.post("/sessions", json!({ "agent": "noop", "input": input })).await.ok();
    text(&created["session"]["id"])
}

/// Signatures of a delivery, and those computed with the secrets.
#[track_caller]
fn signatures(received: &Received, secrets: &[&str]) -> (Vec<String>, Vec<String>) {
    let at = received.header("webhook-timestamp").parse().expect("seconds");
    let made = |secret: &&str| {
        let secret = Secret::parse(secret).expect("a secret");
        sign(&[secret], received.header("webhook-id"), at, &received.body)
    };
    let given = received.header("webhook-signature").split(' ').map(str::to_owned).collect();
    (given, secrets.iter().map(made).collect())
}

fn body(received: &Received) -> Value {
    serde_json::from_slice(&received.body).expect("JSON")
}

#[tokio::test]
async fn a_webhook_receives_events_of_every_session() {
    let mut receiver = Receiver::start([]).await;
    let (_ground, service, owner) = still().await;
    let before = session(&owner, "Nobody listens.").await;
    let made = webhook(&owner, json!({ "url": receiver.url().as_str() })).await;
    let path = format!("/webhooks/{}", text(&made["id"]));
    assert!(text(&made["id"]).starts_with("whk_"));
    let one = session(&owner, "First.").await;
    let other = session(&owner, "Second.").await;
    owner.post(&format!("/sessions/{before}/messages"), json!({ "text": "Third." })).await.ok();
    let mut heard = BTreeSet::new();
    for _ in 0..5 {
        let received = receiver.next().await;
        let (given, made_here) = signatures(&received, &[made["secret"].as_str().expect("shown once")]);
        assert_eq!(given, made_here);
        let body = body(&received);
        assert_eq!(body["eventId"], body["event"]["id"]);
        heard.insert((text(&body["sessionId"]), text(&body["type"])));
    }
    let expected = [
        (&one, "session.created"),
        (&one, "user.message"),
        (&other, "session.created"),
        (&other, "user.message"),
        (&before, "user.message"),
    ];
    assert_eq!(heard, expected.map(|(session, kind)| (session.clone(), kind.to_owned())).into());
    let all = |page: &Value| {
        let rows = page["data"].as_array().expect("a page");
        rows.len() == 5 && rows.iter().all(|row| row["status"] == "delivered")
    };
    let page = owner.until(&format!("{path}/deliveries"), all).await;
    let row = &page["data"][0];
    assert_eq!((&row["webhook"], row.get("destination")), (&made["id"], None));
    let pages = owner.get(&format!("{path}/deliveries?limit=3")).await.ok();
    let cursor = text(&pages["next_cursor"]);
    let rest = owner.get(&format!("{path}/deliveries?limit=3&cursor={cursor}")).await.ok();
    assert_eq!(rest["data"][1], page["data"][4], "newest first, to the end");
    let told = owner.get(&format!("{path}/deliveries/{}", text(&row["id"]))).await.ok();
    assert_eq!((&told["log"][0]["number"], &told["log"][0]["response_code"]), (&json!(1), &json!(200)));
    // They are not in a session's own list of deliveries.
    assert_eq!(owner.get(&format!("/sessions/{one}/deliveries")).await.ok()["data"], json!([]));
    service.stop().await;
}

#[tokio::test]
async fn a_replaced_secret_signs_beside_the_new_one_until_its_time_is_over() {
    let mut receiver = Receiver::start([]).await;
    let (ground, service, owner) = still().await;
    let made = webhook(&owner, json!({ "url": receiver.url().as_str(), "types": ["nothing.else"] })).await;
    let path = format!("/webhooks/{}", text(&made["id"]));
    let test = async || owner.post(&format!("{path}/test"), json!({})).await;
    assert_eq!(test().await.status, 202);
    let first = receiver.next().await;
    let payload = body(&first);
    assert_eq!((&payload["type"], &payload["sessionId"]), (&json!("webhook.test"), &Value::Null));
    assert_eq!(payload["event"]["body"], json!({ "webhook_id": made["id"] }));
    let old = text(&made["secret"]);
    let rotated = owner.post(&format!("{path}/rotate-secret"), json!({})).await.ok();
    let new = text(&rotated["secret"]);
    assert!(new != old && rotated["secret_before_until"].is_string());
    test().await.ok();
    let (given, both) = signatures(&receiver.next().await, &[&new, &old]);
    assert_eq!(given, both);
    sql(&ground, "update destination set secret_before_until = now()").await;
    test().await.ok();
    let (given, one) = signatures(&receiver.next().await, &[&new]);
    assert_eq!(given, one);
    assert!(owner.get(&path).await.ok().get("secret_before_until").is_none());
    // Without an overlap the old secret ends at once, and a secret chosen by the caller is not returned.
    let brought = json!({ "secret": "whsec_c29tZXRoaW5nIGVsc2U=", "overlap_seconds": 0 });
    let rotated = owner.post(&format!("{path}/rotate-secret"), brought).await.ok();
    assert!(rotated.get("secret").is_none() && rotated.get("secret_before_until").is_none());
    test().await.ok();
    let (given, one) = signatures(&receiver.next().await, &["whsec_c29tZXRoaW5nIGVsc2U="]);
    assert_eq!(given, one);
    owner.post(&format!("{path}/rotate-secret"), json!({ "overlap_seconds": 700_000 })).await.error(400);
    service.stop().await;
}

#[tokio::test]
async fn a_destination_of_a_session_rotates_its_secret_too() {
    let mut receiver = Receiver::start([]).await;
    let (_ground, service, owner) = still().await;
    let created = owner
        .post("/sessions", json!({ "agent": "noop", "destinations": [{ "url": receiver.url().as_str() }] }))
        .await
        .ok();
    let (session, old) = (text(&created["session"]["id"]), text(&created["destinations"][0]["secret"]));
    let path =
        format!("/sessions/{session}/destinations/{}/rotate-secret", text(&created["destinations"][0]["id"]));
    let request = || {
        let request = owner.request(reqwest::Method::POST, &path).header("idempotency-key", "once");
        crate::support::service::send(request)
    };
    let new = text(&request().await.ok()["secret"]);
    assert_eq!(text(&request().await.ok()["secret"]), new, "a repeat rotates nothing");
    owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "Hello." })).await.ok();
    let (given, both) = signatures(&receiver.next().await, &[&new, &old]);
    assert_eq!(given, both);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_is_created_while_a_turn_appends_gets_every_event_after_it() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let id = owner.play(json!([turns::run("sleep 2"), { "text": "Done." }])).await;
    turns::until(&owner, &id, "sandbox.created").await;
    let trigger = "create trigger block after insert on destination for each row execute function block();";
    let gate = Gate::close(&ground, trigger).await;
    let (asked, path) = (owner.clone(), format!("/sessions/{id}/destinations"));
    let wanted = json!({ "url": "http://127.0.0.1:9/hook", "level": "internal" });
    let made = tokio::spawn(async move { asked.post(&path, wanted).await.ok() });
    gate.is_reached().await;
    let appends = "select count(*) from pg_stat_activity
                   where wait_event_type = 'Lock' and wait_event <> 'advisory' and datname = current_database()";
    wait_for("an append waits for the session", async || (ground.count(appends).await > 0).then_some(()))
        .await;
    gate.open().await;
    made.await.expect("it is created");
    owner.settled(&id, 1).await;
    let after = "select count(*) from event e join destination d using (org_id, session_id) where e.seq > created_after_seq";
    let delivered = "and exists (select from delivery v where v.destination_id = d.destination_id and v.event_seq = e.seq)";
    let events = ground.count(after).await;
    assert!(events > 0);
    assert_eq!(ground.count(&format!("{after} {delivered}")).await, events);
    service.stop().await;
}

#[tokio::test]
async fn a_webhook_that_fails_for_days_is_disabled_and_others_are_notified() {
    let failing = Receiver::start(vec![Reply::Status(500); 100]).await;
    let mut other = Receiver::start([]).await;
    let (ground, service, owner) = still().await;
    let bad = webhook(&owner, json!({ "url": failing.url().as_str(), "types": ["user.message"] })).await;
    webhook(&owner, json!({ "url": other.url().as_str(), "types": ["webhook.*"] })).await;
    let path = format!("/webhooks/{}", text(&bad["id"]));
    let session = session(&owner, "One.").await;
    let now = owner.until(&path, |now| now["failing_since"].is_string()).await;
    assert_eq!(now["enabled"], true);
    sql(
        &ground,
        "update destination set failing_since = now() - interval '4 days' where failing_since is not null",
    )
    .await;
    owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "Two." })).await.ok();
    let tried = |page: &Value| page["data"][0]["attempts"] == 1 && page["data"][0]["status"] == "failed";
    owner.until(&format!("{path}/deliveries"), tried).await;
    assert_eq!(owner.get(&path).await.ok()["enabled"], true, "four days are not enough");
    sql(
        &ground,
        "update destination set failing_since = now() - interval '6 days' where failing_since is not null",
    )
    .await;
    owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "Three." })).await.ok();
    let notice = body(&other.next().await);
    assert_eq!(notice["type"], "webhook.disabled");
    assert_eq!(notice["event"]["body"], json!({ "webhook_id": bad["id"], "reason": "failing" }));
    let now = owner.get(&path).await.ok();
    assert_eq!((&now["enabled"], &now["disabled_reason"]), (&json!(false), &json!("failing")));
    let error = owner.post(&format!("{path}/test"), json!({})).await.error(409);
    assert_eq!(error["code"], "webhook_disabled");
    let now = owner.patch(&path, json!({ "enabled": true })).await.ok();
    assert!(now.get("disabled_reason").is_none() && now.get("failing_since").is_none(), "{now}");
    service.stop().await;
}

#[tokio::test]
async fn a_receiver_that_never_answers_delays_nobody_else() {
    let slow = Receiver::start(vec![Reply::Hang; 200]).await;
    let mut fast = Receiver::start([]).await;
    let (_ground, service, owner) = still().await;
    let only = |receiver: &Receiver| json!({ "url": receiver.url().as_str(), "types": ["user.message"] });
    webhook(&owner, only(&slow)).await;
    let session = session(&owner, "Stuck.").await;
    for _ in 0..60 {
        owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "Stuck." })).await.ok();
    }
    webhook(&owner, only(&fast)).await;
    for _ in 0..60 {
        owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "Quick." })).await.ok();
    }
    let heard = async {
        for _ in 0..60 {
            assert_eq!(body(&fast.next().await)["event"]["body"]["text"], "Quick.");
        }
    };
    // Less time than one delivery to the hanging receiver takes.
    tokio::time::timeout(Duration::from_secs(12), heard).await.expect("the other receiver delays nothing");
    assert!(
        slow.connections() <= 8,
        "concurrent connections of a receiver are bounded: {}",
        slow.connections()
    );
    service.stop().await;
}
