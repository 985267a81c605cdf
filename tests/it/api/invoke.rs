//! Invoke URLs: a token of one agent starts its sessions, until it is revoked, and does nothing else.

use reqwest::Method;
use serde_json::{Value, json};

use super::{World, data, id, noop};
use crate::support::service::{Answer, Caller, send};

#[track_caller]
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// Creates an agent of the owner; returns its path.
async fn agent(world: &World, name: &str) -> String {
    format!("/agents/{}", id(&world.owner.post("/agents", noop(name)).await.ok()))
}

/// Creates a token; returns its description and a caller that has it.
async fn token(world: &World, agent: &str, body: Value) -> (Value, Caller) {
    let made = world.owner.post(&format!("{agent}/invoke-tokens"), body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let caller = world.service.caller(&text(&made.body["token"]));
    (made.body, caller)
}

async fn invoke(caller: &Caller, agent: &str) -> Answer {
    caller.post(&format!("{agent}/invoke"), json!({ "input": "Look." })).await
}

async fn once(caller: &Caller, agent: &str, key: &str, body: Value) -> Answer {
    let request = caller.request(Method::POST, &format!("{agent}/invoke"));
    send(request.header("Idempotency-Key", key).json(&body)).await
}

/// An error without the field that differs between requests.
fn bare(mut error: Value) -> Value {
    error["request_id"] = Value::Null;
    error
}

#[tokio::test]
async fn a_token_starts_sessions_with_its_own_settings() {
    let world = World::still().await;
    let path = agent(&world, "code reviewer").await;
    let settings = json!({
        "name": "the form", "title": "Called", "metadata": { "team": "a" }, "limits": { "turns": 2 },
        "environment": { "cpus": 1.0 },
    });
    let (made, caller) = token(&world, &path, settings).await;
    let secret = text(&made["token"]);
    assert!(secret.starts_with("sji_") && secret.ends_with(&text(&made["hint"])), "{made}");
    assert_eq!(made["path"], format!("/v3{path}/invoke"));

    let body = json!({ "input": { "text": "Look.", "page": 7 }, "metadata": { "team": "b", "ticket": 9 } });
    let started = caller.post(&format!("{path}/invoke"), body).await;
    assert_eq!(started.status, 201, "{}", started.body);
    assert!(started.headers.contains_key("ratelimit-remaining"));
    let session = &started.body["session"];
    assert_eq!((&session["source"], &session["status"]), (&json!("invoke"), &json!("queued")));
    assert_eq!(session["actor"], json!({ "id": made["id"], "display": "the form", "type": "human" }));
    assert_eq!((&session["title"], &session["limits"]), (&json!("Called"), &json!({ "turns": 2 })));
    assert_eq!(session["metadata"], json!({ "team": "a", "ticket": 9 }));
    assert_eq!(session["environment"]["config"]["cpus"], 1.0);
    assert_eq!(world.owner.get(&format!("/sessions/{}", id(session))).await.ok()["source"], "invoke");
    // The answer has a client token of the session, like that of `POST /v3/sessions`.
    let reader = world.service.caller(&text(&started.body["client_token"]));
    let messages = reader.get(&format!("/sessions/{}/messages", id(session))).await.ok();
    assert_eq!(data(&messages)[0]["body"]["input"], json!({ "text": "Look.", "page": 7 }));

    let titled = json!({ "input": "Look.", "title": "Mine" });
    let by_name = caller.post("/agents/code%20reviewer/invoke", titled).await.ok();
    assert_eq!(by_name["session"]["title"], "Mine");
    let listed = world.owner.get(&format!("{path}/invoke-tokens")).await.ok();
    assert!(!listed.to_string().contains(&secret), "{listed}");
    assert!(data(&listed)[0]["last_used_at"].is_string() && data(&listed)[0]["name"] == "the form");
    for (wrong, field) in [
        (json!({}), "input"),
        (json!({ "input": "" }), "input"),
        (json!({ "input": 7 }), "input"),
        (json!({ "input": "x", "limits": {} }), "limits"),
        (json!({ "input": "x", "environment": "e" }), "environment"),
    ] {
        assert_eq!(caller.post(&format!("{path}/invoke"), wrong).await.error(400)["param"], field);
    }
    world.end().await;
}

#[tokio::test]
async fn a_token_grants_nothing_but_its_agent() {
    let world = World::still().await;
    let (one, other) = (agent(&world, "one").await, agent(&world, "other").await);
    let theirs = format!("/agents/{}", id(&world.stranger.post("/agents", noop("one")).await.ok()));
    let (made, caller) = token(&world, &one, json!({ "name": "t" })).await;
    let unknown = "/agents/agt_01jd0000000000000000000000";
    let expected = bare(invoke(&caller, unknown).await.error(404));
    for wrong in [other.as_str(), &theirs, "/agents/other", "/agents/nobody"] {
        assert_eq!(bare(invoke(&caller, wrong).await.error(404)), expected, "{wrong}");
    }
    let session = id(&invoke(&caller, &one).await.ok());
    for path in [
        one.clone(),
        format!("{one}/invoke-tokens"),
        "/agents".to_owned(),
        "/sessions".to_owned(),
        format!("/sessions/{session}"),
        format!("/sessions/{session}/events"),
        "/keys".to_owned(),
    ] {
        caller.get(&path).await.error(401);
    }
    caller.post("/sessions", json!({ "agent": "one", "input": "x" })).await.error(401);
    caller.post(&format!("/sessions/{session}/messages"), json!({ "text": "x" })).await.error(401);
    caller.post(&format!("{one}/invoke-tokens"), json!({ "name": "more" })).await.error(401);
    caller.delete(&format!("{one}/invoke-tokens/{}", id(&made))).await.error(401);
    // A token is not accepted in a URL.
    let in_url = format!("{one}/invoke?token={}", caller.key);
    world.anonymous.post(&in_url, json!({ "input": "x" })).await.error(401);
    let last = if caller.key.ends_with('x') { 'y' } else { 'x' };
    let forged = world.service.caller(&format!("{}{last}", &caller.key[..caller.key.len() - 1]));
    invoke(&forged, &one).await.error(401);
    assert_eq!(world.ground.count("select count(*) from session").await, 1);
    world.end().await;
}

#[tokio::test]
async fn a_revoked_token_is_refused_at_once_by_every_process() {
    let world = World::still().await;
    let second = world.ground.serve(&["--role=api"]).await;
    let path = agent(&world, "a").await;
    let (made, here) = token(&world, &path, json!({ "name": "t" })).await;
    let (_, kept) = token(&world, &path, json!({ "name": "kept" })).await;
    let there = second.caller(&here.key);
    for caller in [&here, &there] {
        assert_eq!(invoke(caller, &path).await.status, 201);
    }
    let own = format!("{path}/invoke-tokens/{}", id(&made));
    world.stranger.delete(&own).await.error(404);
    assert_eq!(world.owner.delete(&own).await.status, 204);
    for caller in [&there, &here] {
        invoke(caller, &path).await.error(401);
    }
    world.owner.delete(&own).await.error(404);
    assert_eq!(data(&world.owner.get(&format!("{path}/invoke-tokens")).await.ok()).len(), 1);
    assert_eq!(data(&world.owner.get("/sessions").await.ok()).len(), 2, "its sessions stay");

    // A suspended organization, as for an API key; then a deleted agent.
    world.ground.sql("update org set suspended_at = now()").await;
    assert_eq!(invoke(&kept, &path).await.error(403)["code"], "organization_suspended");
    world.ground.sql("update org set suspended_at = null").await;
    assert_eq!(invoke(&kept, &path).await.status, 201);
    assert_eq!(world.owner.delete(&path).await.status, 204);
    invoke(&kept, &path).await.error(401);
    invoke(&world.owner, &path).await.error(404);
    assert_eq!(world.ground.count("select count(*) from invoke_token").await, 0);
    second.stop().await;
    world.end().await;
}

#[tokio::test]
async fn a_repeated_invocation_starts_one_session() {
    let world = World::still().await;
    let path = agent(&world, "a").await;
    let (_, one) = token(&world, &path, json!({ "name": "one" })).await;
    let (_, other) = token(&world, &path, json!({ "name": "other" })).await;
    let body = json!({ "input": "Look." });
    let first = once(&one, &path, "k", body.clone()).await;
    let again = once(&one, &path, "k", body.clone()).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 200));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(first.body["session"]["id"], again.body["session"]["id"]);
    assert_ne!(first.body["client_token"], again.body["client_token"], "a fresh one");
    let mismatch = once(&one, &path, "k", json!({ "input": "Else." })).await.error(422);
    assert_eq!(mismatch["code"], "idempotency_mismatch");
    // Equal keys of other callers are other keys: nobody receives another's session.
    for caller in [&other, &world.owner] {
        let own = once(caller, &path, "k", body.clone()).await;
        assert_eq!(own.status, 201);
        assert_ne!(own.body["session"]["id"], first.body["session"]["id"]);
    }
    let equal = futures::future::join_all((0..8).map(|_| once(&one, &path, "many", body.clone()))).await;
    let ids: Vec<_> = equal.into_iter().map(|answer| id(&answer.ok())).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    world.end().await;
}

