//! Agents: idempotent by name, changed in revisions.

use futures::future::join_all;
use serde_json::{Value, json};

use super::{World, data, id, noop};

#[tokio::test]
async fn an_agent_is_created_once_by_its_name() {
    let world = World::still().await;
    let owner = &world.owner;
    let created = owner.post("/agents", noop("a")).await;
    assert_eq!(created.status, 201);
    assert_eq!(created.body["revision"], 1);
    assert_eq!(created.body["runtime"], "builtin");
    let again = owner.post("/agents", noop("a")).await;
    assert_eq!(again.status, 200);
    assert_eq!(again.body["id"], created.body["id"]);
    let other = json!({ "name": "a", "prompt": "Do something.", "model": "scripted/noop" });
    let error = owner.post("/agents", other).await.error(409);
    assert_eq!((&error["code"], &error["param"]), (&json!("name_taken"), &json!("name")));
    // Names are unique per organization only.
    assert_eq!(world.stranger.post("/agents", noop("a")).await.status, 201);
    world.end().await;
}

#[tokio::test]
async fn equal_agents_created_at_once_are_one() {
    let world = World::still().await;
    let wanted =
        json!({ "name": "a", "prompt": "x", "model": "anthropic/claude-sonnet-4-5", "key": "sk-secret" });
    let answers = join_all((0..20).map(|_| world.owner.post("/agents", wanted.clone()))).await;
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    let found = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!((created, found), (1, 19), "{answers:#?}");
    assert!(answers.iter().all(|answer| answer.body["id"] == answers[0].body["id"]));
    assert_eq!(data(&world.owner.get("/credentials").await.ok()).len(), 1, "one key was stored once");
    world.end().await;
}

#[tokio::test]
async fn an_agent_has_an_environment_for_sessions_that_name_none() {
    let world = World::still().await;
    let owner = &world.owner;
    for (name, memory) in [("small", "512Mi"), ("large", "4Gi")] {
        owner.post("/environments", json!({ "name": name, "config": { "memory": memory } })).await.ok();
    }
    let with = |environment: Value| {
        let mut agent = noop("a");
        agent["environment"] = environment;
        agent
    };
    owner.post("/agents", with(json!("nobody's"))).await.error(404);
    owner.post("/agents", with(json!({ "image": "nobody's" }))).await.error(400);
    let made = owner.post("/agents", with(json!("small"))).await;
    assert_eq!((made.status.as_u16(), &made.body["environment"]), (201, &json!("small")));
    assert_eq!(owner.post("/agents", with(json!("small"))).await.status, 200);
    owner.post("/agents", with(json!("large"))).await.error(409);
    let path = format!("/agents/{}", id(&made.body));
    let pinned =
        async |body: Value| owner.post("/sessions", body).await.ok()["session"]["environment"].clone();
    assert_eq!(pinned(json!({ "agent": "a" })).await["name"], "small");
    assert_eq!(pinned(json!({ "agent": "a", "environment": "large" })).await["name"], "large");
    assert_eq!(pinned(json!({ "agent": "a", "environment": {} })).await["config"], json!({}));

    // It is part of the revision, and a schedule's sessions have it, too.
    let inline = json!({ "cpus": 1.5 });
    let changed = owner.patch(&path, json!({ "environment": inline })).await.ok();
    assert_eq!((&changed["revision"], &changed["environment"]), (&json!(2), &inline));
    assert_eq!(pinned(json!({ "agent": "a" })).await["config"], inline);
    assert_eq!(pinned(json!({ "agent": "a", "revision": 1 })).await["name"], "small");
    let schedule = json!({ "cron": "0 0 1 1 *", "input": "x" });
    let schedule = id(&owner.post(&format!("{path}/schedules"), schedule).await.ok());
    let run = owner.post(&format!("{path}/schedules/{schedule}/fire"), json!({})).await.ok();
    let session = owner.get(&format!("/sessions/{}", run["session_id"].as_str().expect("an id"))).await.ok();
    assert_eq!(session["environment"]["config"], inline);
    owner.patch(&path, json!({ "environment": "nobody's" })).await.error(404);
    let without = owner.patch(&path, json!({ "environment": null })).await.ok();
    assert_eq!((&without["revision"], without.get("environment")), (&json!(3), None));
    assert_eq!(pinned(json!({ "agent": "a" })).await, Value::Null);
    owner.post(&format!("{path}/revisions/1/activate"), json!({})).await.ok();
    assert_eq!(pinned(json!({ "agent": "a" })).await["name"], "small");
    world.end().await;
}

#[tokio::test]
async fn a_change_of_configuration_makes_a_revision() {
    let world = World::still().await;
    let owner = &world.owner;
    let agent = id(&owner.post("/agents", noop("a")).await.ok());
    let path = format!("/agents/{agent}");
    let same = owner.patch(&path, json!({ "prompt": "Do nothing." })).await.ok();
    assert_eq!(same["revision"], 1, "nothing changed");
    let changed = owner.patch(&path, json!({ "prompt": "Do little.", "tools": ["read"] })).await.ok();
    assert_eq!((&changed["revision"], &changed["tools"]), (&json!(2), &json!(["read"])));
    // Limits belong to the agent, not to a revision.
    let limited = owner.patch(&path, json!({ "limits": { "tokens": 5 } })).await.ok();
    assert_eq!((&limited["revision"], &limited["limits"]), (&json!(2), &json!({ "tokens": 5 })));
    assert_eq!(owner.patch(&path, json!({ "tools": null })).await.ok()["tools"], json!(null));
    let revisions = owner.get(&format!("{path}/revisions")).await.ok();
    let numbers: Vec<_> =
        data(&revisions).iter().map(|row| (row["number"].clone(), row["active"].clone())).collect();
    assert_eq!(numbers, [(json!(3), json!(true)), (json!(2), json!(false)), (json!(1), json!(false))]);
    let first = data(&revisions)[2]["id"].as_str().expect("an id").to_owned();
    for revision in ["2", first.as_str()] {
        let active = owner.post(&format!("{path}/revisions/{revision}/activate"), json!({})).await.ok();
        let number = active["revision"].to_string();
        assert!(active["active_revision"]["id"] == revision || number == revision, "{active}");
    }
    owner.post(&format!("{path}/revisions/9/activate"), json!({})).await.error(404);
    // A change after activating an older revision gets the next number, not a used one.
    assert_eq!(owner.patch(&path, json!({ "prompt": "More." })).await.ok()["revision"], 4);
    world.end().await;
}

