//! Checks before a turn, and the exit status of a session.

use serde_json::{Value, json};

use super::{agent, scene, start};
use crate::{
    fake::{Fake, anthropic::Anthropic},
    turns::{Scene, ends, of, run, session, steer},
};

fn types(log: &[Value]) -> Vec<&str> {
    log.iter().map(|event| event["type"].as_str().expect("a type")).collect()
}

/// Asserts that the session was rejected before any resource was created for it.
#[track_caller]
fn assert_rejected(log: &[Value], reason: &str) {
    assert_eq!(types(log), ["session.created", "user.message", "session.rejected", "turn.completed"]);
    assert_eq!(log[2]["body"]["reason"], reason);
    let end = &log[3]["body"];
    assert_eq!((&end["yield_reason"], &end["error"]["code"]), (&json!("canceled"), &json!(reason)));
}

#[tokio::test]
async fn a_disabled_agent_runs_nothing_until_it_is_enabled() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let path = format!("/agents/{agent}");
    assert_eq!(owner.patch(&path, json!({ "enabled": false })).await.ok()["enabled"], false);
    let input = json!({ "agent": agent, "input": { "script": [run("true"), { "text": "Ran." }] } });
    let created = owner.post("/sessions", input).await.ok();
    let id = created["session"]["id"].as_str().expect("an id");
    assert_rejected(&owner.settled(id, 1).await, "agent_disabled");
    let rejected = session(owner, id).await;
    assert_eq!((&rejected["status"], &rejected["exit_status"]), (&json!("idle"), &json!("canceled")));
    assert_eq!((&rejected["last_turn"]["state"], &rejected["stopped"]), (&json!("ok"), &Value::Null));
    let other = owner.post("/sessions", json!({ "agent": agent, "input": "Go." })).await.ok();
    let other = other["session"]["id"].as_str().expect("an id");
    owner.settled(other, 1).await;
    let archived = owner.post(&format!("/sessions/{other}/archive"), json!({})).await.ok();
    assert_eq!(archived["exit_status"], "canceled", "an archive does not change the outcome");
    owner.patch(&path, json!({ "enabled": true })).await.ok();
    steer(owner, id, "Again.").await;
    assert_eq!(ends(&owner.settled(id, 2).await)[1], "completed");
    assert_eq!(session(owner, id).await["exit_status"], "completed");
    scene.close().await;
}

#[tokio::test]
async fn a_revoked_credential_rejects_the_session() {
    let fake = Fake::script(Anthropic::default(), []).await;
    let (scene, _operator) = scene(&fake.base_url).await;
    let owner = &scene.owner;
    let agent = agent(owner, json!({})).await;
    let created = owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id");
    let credential = created["session"]["credential_id"].as_str().expect("an id");
    assert_eq!(owner.delete(&format!("/credentials/{credential}")).await.status, 204);
    steer(owner, id, "Go.").await;
    assert_rejected(&owner.settled(id, 1).await, "no_credential");
    assert_eq!(fake.calls(), 0);
    // No other session can be created with it either.
    assert_eq!(owner.post("/sessions", json!({ "agent": agent })).await.error(422)["code"], "no_credential");
    scene.close().await;
}

