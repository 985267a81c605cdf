//! API keys and the organization: who may call, for how long, and what is audited.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{World, data, id, noop};
use crate::support::service::{Answer, Caller};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

async fn make(owner: &Caller, scopes: &[&str]) -> Value {
    owner.post("/keys", json!({ "name": "made", "scopes": scopes })).await.ok()
}

/// Polls until the status is as wanted, within the documented five seconds.
async fn within_five_seconds(caller: &Caller, path: &str, status: u16) -> Answer {
    let begun = Instant::now();
    loop {
        let answer = caller.get(path).await;
        if answer.status == status {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "still {}", answer.status);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn whatever_an_operation_needs_a_key_can_be_given() {
    let world = World::still().await;
    let document: Value = serde_json::to_value(sojourn::http::description()).expect("JSON");
    let operations = document["paths"].as_object().expect("paths").values();
    let operations = operations.flat_map(|path| path.as_object().expect("operations").values());
    let needed: BTreeSet<String> = operations
        .flat_map(|operation| operation["security"].as_array().cloned().unwrap_or_default())
        .flat_map(|way| way["bearer"].as_array().cloned().unwrap_or_default())
        .map(|scope| text(&scope))
        .collect();
    assert!(needed.contains("environments:read") && needed.contains("usage:write"), "{needed:?}");
    for scope in &needed {
        assert_eq!(make(&world.owner, &[scope]).await["scopes"], json!([scope]));
    }
    world.owner.post("/keys", json!({ "name": "x", "scopes": ["usages:read"] })).await.error(400);
    world.end().await;
}

#[tokio::test]
async fn a_key_is_shown_once_and_opens_what_its_scopes_say() {
    let world = World::still().await;
    let owner = &world.owner;
    let made = make(owner, &["sessions:read", "agents:*"]).await;
    let secret = text(&made["key"]);
    assert!(secret.ends_with(&text(&made["hint"])) && made.get("last_used_at").is_none());
    let caller = world.service.caller(&secret);
    caller.get("/sessions").await.ok();
    caller.post("/agents", noop("a")).await.ok();
    caller.post("/sessions", json!({})).await.error(403);
    caller.get("/keys").await.error(403);
    let one = owner.get(&format!("/keys/{}", id(&made))).await.ok();
    assert!(one.get("key").is_none() && one["last_used_at"].is_string(), "{one}");
    let list = owner.get("/keys").await.ok();
    assert!(!list.to_string().contains(&secret) && data(&list).len() == 3);
    for (scopes, part) in [
        (json!(["sessions:fly"]), "unknown scope"),
        (json!(["s*"]), "unknown scope"),
        (json!([":*"]), "unknown scope"),
        (json!([]), "length"),
    ] {
        let error = owner.post("/keys", json!({ "name": "x", "scopes": scopes })).await.error(400);
        assert!(text(&error["message"]).contains(part), "{error}");
    }
    let past = json!({ "name": "x", "scopes": ["*"], "expires_at": "2020-01-01T00:00:00Z" });
    assert_eq!(owner.post("/keys", past).await.error(400)["param"], "expires_at");
    world.end().await;
}

#[tokio::test]
async fn a_key_cannot_make_a_stronger_one() {
    let world = World::still().await;
    let weak = world.key(&["keys:*", "sessions:read"], None).await;
    for scopes in [&["*"][..], &["sessions:*"], &["sessions:read", "agents:read"]] {
        weak.post("/keys", json!({ "name": "x", "scopes": scopes })).await.error(403);
    }
    let made = make(&weak, &["sessions:read"]).await;
    world.service.caller(&text(&made["key"])).get("/sessions").await.ok();
    // Nor by rotating a key with more scopes.
    let strong = make(&world.owner, &["*"]).await;
    weak.post(&format!("/keys/{}/rotate", id(&strong)), json!({})).await.error(403);
    world.end().await;
}

#[tokio::test]
async fn a_rotated_key_goes_on_until_the_overlap_is_over() {
    let world = World::still().await;
    let owner = &world.owner;
    let old = make(owner, &["sessions:read"]).await;
    let path = format!("/keys/{}", id(&old));
    let new = owner.post(&format!("{path}/rotate"), json!({ "overlap_seconds": 3600 })).await.ok();
    assert_eq!((&new["name"], &new["scopes"]), (&old["name"], &old["scopes"]));
    let (before, after) =
        (world.service.caller(&text(&old["key"])), world.service.caller(&text(&new["key"])));
    before.get("/sessions").await.ok();
    after.get("/sessions").await.ok();
    assert!(owner.get(&path).await.ok()["expires_at"].is_string());
    owner.post(&format!("{path}/rotate"), json!({ "overlap_seconds": 0 })).await.ok();
    within_five_seconds(&before, "/sessions", 401).await;
    let error = owner.post(&format!("{path}/rotate"), json!({})).await.error(409);
    assert_eq!(error["code"], "key_ended");
    world.end().await;
}

#[tokio::test]
async fn a_revoked_key_ends_on_every_process_within_five_seconds() {
    let world = World::still().await;
    let other = world.ground.serve(&["--role=api"]).await;
    let made = make(&world.owner, &["sessions:read"]).await;
    let (here, there) = (world.service.caller(&text(&made["key"])), other.caller(&text(&made["key"])));
    here.get("/sessions").await.ok();
    there.get("/sessions").await.ok();
    assert_eq!(world.owner.delete(&format!("/keys/{}", id(&made))).await.status, 204);
    here.get("/sessions").await.error(401);
    within_five_seconds(&there, "/sessions", 401).await;
    assert!(world.owner.get(&format!("/keys/{}", id(&made))).await.ok()["revoked_at"].is_string());
    assert_eq!(
        world.owner.delete(&format!("/keys/{}", id(&made))).await.status,
        204,
        "once more changes nothing"
    );
    other.stop().await;
    world.end().await;
}

#[tokio::test]
async fn actions_are_audited_and_exported() {
    let world = World::still().await;
    let owner = &world.owner;
    let key = make(owner, &["sessions:read"]).await;
    owner.delete(&format!("/keys/{}", id(&key))).await;
    let changed =
        owner.patch("/organization", json!({ "name": "New name", "retention_days": 30 })).await.ok();
    assert_eq!((&changed["name"], &changed["retention_days"]), (&json!("New name"), &json!(30)));
    assert_eq!(
        owner.patch("/organization", json!({ "retention_days": null })).await.ok()["retention_days"],
        Value::Null
    );
    owner.patch("/organization", json!({ "retention_days": 0 })).await.error(400);
    let trigger = owner.post("/webhooks", json!({ "url": "http://127.0.0.1:9/hook" })).await.ok();
    let all = owner.get("/audit").await.ok();
    let actions: Vec<_> = data(&all).iter().map(|row| text(&row["action"])).collect();
    let newest_first = [
        "webhook.created",
        "organization.updated",
        "organization.updated",
        "key.revoked",
        "key.created",
        // Made by the operator: the key of the test, the first key, the organization.
        "key.created",
        "key.created",
        "organization.created",
    ];
    assert_eq!(actions, newest_first);
    assert!(
        !all.to_string().contains(&text(&key["key"])) && !all.to_string().contains(&text(&trigger["secret"]))
    );
    let actor = &data(&all)[0]["actor"];
    assert!(actor["id"].as_str().is_some_and(|id| id.starts_with("key_")), "{actor}");
    let of_keys = owner.get(&format!("/audit?action=key.*&target={}", id(&key))).await.ok();
    assert_eq!(data(&of_keys).len(), 2);
    let page = owner.get("/audit?limit=2").await.ok();
    let rest = owner.get(&format!("/audit?limit=500&cursor={}", text(&page["next_cursor"]))).await.ok();
    assert_eq!(data(&rest)[..], data(&all)[2..]);
    assert!(data(&owner.get("/audit?before=2020-01-01T00:00:00Z").await.ok()).is_empty());
    owner.get("/audit?after=yesterday").await.error(400);
    let export = owner.get("/audit/export").await;
    assert_eq!(export.headers["content-type"], "application/x-ndjson");
    assert_eq!(export.headers["content-disposition"], "attachment; filename=\"audit.ndjson\"");
    assert_eq!(export.headers["x-content-type-options"], "nosniff");
    assert_eq!(export.headers["content-security-policy"], "sandbox");
    let lines: Vec<Value> =
        text(&export.ok()).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(&lines, data(&all));
    // The other organization sees its own creation only.
    assert_eq!(data(&world.stranger.get("/audit").await.ok()).len(), 2);
    world.end().await;
}
