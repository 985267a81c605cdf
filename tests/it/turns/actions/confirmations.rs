//! Calls that a person confirms or rejects.

use serde_json::{Value, json};

use super::{answer, pending};
use crate::{
    support::service::Caller,
    turns::{Scene, assert_sound, bash, ends, log, of, outputs, script, session, steer},
};

/// Creates an agent with permissions and plays a script.
async fn play(owner: &Caller, permissions: Value, steps: Value) -> String {
    let name =
        format!("agent {}", owner.get("/agents?limit=500").await.ok()["data"].as_array().map_or(0, Vec::len));
    let agent = json!({ "name": name, "prompt": "", "model": "scripted/inline", "permissions": permissions });
    let agent = owner.post("/agents", agent).await.ok();
    assert_eq!(agent["permissions"], permissions);
    let body = json!({ "agent": agent["id"], "input": { "script": steps } });
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

fn decide(action: &Value, decision: &str, more: &Value) -> Value {
    let mut event =
        json!({ "type": "user.tool_confirmation", "action_id": action["id"], "decision": decision });
    event.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    json!([event])
}

fn ask() -> Value {
    json!([{ "tool": "bash", "policy": "ask" }])
}

/// Outcome of each call, in order.
fn outcomes(log: &[Value]) -> Vec<&str> {
    of(log, "tool.result")
        .iter()
        .map(|event| event["body"]["outcome"].as_str().expect("an outcome"))
        .collect()
}

#[tokio::test]
async fn of_many_racing_decisions_one_is_taken() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [bash("echo ran >> ran; cat ran")] }, { "text": "Done." }]);
    let id = play(owner, ask(), steps).await;
    let action = pending(owner, &id, 1).await.remove(0);
    let racing = (0..100).map(|n| {
        let events = match n % 2 {
            0 => decide(&action, "once", &json!({ "args_hash": action["args_hash"] })),
            _ => decide(&action, "reject", &json!({ "message": format!("No {n}.") })),
        };
        let (owner, id) = (owner.clone(), id.clone());
        async move { answer(&owner, &id, events).await.status.as_u16() }
    });
    let statuses = futures::future::join_all(racing).await;
    assert_eq!(statuses.iter().filter(|status| **status == 202).count(), 1, "{statuses:?}");
    // The same decision again is no conflict.
    assert!(statuses.iter().all(|status| [200, 202, 409, 429].contains(status)), "{statuses:?}");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let decided = of(&log, "user.tool_confirmation");
    assert_eq!(decided.len(), 1);
    let ran = decided[0]["body"]["decision"] == "once";
    assert_eq!(outcomes(&log), [if ran { "ran" } else { "not_run" }]);
    if ran {
        assert_eq!(outputs(&log), ["ran\n"]);
    }
    scene.close().await;
}

#[tokio::test]
async fn a_decision_after_an_archive_is_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(owner, ask(), json!([{ "tools": [bash("echo never")] }, { "text": "Never." }])).await;
    let action = pending(owner, &id, 1).await.remove(0);
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    let once = decide(&action, "once", &json!({ "args_hash": action["args_hash"] }));
    assert_eq!(answer(owner, &id, once).await.error(409)["code"], "archived");
    assert_eq!(outcomes(&log(owner, &id).await), ["not_run"]);
    scene.close().await;
}