#[tokio::test]
async fn a_session_without_a_turn_has_an_outcome_once_it_is_canceled_or_stopped() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    // No worker serves the stop, so it is not waited for.
    let act = async |id: &str, verb: &str| {
        let request = owner.request(reqwest::Method::POST, &format!("/sessions/{id}/{verb}"));
        crate::support::service::send(request.header("Prefer", "wait=0").json(&json!({}))).await.ok()
    };
    for body in [json!({}), json!({ "agent": agent })] {
        let made = owner.post("/sessions", body).await.ok()["session"].clone();
        let id = made["id"].as_str().expect("an id");
        assert_eq!(made["exit_status"], Value::Null);
        let canceled = act(id, "cancel").await;
        assert_eq!((&canceled["status"], &canceled["exit_status"]), (&json!("idle"), &json!("canceled")));
        assert_eq!(canceled["stopped"]["by"], made["actor"]);
        assert_eq!(act(id, "cancel").await["head"], canceled["head"], "once");
        let stopped = act(id, "stop").await;
        assert_eq!((&stopped["exit_status"], &stopped["status"]), (&json!("stopped"), &json!("idle")));
        let archived = act(id, "archive").await;
        assert_eq!(archived["exit_status"], "stopped");
        let log = crate::turns::log(owner, id).await;
        assert_eq!((of(&log, "session.canceled").len(), of(&log, "session.stopped").len()), (1, 1));
    }
    // What a caller asks for next opens the session again, and a cancel also ends a pause.
    let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    act(id, "pause").await;
    let canceled = act(id, "cancel").await;
    assert_eq!((&canceled["phase"], &canceled["exit_status"]), (&json!("pending"), &json!("canceled")));
    steer(owner, id, "Go.").await;
    assert_eq!(session(owner, id).await["exit_status"], Value::Null);
    let canceled = act(id, "cancel").await;
    assert_eq!(
        (&canceled["exit_status"], &canceled["last_turn"]["state"]),
        (&json!("canceled"), &json!("ok"))
    );
    assert_eq!(act(id, "cancel").await["head"], canceled["head"], "it had a turn, which has ended");
    scene.close().await;
}

#[tokio::test]
async fn creator_and_stopper_of_a_session_come_from_their_keys() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let id = start(owner, &agent, json!({})).await;
    let made = session(owner, &id).await;
    assert!(made["actor"]["id"].as_str().is_some_and(|id| id.starts_with("key_")), "{made}");
    assert_eq!(
        (&made["source"], &made["exit_status"], &made["stopped"]),
        (&json!("api"), &Value::Null, &Value::Null)
    );
    // Callers cannot set these fields.
    for claim in ["actor", "source", "exit_status"] {
        let error = owner.post("/sessions", json!({ "agent": agent, claim: "cron" })).await.error(400);
        assert_eq!(error["param"], claim);
    }
    let named = owner.request(reqwest::Method::POST, "/sessions").header("User-Agent", "sojourn-cli/9");
    let named = crate::support::service::send(named.json(&json!({ "agent": agent }))).await.ok();
    assert_eq!(named["session"]["source"], "api");
    for (client, source) in [("cli", "cli"), ("dashboard", "dashboard"), ("cron", "api"), ("CLI", "api")] {
        let named = owner.request(reqwest::Method::POST, "/sessions").header("X-Sojourn-Client", client);
        let named = crate::support::service::send(named.json(&json!({ "agent": agent }))).await.ok();
        assert_eq!(named["session"]["source"], source, "{client}");
    }
    let key = json!({ "name": "for people", "scopes": ["*"], "source": "cli" });
    let key = owner.post("/keys", key).await.ok();
    let person = scene.service.caller(key["key"].as_str().expect("a key"));
    let typed = person.post("/sessions", json!({ "agent": agent })).await.ok();
    assert_eq!((&key["source"], &typed["session"]["source"]), (&json!("cli"), &json!("cli")));
    // The header refines `api` only.
    let named = person.request(reqwest::Method::POST, "/sessions").header("X-Sojourn-Client", "dashboard");
    let named = crate::support::service::send(named.json(&json!({ "agent": agent }))).await.ok();
    assert_eq!(named["session"]["source"], "cli");
    let canceled = owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    assert_eq!((&canceled["exit_status"], &canceled["stopped"]["by"]), (&json!("canceled"), &made["actor"]));
    let archived = owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    assert_eq!(archived["exit_status"], "stopped");
    assert!(archived["stopped"]["at"].as_str() >= canceled["stopped"]["at"].as_str());
    let log = crate::turns::log(owner, &id).await;
    assert_eq!(of(&log, "session.status_changed")[0]["actor"], archived["stopped"]["by"]);
    scene.close().await;
}