#[tokio::test]
async fn revision_numbers_have_no_gap_when_changes_meet() {
    let world = World::still().await;
    let owner = &world.owner;
    let path = format!("/agents/{}", id(&owner.post("/agents", noop("a")).await.ok()));
    let changes = (0..10).map(|n| owner.patch(&path, json!({ "prompt": format!("{n}") })));
    assert!(join_all(changes).await.iter().all(|answer| answer.status == 200));
    let revisions = owner.get(&format!("{path}/revisions")).await.ok();
    let numbers: Vec<_> =
        data(&revisions).iter().map(|row| row["number"].as_i64().expect("a number")).collect();
    assert_eq!(numbers, (1..=11).rev().collect::<Vec<_>>());
    world.end().await;
}

#[tokio::test]
async fn a_deleted_agents_name_is_free_and_its_sessions_go_on() {
    let world = World::still().await;
    let owner = &world.owner;
    let agent = id(&owner.post("/agents", noop("a")).await.ok());
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    let bare = id(&owner.post("/sessions", json!({})).await.ok());
    owner.patch(&format!("/agents/{agent}"), json!({ "prompt": "Another." })).await.ok();
    let deleted = owner.delete(&format!("/agents/{agent}")).await;
    assert_eq!((deleted.status.as_u16(), &deleted.body), (204, &json!(null)));
    owner.get(&format!("/agents/{agent}")).await.error(404);
    owner.delete(&format!("/agents/{agent}")).await.error(404);
    owner.patch(&format!("/agents/{agent}"), json!({})).await.error(404);
    owner.post("/sessions", json!({ "agent": "a" })).await.error(404);
    let next = owner.post("/agents", noop("a")).await;
    assert_eq!(next.status, 201);
    assert_ne!(next.body["id"], agent.as_str());
    let steered =
        owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "still there?" })).await;
    assert_eq!(steered.status, 202);
    let snapshot = owner.get(&format!("/sessions/{session}")).await.ok()["agent_snapshot"].clone();
    let mut pinned = owner.get(&format!("/sessions/{session}/agent")).await.ok();
    assert_eq!((&pinned["prompt"], &pinned["agent_id"]), (&json!("Do nothing."), &json!(agent)));
    // Apart from these two it is the snapshot.
    for field in ["prompt", "agent_id"] {
        pinned.as_object_mut().expect("an object").remove(field);
    }
    assert_eq!(pinned, snapshot);
    owner.get(&format!("/sessions/{bare}/agent")).await.error(404);
    world.end().await;
}

#[tokio::test]
async fn an_agent_that_cannot_run_is_refused() {
    let world = World::still().await;
    let owner = &world.owner;
    for (field, value) in [
        ("model", json!("gpt-5")),
        ("model", json!("scripted/unheard-of")),
        ("tools", json!(["bash", "teleport"])),
        ("name", json!("")),
        ("name", json!("n".repeat(201))),
        ("prompt", json!("p".repeat((256 << 10) + 1))),
        ("limits", json!({ "tokens": -1 })),
        ("environment", json!(7)),
        ("runtime", json!("claude")),
    ] {
        let mut agent = noop("a");
        agent[field] = value;
        let error = owner.post("/agents", agent).await.error(400);
        let param = error["param"].as_str().unwrap_or_default();
        assert!(param.starts_with(field), "{field}: {error}");
    }
    assert!(data(&owner.get("/agents").await.ok()).is_empty());
    let mut agent = noop("a");
    agent["runtime"] = json!("builtin");
    assert_eq!(owner.post("/agents", agent).await.ok()["runtime"], "builtin");
    world.end().await;
}

#[tokio::test]
async fn options_that_no_provider_takes_are_refused_at_once() {
    let world = World::still().await;
    let agent = |options: serde_json::Value| json!({ "name": "a", "prompt": "", "model": "scripted/noop", "model_options": options });
    for options in [
        json!({ "max_tokens": 0 }),
        json!({ "thinking": { "budget_tokens": 1_023 } }),
        json!({ "thinking": { "budget_tokens": 16_384 } }),
        json!({ "max_tokens": 2_000, "thinking": { "budget_tokens": 2_000 } }),
    ] {
        let error = world.owner.post("/agents", agent(options)).await.error(400);
        assert_eq!(error["param"], "model_options", "{error}");
    }
    let api = world.owner.post("/agents", agent(json!({ "api": "responses" }))).await.error(400);
    assert_eq!(api["param"], "model_options.api", "{api}");
    let fits = json!({ "max_tokens": 2_000, "thinking": { "budget_tokens": 1_999 } });
    let made = world.owner.post("/agents", agent(fits)).await.ok();
    let wrong = json!({ "model_options": { "max_tokens": 0 } });
    world.owner.patch(&format!("/agents/{}", id(&made)), wrong).await.error(400);
    world.end().await;
}