#[tokio::test]
async fn a_call_waits_for_a_person_and_runs_once_confirmed() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [bash("echo pushed >> pushed; cat pushed")] }, { "text": "Done." }]);
    let id = play(owner, ask(), steps).await;
    let action = pending(owner, &id, 1).await.remove(0);
    assert_eq!((&action["kind"], &action["reason"]), (&json!("confirmation"), &json!("policy")));
    assert_eq!(action["rule"], json!({ "tool": "bash", "policy": "ask" }));
    let hash = action["args_hash"].as_str().expect("a hash").to_owned();
    assert!(hash.starts_with("sha256:"));

    // Another call than the one that was shown, an answer of another kind, fields of another decision.
    let wrong =
        answer(owner, &id, decide(&action, "once", &json!({ "args_hash": "sha256:0" }))).await.error(409);
    assert_eq!(wrong["code"], "args_changed");
    let wrong = answer(owner, &id, json!([super::result(&action, "x")])).await.error(400);
    assert_eq!(wrong["param"], "events[0]");
    for (decision, more, field) in [
        ("once", json!({ "message": "no" }), "message"),
        ("once", json!({ "then": "end_turn" }), "then"),
        ("reject", json!({ "rule": { "tool": "bash", "policy": "allow" } }), "rule"),
        ("always", json!({}), "rule"),
        ("always", json!({ "rule": { "tool": "bash", "policy": "allow" } }), "rule"),
        ("always", json!({ "rule": { "tool": "no_such_tool", "policy": "allow" } }), "rule.tool"),
    ] {
        let error = answer(owner, &id, decide(&action, decision, &more)).await.error(400);
        assert_eq!(error["param"], format!("events[0].{field}"), "{error}");
    }

    let once = decide(&action, "once", &json!({ "args_hash": hash }));
    assert_eq!(answer(owner, &id, once.clone()).await.status, 202);
    assert_eq!(answer(owner, &id, once).await.status, 200, "the same decision again");
    let error = answer(owner, &id, decide(&action, "reject", &json!({}))).await.error(409);
    assert_eq!(error["code"], "action_resolved");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((outputs(&log), ends(&log)), (vec!["pushed\n"], vec!["completed"]));
    let call = of(&log, "tool.call")[0];
    assert_eq!((&call["body"]["policy"], &call["body"]["rule"]["policy"]), (&json!("ask"), &json!("ask")));
    assert_eq!(of(&log, "tool.started").len(), 1);
    let audit = owner.get("/audit?action=action.confirmed").await.ok();
    assert_eq!(
        (&audit["data"][0]["details"]["args_hash"], &audit["data"][0]["target"]),
        (&json!(hash), &json!(id))
    );
    scene.close().await;
}

#[tokio::test]
async fn a_call_that_would_act_elsewhere_than_where_it_was_confirmed_does_not_run() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let call = || bash("pwd | tee here");
    let id =
        play(owner, ask(), json!([{ "tools": [call()] }, { "tools": [call()] }, { "text": "Done." }])).await;
    let shown = pending(owner, &id, 1).await.remove(0);
    let elsewhere = json!({ "working_dir": "/tmp" });
    owner.patch(&format!("/sessions/{id}/context"), elsewhere).await.ok();
    assert_eq!(answer(owner, &id, decide(&shown, "once", &json!({}))).await.status, 202);

    let again = pending(owner, &id, 1).await.remove(0);
    assert_ne!((&again["id"], &again["args_hash"]), (&shown["id"], &shown["args_hash"]));
    assert_eq!(answer(owner, &id, decide(&again, "once", &json!({}))).await.status, 202);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((outcomes(&log), ends(&log)), (vec!["not_run", "ran"], vec!["completed"]));
    assert!(outputs(&log)[0].contains("has changed since the call was confirmed"), "{log:?}");
    assert_eq!((outputs(&log)[1], of(&log, "tool.started").len()), ("/tmp\n", 1));
    scene.close().await;
}