#[tokio::test]
async fn invoke_tokens_are_audited_bounded_and_limited_in_rate() {
    let world = World::with(&["--role=api", "--requests-per-second=5"]).await;
    let path = agent(&world, "a").await;
    let (made, caller) = token(&world, &path, json!({ "name": "t" })).await;
    let session = id(&invoke(&caller, &path).await.ok());
    // With an API key the session is one like any other: only its source says how it was started.
    let by_key = invoke(&world.owner, &path).await.ok();
    assert_eq!(by_key["session"]["source"], "invoke");
    assert!(text(&by_key["session"]["actor"]["id"]).starts_with("key_"));
    world.owner.delete(&format!("{path}/invoke-tokens/{}", id(&made))).await;
    let all = world.owner.get("/audit?action=invoke_token.*").await.ok();
    let actions: Vec<_> = data(&all).iter().map(|row| text(&row["action"])).collect();
    assert_eq!(actions, ["invoke_token.revoked", "invoke_token.used", "invoke_token.created"]);
    assert!(data(&all).iter().all(|row| row["target"] == made["id"]));
    let used = &data(&all)[1];
    assert_eq!((&used["actor"]["id"], &used["details"]["session_id"]), (&made["id"], &json!(session)));
    assert!(!all.to_string().contains(&text(&made["token"])), "{all}");

    let insert =
        "insert into invoke_token (org_id, invoke_token_id, agent_id, hash, name, hint, session_template)
         select org_id, gen_random_uuid(), agent_id, decode(md5(n::text), 'hex'), 'n', 'h',
                '{\"title\": null, \"metadata\": {}, \"limits\": {}, \"environment\": null}'
         from agent, generate_series(1, 20) n";
    world.ground.sql(insert).await;
    let refused = world.owner.post(&format!("{path}/invoke-tokens"), json!({ "name": "x" })).await.error(409);
    assert_eq!(refused["code"], "too_many_invoke_tokens");
    world.ground.sql("delete from invoke_token").await;
    let (_, busy) = token(&world, &path, json!({ "name": "busy" })).await;
    let all = futures::future::join_all((0..40).map(|_| invoke(&busy, &path))).await;
    let limited = all.iter().find(|answer| answer.status == 429).expect("a burst has 20 requests");
    assert!(limited.headers.contains_key("retry-after"), "{}", limited.body);
    world.end().await;
}
