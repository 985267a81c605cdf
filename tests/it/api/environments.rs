//! Environments: configuration of sandboxes. Secret values are stored encrypted and never returned.

use serde_json::{Value, json};

use super::{World, data, id};

const VALUE: &str = "a-very-secret-value";

fn environment(name: &str) -> Value {
    json!({
        "name": name,
        "config": {
            "cpus": 0.5, "memory": "512Mi", "pids": 64, "env": { "MODE": "test" },
            "network": { "allow": [{ "host": "api.example", "methods": ["GET"], "path_prefix": "/v1" }] },
        },
        "secrets": [{ "name": "TOKEN", "value": VALUE, "hosts": ["api.example"] }],
    })
}

#[tokio::test]
async fn a_session_pins_the_environment_that_it_names() {
    let world = World::still().await;
    let owner = &world.owner;
    let created = owner.post("/environments", environment("small")).await;
    assert_eq!(created.status, 201);
    let path = format!("/environments/{}", id(&created.body));
    let sessions = [json!({ "environment": "small" }), json!({ "environment": id(&created.body) })];
    let mut placeholders = Vec::new();
    for session in sessions {
        let pinned = owner.post("/sessions", session).await.ok()["session"]["environment"].clone();
        assert_eq!(pinned["environment_id"], created.body["id"]);
        assert_eq!(pinned["config"]["memory"], "512Mi");
        assert_eq!(pinned["secrets"][0]["hosts"], json!(["api.example"]));
        assert_eq!(pinned["secrets"][0]["headers"], json!(["authorization"]));
        placeholders.push(pinned["secrets"][0]["placeholder"].as_str().expect("text").to_owned());
    }
    assert_ne!(placeholders[0], placeholders[1], "each session has its own placeholder");
    owner.patch(&path, json!({ "config": { "memory": "1Gi" }, "secrets": [] })).await.ok();
    let session = owner.get("/sessions").await.ok()["data"][0].clone();
    assert_eq!(session["environment"]["config"]["memory"], "512Mi", "the pinned environment stays");
    let inline = owner.post("/sessions", json!({ "environment": { "cpus": 1.5 } })).await.ok();
    assert_eq!(
        inline["session"]["environment"],
        json!({ "environment_id": null, "name": null, "config": { "cpus": 1.5 } })
    );
    let plain = owner.post("/sessions", json!({})).await.ok();
    assert!(plain["session"].get("environment").is_none());
    world.end().await;
}

#[tokio::test]
async fn what_no_sandbox_can_be_is_refused_by_name() {
    let world = World::still().await;
    let owner = &world.owner;
    let mut bodies = vec![];
    for config in [
        json!({ "cpus": 64 }),
        json!({ "memory": "2 GB" }),
        json!({ "disk": "1G" }),
        json!({ "env": { "A=B": "" } }),
        json!({ "network": { "allow": [{ "host": "169.254.169.254" }] } }),
        json!({ "network": { "allow": [{ "host": "*" }] } }),
        json!({ "network": { "allow": [{ "host": "a.example", "methods": ["get"] }] } }),
        json!({ "network": { "allow": [{ "host": "a.example", "path_prefix": "/../x" }] } }),
    ] {
        bodies.push(("/sessions", json!({ "environment": config.clone() })));
        bodies.push(("/environments", json!({ "name": "x", "config": config })));
    }
    let allowed = json!({ "network": { "allow": [{ "host": "api.example" }] } });
    for secret in [
        json!({ "name": "TOKEN", "value": "short", "hosts": ["api.example"] }),
        json!({ "name": "TOKEN", "value": VALUE, "hosts": ["other.example"] }),
        json!({ "name": "TOKEN", "value": VALUE, "hosts": [] }),
        json!({ "name": "TOKEN", "hosts": ["api.example"] }),
        json!({ "name": "TOKEN", "value": VALUE, "hosts": ["api.example"], "headers": [] }),
        json!({ "name": "TOKEN", "value": VALUE, "hosts": ["api.example"], "headers": ["Host"] }),
        json!({ "name": "TOKEN", "value": VALUE, "hosts": ["api.example"], "query_parameters": ["a=b"] }),
        json!({ "name": "A-B", "value": VALUE, "hosts": ["api.example"] }),
    ] {
        bodies.push(("/environments", json!({ "name": "x", "config": allowed, "secrets": [secret] })));
    }
    bodies.push(("/sessions", json!({ "environment": { "secrets": [] } })));
    bodies.push(("/sessions", json!({ "environment": 7 })));
    for (path, body) in bodies {
        let answer = owner.post(path, body.clone()).await;
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.body);
    }
    assert_eq!(owner.post("/sessions", json!({ "environment": "nobody's" })).await.status, 404);
    assert_eq!(data(&owner.get("/environments").await.ok()).len(), 0);
    world.end().await;
}

#[tokio::test]
async fn a_name_is_taken_until_its_environment_is_deleted() {
    let world = World::still().await;
    let owner = &world.owner;
    let first = owner.post("/environments", environment("one")).await.ok();
    let second = owner.post("/environments", environment("two")).await.ok();
    let again = owner.post("/environments", environment("one")).await;
    assert_eq!((again.status.as_u16(), &again.body["error"]["code"]), (409, &json!("name_taken")));
    let second = format!("/environments/{}", id(&second));
    assert_eq!(owner.patch(&second, json!({ "name": "one" })).await.status, 409);
    let first = format!("/environments/{}", id(&first));
    assert_eq!(owner.delete(&first).await.status, 204);
    assert_eq!(owner.delete(&first).await.status, 404);
    assert_eq!(owner.get(&first).await.status, 404);
    owner.patch(&second, json!({ "name": "one" })).await.ok();
    world.end().await;
}

#[tokio::test]
async fn a_secret_never_comes_out_and_lies_sealed() {
    let world = World::still().await;
    let owner = &world.owner;
    let created = owner.post("/environments", environment("one")).await;
    let path = format!("/environments/{}", id(&created.body));
    let keep = json!({ "secrets": [{ "name": "TOKEN", "hosts": ["api.example"] }] });
    let unknown = json!({ "secrets": [{ "name": "OTHER", "hosts": ["api.example"] }] });
    assert_eq!(owner.patch(&path, unknown).await.status, 400, "only a stored secret keeps its value");
    // Who does not know a value has it sent nowhere else.
    for more in [
        json!({ "hosts": ["*.example"] }),
        json!({ "headers": ["x-shown"] }),
        json!({ "query_parameters": ["q"] }),
    ] {
        let mut secret = keep["secrets"][0].clone();
        secret.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let error = owner.patch(&path, json!({ "secrets": [secret.clone()] })).await.error(400);
        assert_eq!(error["param"], "secrets[0].value", "{secret}");
    }
    let session = owner.post("/sessions", json!({ "environment": "one" })).await;
    let log = format!("/sessions/{}/events", id(&session.body["session"]));
    let answers = [
        created,
        session,
        owner.patch(&path, keep).await,
        owner.get(&path).await,
        owner.get("/environments").await,
        owner.get(&log).await,
    ];
    for answer in answers {
        assert!(!answer.ok().to_string().contains(VALUE));
    }
    let mut superuser = world.ground.database.superuser().await;
    let row: String = sqlx::query_scalar("select t::text from environment t")
        .fetch_one(&mut superuser)
        .await
        .expect("a row");
    assert!(!row.contains(VALUE) && !row.contains(&sojourn::base::text::hex(VALUE.as_bytes())));
    drop(superuser);
    world.end().await;
}