#[tokio::test]
async fn a_rejected_call_does_not_run_and_the_model_reads_why() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [bash("echo a"), bash("echo b"), bash("echo c")] }, { "text": "Done." }]);
    let id = play(owner, ask(), steps.clone()).await;
    let actions = pending(owner, &id, 3).await;
    let words = json!({ "message": "Open a pull request instead." });
    answer(owner, &id, decide(&actions[0], "reject", &words)).await.ok();
    pending(owner, &id, 2).await;
    answer(owner, &id, decide(&actions[1], "reject", &json!({ "others": "reject" }))).await.ok();
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outcomes(&log), ["not_run"; 3]);
    assert!(outputs(&log)[0].ends_with("They wrote: Open a pull request instead."), "{log:?}");
    assert_eq!(
        of(&log, "action.closed")[0]["body"],
        json!({ "action_id": actions[2]["id"], "reason": "rejected" })
    );
    assert_eq!(ends(&log), ["completed"]);

    let id = play(owner, ask(), steps).await;
    let actions = pending(owner, &id, 3).await;
    answer(owner, &id, decide(&actions[0], "once", &json!({}))).await.ok();
    owner
        .until(&format!("/sessions/{id}/pending"), |page| {
            page["data"].as_array().is_some_and(|rows| rows.len() == 2)
        })
        .await;
    answer(owner, &id, decide(&actions[2], "reject", &json!({ "then": "end_turn" }))).await.ok();
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["canceled"]);
    assert_eq!(outcomes(&log)[1..], ["not_run", "not_run"]);
    assert_eq!(session(owner, &id).await["status"], "idle");
    scene.close().await;
}

#[tokio::test]
async fn a_granted_rule_holds_for_the_session_until_it_is_revoked() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([
        { "tools": [bash("echo one"), bash("echo two; true"), bash("echo x > y")] }, { "tools": [bash("echo three")] },
        { "text": "Done." },
    ]);
    let id = play(owner, ask(), steps).await;
    let actions = pending(owner, &id, 3).await;
    assert_eq!(actions[0]["always"], json!([{ "tool": "bash", "prefix": "echo one", "policy": "allow" }]));
    assert_eq!(actions[2].get("always"), None, "a redirection is allowed by no rule");
    let wide = json!({ "rule": { "tool": "bash", "prefix": "echo", "policy": "allow" } });
    let error = answer(owner, &id, decide(&actions[0], "always", &wide)).await.error(400);
    assert_eq!(error["param"], "events[0].rule");
    // Two rules of one line: each allows its command.
    for (action, prefix) in [(&actions[1], "echo two"), (&actions[0], "echo one")] {
        let rule = json!({ "rule": { "tool": "bash", "prefix": prefix, "policy": "allow" } });
        assert_eq!(answer(owner, &id, decide(action, "always", &rule)).await.status, 202);
    }
    answer(owner, &id, decide(&actions[2], "once", &json!({}))).await.ok();
    let third = pending(owner, &id, 1).await.remove(0);
    assert_eq!(third["input"]["command"], "echo three");
    answer(owner, &id, decide(&third, "reject", &json!({}))).await.ok();
    owner.settled(&id, 1).await;

    let again = script(json!([{ "tools": [bash("echo one")] }, { "text": "Done." }]));
    steer(owner, &id, &again).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(outputs(&log).last(), Some(&"one\n"), "nobody was asked");
    let path = format!("/sessions/{id}/permissions");
    let permissions = owner.get(&path).await.ok();
    assert_eq!(permissions["permissions"]["agent"], ask());
    let granted = permissions["granted"].as_array().expect("a list").clone();
    assert_eq!(granted.len(), 2);
    let grant = granted.iter().find(|grant| grant["rule"]["prefix"] == "echo one").expect("the grant");
    assert_eq!(grant["granted_by"]["type"], "human");
    let revoke = format!("{path}/{}", grant["event_id"].as_str().expect("an id"));
    assert_eq!(owner.delete(&revoke).await.status, 204);
    owner.delete(&revoke).await.error(404);
    steer(owner, &id, &again).await;
    let action = pending(owner, &id, 1).await.remove(0);
    owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    let log = owner.settled(&id, 3).await;
    assert_sound(&log);
    assert_eq!(outcomes(&log).last(), Some(&"not_run"));
    assert_eq!(of(&log, "action.closed")[0]["body"]["action_id"], action["id"]);
    scene.close().await;
}

