//! Changes of the agent that a session pins: tools, permissions and settings.

use serde_json::{Value, json};

use super::{Scene, assert_sound, bash, ends, log, of, outputs, script, steer};
use crate::support::service::Caller;

fn custom(name: &str) -> Value {
    json!({ "type": "custom", "name": name, "description": "A tool.", "input_schema": { "type": "object" } })
}

/// Runs `echo NAME` in the next turn; returns the output of that call.
async fn echo(owner: &Caller, id: &str, name: &str, turn: usize) -> String {
    let command = format!("echo {name}");
    steer(owner, id, &script(json!([{ "tools": [bash(&command)] }, { "text": "Done." }]))).await;
    let log = owner.settled(id, turn).await;
    outputs(&log).last().expect("an output").to_string()
}

#[tokio::test]
async fn a_change_of_the_agent_holds_from_the_next_turn_on() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let body = json!({ "agent": owner.inline_agent().await });
    let id = owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    let path = format!("/sessions/{id}");
    assert_eq!(echo(owner, &id, "one", 1).await, "one\n");

    let rule = json!({ "tool": "bash", "policy": "deny" });
    let denied = json!({ "permissions": [rule], "doom_loop": { "policy": "off" } });
    let changed = owner.patch(&path, denied.clone()).await.ok();
    assert_eq!(changed["agent_snapshot"]["permissions"]["session"], json!([rule]));
    assert_eq!(changed["agent_snapshot"]["doom_loop"]["policy"], "off");
    assert_eq!(owner.patch(&path, denied).await.ok()["head"], changed["head"], "nothing changed");
    assert!(echo(owner, &id, "two", 2).await.starts_with("The permissions of this session do not allow"));

    owner.patch(&path, json!({ "permissions": [], "tools": ["read", custom("ask_me")] })).await.ok();
    assert!(
        echo(owner, &id, "three", 3)
            .await
            .starts_with("There is no tool `bash`. The tools are: read, ask_me.")
    );

    let restored = owner.patch(&path, json!({ "tools": null, "doom_loop": null })).await.ok();
    assert_eq!(restored["agent_snapshot"]["tools"], json!(null));
    assert_eq!(restored["agent_snapshot"].get("doom_loop"), None);
    assert_eq!(echo(owner, &id, "four", 4).await, "four\n");

    // Each turn names the change that it runs with.
    let log = log(owner, &id).await;
    assert_sound(&log);
    let changes: Vec<_> = of(&log, "session.updated").iter().map(|event| event["seq"].clone()).collect();
    let ran: Vec<_> =
        of(&log, "turn.started").iter().filter_map(|event| event["body"].get("agent_seq").cloned()).collect();
    assert_eq!((ran, changes.len()), (changes, 3));
    assert_eq!(ends(&log), ["completed"; 4]);
    scene.close().await;
}

#[tokio::test]
async fn a_change_that_cannot_be_made_is_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let call = json!({ "tool": "ask_me", "input": {} });
    let steps = json!([{ "tools": [call] }, { "text": "Done." }]);
    let body = json!({ "agent": owner.inline_agent().await, "tools": [custom("ask_me")], "input": { "script": steps } });
    let made = owner.post("/sessions", body).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    let path = format!("/sessions/{id}");
    owner.until(&path, |session| session["phase"] == "requires_action").await;

    // A turn keeps the agent that it started with, but a title is free.
    let error = owner.patch(&path, json!({ "title": "x", "tools": ["read"] })).await.error(409);
    assert_eq!(error["code"], "turn_running");
    assert_eq!(owner.patch(&path, json!({ "title": "x" })).await.ok()["title"], "x");
    owner.post(&format!("{path}/cancel"), json!({})).await.ok();
    owner.settled(id, 1).await;

    let registered = json!({ "name": "known", "description": "One.", "runs": "caller", "input_schema": { "type": "object" } });
    owner.post(&format!("{path}/tools"), registered).await.ok();
    let error = owner.patch(&path, json!({ "tools": ["read", custom("known")] })).await.error(409);
    assert_eq!((&error["code"], &error["param"]), (&json!("tool_exists"), &json!("tools[1]")));
    for (change, param) in [
        (json!({ "tools": ["no_such"] }), "tools[0]"),
        (json!({ "permissions": [{ "tool": "no_such", "policy": "ask" }] }), "permissions[0].tool"),
        (json!({ "ask": { "mode": "wait", "expires_seconds": 1 } }), "ask"),
        (json!({ "doom_loop": { "repeats": 1 } }), "doom_loop"),
    ] {
        assert_eq!(owner.patch(&path, change).await.error(400)["param"], param);
    }
    let bare = owner.post("/sessions", json!({})).await.ok()["session"]["id"].clone();
    let bare = format!("/sessions/{}", bare.as_str().expect("an id"));
    assert_eq!(owner.patch(&bare, json!({ "tools": [] })).await.error(400)["param"], "agent");

    // Rules may hold back what another person has to confirm.
    let key = owner.post("/keys", json!({ "name": "k", "scopes": ["sessions:write"] })).await.ok();
    let writer = scene.service.caller(key["key"].as_str().expect("a key"));
    writer.patch(&path, json!({ "tools": ["read"] })).await.ok();
    let error = writer.patch(&path, json!({ "permissions": [] })).await.error(403);
    assert!(error["message"].as_str().expect("words").contains("sessions:approve"));
    let key = owner
        .post("/keys", json!({ "name": "a", "scopes": ["sessions:write", "sessions:approve"] }))
        .await
        .ok();
    let approver = scene.service.caller(key["key"].as_str().expect("a key"));
    approver.patch(&path, json!({ "permissions": [{ "tool": "bash", "policy": "ask" }] })).await.ok();
    let audit = owner.get("/audit?limit=5").await.ok();
    let actions: Vec<_> =
        audit["data"].as_array().expect("a page").iter().map(|act| &act["action"]).collect();
    assert!(actions.contains(&&json!("session.permissions_changed")), "{actions:?}");
    scene.close().await;
}
