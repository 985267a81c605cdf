//! Destinations and deliveries over the API.

use serde_json::{Value, json};

use super::{World, data, id, noop};
use crate::fake::receiver::{Receiver, Reply};

#[tokio::test]
async fn a_secret_is_shown_once() {
    let world = World::still().await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    let path = format!("/sessions/{session}/destinations");
    let made = owner.post(&path, json!({ "url": "http://127.0.0.1:9/a" })).await;
    assert_eq!(made.status, 201);
    let secret = made.body["secret"].as_str().expect("a secret that was made").to_owned();
    assert!(secret.starts_with("whsec_"));
    let brought =
        owner.post(&path, json!({ "url": "http://127.0.0.1:9/b", "secret": "brought by us" })).await.ok();
    assert_eq!(brought.get("secret"), None, "the caller knows it");
    let list = owner.get(&path).await.ok();
    assert_eq!(
        data(&list).iter().map(id).collect::<Vec<_>>(),
        [id(&brought), id(&made.body)],
        "newest first"
    );
    let one = owner.get(&format!("{path}/{}", id(&made.body))).await.ok();
    assert!(!list.to_string().contains(&secret) && one.get("secret").is_none() && one["has_secret"] == true);
    let log = owner.get(&format!("/sessions/{session}/events")).await.ok();
    assert!(!log.to_string().contains(&secret));
    let mut superuser = world.ground.database.superuser().await;
    let rows: String = sqlx::query_scalar("select string_agg(d::text, ' ') from destination d")
        .fetch_one(&mut superuser)
        .await
        .expect("rows");
    assert!(!rows.contains(&secret) && !rows.contains("brought by us"), "sealed at rest");
    drop(superuser);
    world.end().await;
}

#[tokio::test]
async fn a_key_that_does_not_read_sessions_sends_their_events_nowhere() {
    let world = World::still().await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    let path = format!("/sessions/{session}/destinations");
    let made = id(&owner.post(&path, json!({ "url": "http://127.0.0.1:9/a" })).await.ok());
    let key = owner.post("/keys", json!({ "name": "w", "scopes": ["sessions:write"] })).await.ok();
    let writer = world.service.caller(key["key"].as_str().expect("a key"));
    writer.post(&path, json!({ "url": "http://127.0.0.1:9/b" })).await.error(403);
    for change in [
        json!({ "url": "http://127.0.0.1:9/b" }),
        json!({ "level": "internal" }),
        json!({ "include_raw": true }),
    ] {
        writer.patch(&format!("{path}/{made}"), change).await.error(403);
    }
    writer.patch(&format!("{path}/{made}"), json!({ "enabled": false })).await.ok();
    let again = json!({ "key": "k" });
    owner.post("/sessions", again.clone()).await.ok();
    let token =
        writer.post("/sessions", again).await.ok()["client_token"].as_str().expect("a token").to_owned();
    let path = format!(
        "/sessions/{}/events",
        id(&writer.post("/sessions", json!({ "key": "k" })).await.ok()["session"])
    );
    world.service.caller(&token).get(&path).await.error(403);
    world.end().await;
}

#[tokio::test]
async fn a_destination_is_changed_and_removed() {
    let world = World::still().await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    let path = format!("/sessions/{session}/destinations");
    let made = owner.post(&path, json!({ "url": "http://127.0.0.1:9/a", "types": ["turn.*"] })).await.ok();
    assert_eq!(
        (&made["level"], &made["enabled"], &made["created_after_seq"]),
        (&json!("user"), &json!(true), &json!(1))
    );
    let one = format!("{path}/{}", id(&made));
    let changed =
        owner.patch(&one, json!({ "types": null, "level": "internal", "enabled": false })).await.ok();
    assert_eq!(
        (&changed["types"], &changed["level"], &changed["enabled"]),
        (&json!(null), &json!("internal"), &json!(false))
    );
    assert_eq!(changed["url"], made["url"]);
    assert_eq!(owner.get(&one).await.ok(), changed);
    assert_eq!(owner.delete(&one).await.status, 204);
    for answer in [owner.get(&one).await, owner.delete(&one).await, owner.patch(&one, json!({})).await] {
        answer.error(404);
    }
    assert!(data(&owner.get(&path).await.ok()).is_empty());
    for n in 0..16 {
        owner.post(&path, json!({ "url": format!("http://127.0.0.1:9/{n}") })).await.ok();
    }
    let error = owner.post(&path, json!({ "url": "http://127.0.0.1:9/17" })).await.error(409);
    assert_eq!(error["code"], "too_many_destinations");
    let many: Vec<Value> = (0..16).map(|n| json!({ "url": format!("http://127.0.0.1:9/{n}") })).collect();
    let body = json!({ "webhook": "http://127.0.0.1:9/short", "destinations": many });
    assert_eq!(owner.post("/sessions", body).await.error(400)["param"], "destinations");
    world.end().await;
}