#[tokio::test]
async fn what_is_denied_never_runs_and_a_session_only_narrows() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let rules = json!([{ "tool": "bash", "prefix": "rm", "policy": "deny" }]);
    let agent = json!({ "name": "careful", "prompt": "", "model": "scripted/inline", "permissions": rules });
    owner.post("/agents", agent).await.ok();
    let steps = json!([{ "tools": [bash("rm -rf x; echo gone"), bash("echo kept")] }, { "text": "Done." }]);
    let body = |permissions: Value| json!({ "agent": "careful", "input": { "script": steps }, "permissions": permissions });
    let run = async |permissions: Value| {
        let made = owner.post("/sessions", body(permissions)).await.ok();
        made["session"]["id"].as_str().expect("an id").to_owned()
    };
    let id = run(json!([{ "tool": "*", "policy": "allow" }])).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outcomes(&log), ["not_run", "ran"]);
    assert!(outputs(&log)[0].contains("`bash` with the prefix `rm` is denied"), "{log:?}");
    let id = run(json!([{ "tool": "bash", "policy": "deny" }])).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(outcomes(&log), ["not_run", "not_run"]);
    // The rules hold below a session without an agent too.
    let top = owner.post("/sessions", body(json!([]))).await.ok()["session"]["id"].clone();
    let between =
        owner.post("/sessions", json!({ "parent_session_id": top })).await.ok()["session"]["id"].clone();
    let free = owner.inline_agent().await;
    let child = json!({ "agent": free, "parent_session_id": between, "input": { "script": steps } });
    let id = owner.post("/sessions", child).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(outcomes(&owner.settled(&id, 1).await), ["not_run", "ran"]);
    for (rule, param) in [
        (json!({ "tool": "write", "path": "/workspace//x", "policy": "deny" }), "permissions[0].path"),
        (json!({ "tool": "bash", "prefix": "git push; rm", "policy": "deny" }), "permissions[0].prefix"),
        (json!({ "tool": "no_such_tool", "policy": "ask" }), "permissions[0].tool"),
        (json!({ "tool": "read", "prefix": "x", "policy": "ask" }), "permissions[0].prefix"),
        (json!({ "tool": "write", "path": "relative/**", "policy": "ask" }), "permissions[0].path"),
        (json!({ "tool": "write", "path": "/[", "policy": "ask" }), "permissions[0].path"),
        (json!({ "tool": "web_fetch", "host": "10.0.0.1", "policy": "ask" }), "permissions[0].host"),
        (json!({ "tool": "bash", "policy": "ask", "expires_seconds": 9 }), "permissions[0].expires_seconds"),
        (
            json!({ "tool": "bash", "policy": "deny", "expires_seconds": 60 }),
            "permissions[0].expires_seconds",
        ),
    ] {
        assert_eq!(owner.post("/sessions", body(json!([rule]))).await.error(400)["param"], param);
    }
    scene.close().await;
}

#[tokio::test]
async fn only_who_may_approve_decides() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(owner, ask(), json!([{ "tools": [bash("echo a")] }, { "text": "Done." }])).await;
    let action = pending(owner, &id, 1).await.remove(0);
    let key = async |scopes: Value| {
        let made = owner.post("/keys", json!({ "name": "k", "scopes": scopes })).await.ok();
        scene.service.caller(made["key"].as_str().expect("a key"))
    };
    let writer = key(json!(["sessions:read", "sessions:write"])).await;
    let once = decide(&action, "once", &json!({}));
    answer(&writer, &id, once.clone()).await.error(403);
    let claim = format!("/sessions/{id}/pending/{}/claim", action["id"].as_str().expect("an id"));
    writer.post(&claim, json!({})).await.error(403);
    let tokens = format!("/sessions/{id}/client-tokens");
    writer.post(&tokens, json!({ "scopes": ["approve"] })).await.error(403);
    let mut tokens_of = Vec::new();
    for scope in ["answer", "approve"] {
        let made = owner.post(&tokens, json!({ "scopes": [scope] })).await.ok();
        tokens_of.push(scene.service.caller(made["token"].as_str().expect("a token")));
    }
    answer(&tokens_of[0], &id, once.clone()).await.error(403);
    let approver = key(json!(["sessions:approve"])).await;
    answer(&approver, &id, json!([{ "type": "user.message", "text": "Hi" }])).await.error(403);
    assert_eq!(answer(&approver, &id, once.clone()).await.status, 202);
    assert_eq!(answer(&tokens_of[1], &id, once).await.status, 200);
    let log = owner.settled(&id, 1).await;
    assert_eq!(outcomes(&log), ["ran"]);
    scene.close().await;
}