#[tokio::test]
async fn an_address_that_must_not_be_called_is_refused() {
    let world = World::with(&["--role=api", "--allow-private-webhooks=off"]).await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    for url in [
        "http://receiver.example/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://10.1.2.3/",
        "https://169.254.169.254/latest/meta-data",
        "https://2130706433/",
        "https://user:password@receiver.example/",
        "ftp://receiver.example/",
        "no url",
    ] {
        let body = json!({ "url": url });
        let error = owner.post(&format!("/sessions/{session}/destinations"), body.clone()).await.error(400);
        assert_eq!(error["param"], "url", "{url}: {error}");
        owner.post("/sessions", json!({ "webhook": url })).await.error(400);
        owner.post("/sessions", json!({ "destinations": [body] })).await.error(400);
    }
    owner
        .post(&format!("/sessions/{session}/destinations"), json!({ "url": "https://receiver.example/" }))
        .await
        .ok();
    assert_eq!(data(&owner.get("/sessions").await.ok()).len(), 1, "a rejected request creates nothing");
    world.end().await;
}

#[tokio::test]
async fn deliveries_of_an_event_are_listed_and_can_be_redelivered() {
    let world = World::still().await;
    let owner = &world.owner;
    let mut receiver = Receiver::start([Reply::Status(500)]).await;
    owner.post("/agents", noop("a")).await.ok();
    let body = json!({ "agent": "a", "input": "hello", "webhook": receiver.url().as_str() });
    let created = owner.post("/sessions", body).await.ok();
    assert!(created["destinations"][0]["secret"].is_string(), "shown once, here");
    let path = format!("/sessions/{}/deliveries", id(&created));
    let first = receiver.next().await;
    let list = owner.get(&path).await.ok();
    let delivery = data(&list)[0].clone();
    assert_eq!((data(&list).len(), &delivery["event_seq"]), (1, &json!(2)));
    // The dispatcher stores the result a moment after the receiver responded.
    let failed = loop {
        let now = owner.get(&format!("{path}/{}", id(&delivery))).await.ok();
        if now["status"] == "failed" {
            break now;
        }
        assert_eq!(now["status"], "delivering");
    };
    assert_eq!((&failed["response_code"], &failed["attempts"]), (&json!(500), &json!(1)));
    assert_eq!(data(&owner.get(&format!("{path}?status=failed")).await.ok()).len(), 1);
    assert!(data(&owner.get(&format!("{path}?status=delivered")).await.ok()).is_empty());
    owner.get(&format!("{path}?status=lost")).await.error(400);
    let again = owner.post(&format!("{path}/{}/redeliver", id(&delivery)), json!({})).await;
    assert_eq!(again.status, 202);
    let second = receiver.next().await;
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"), "the same event");
    let destination = format!("/sessions/{}/destinations/{}", id(&created), id(&created["destinations"][0]));
    owner.delete(&destination).await;
    let error = owner.post(&format!("{path}/{}/redeliver", id(&delivery)), json!({})).await.error(409);
    assert_eq!(error["code"], "destination_deleted");
    world.end().await;
    receiver.stop().await;
}