#[tokio::test]
async fn a_confirmation_that_nobody_gives_expires_as_a_rejection() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let rules = json!([{ "tool": "bash", "policy": "ask", "expires_seconds": 10 }]);
    let id = play(owner, rules, json!([{ "tools": [bash("echo a")] }, { "text": "Done." }])).await;
    let action = pending(owner, &id, 1).await.remove(0);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((outcomes(&log), ends(&log)), (vec!["not_run"], vec!["completed"]));
    assert!(outputs(&log)[0].starts_with("Nobody confirmed this call in time"), "{log:?}");
    let error = answer(owner, &id, decide(&action, "once", &json!({}))).await.error(409);
    assert_eq!(error["code"], "action_expired");
    scene.close().await;
}

#[tokio::test]
async fn a_confirmed_call_runs_once_whatever_happens_to_its_worker() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id =
        play(owner, ask(), json!([{ "tools": [bash("echo ran >> ran; cat ran")] }, { "text": "Done." }]))
            .await;
    let first = scene.ground.serve(&["--role=worker"]).await;
    let action = pending(owner, &id, 1).await.remove(0);
    first.stop().await;
    assert_eq!(answer(owner, &id, decide(&action, "once", &json!({}))).await.status, 202);
    assert!(of(&log(owner, &id).await, "tool.started").is_empty());
    let second = scene.ground.serve(&["--role=worker"]).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((outputs(&log), outcomes(&log)), (vec!["ran\n"], vec!["ran"]));
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn arguments_that_are_too_large_are_decided_as_a_whole() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    // Behind what an event shows of a long string.
    let large = format!("echo one {}\ntouch unseen", "x".repeat(33_000));
    let steps = json!([{ "tools": [bash("echo one"), bash(&large)] }, { "text": "Done." }]);
    let id = play(owner, ask(), steps).await;
    let actions = pending(owner, &id, 2).await;
    assert_eq!((&actions[0]["input"]["command"], &actions[1]["input"]), (&json!("echo one"), &Value::Null));
    let call = actions[1]["call_event_id"].as_str().expect("an event");
    let body = owner.get(&format!("/sessions/{id}/events/{call}/content")).await.ok();
    assert_eq!(body["input"]["command"], large.as_str());
    let prefix = json!({ "tool": "bash", "prefix": "echo one", "policy": "allow" });
    let always = decide(&actions[0], "always", &json!({ "rule": prefix }));
    assert_eq!(answer(owner, &id, always).await.status, 202);
    let left = pending(owner, &id, 1).await;
    assert_eq!(left[0]["id"], actions[1]["id"], "the rule does not know the large call");
    let reject = decide(&actions[1], "reject", &json!({}));
    assert_eq!(answer(owner, &id, reject).await.status, 202);
    let log = owner.settled(&id, 1).await;
    assert_eq!(outcomes(&log), ["ran", "not_run"]);
    assert_eq!(
        of(&log, "action.required")[1]["body"]["input"],
        Value::Null,
        "its event shows no part either"
    );
    scene.close().await;
}
