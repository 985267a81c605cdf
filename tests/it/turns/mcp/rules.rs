//! Permissions and credentials of MCP servers.

use super::*;

/// The only open action of a session.
async fn pending(owner: &Caller, id: &str) -> Value {
    let path = format!("/sessions/{id}/pending");
    let page = owner.until(&path, |page| page["data"].as_array().is_some_and(|open| !open.is_empty())).await;
    page["data"][0].clone()
}

async fn confirm(owner: &Caller, id: &str, action: &Value, more: Value) {
    let mut event = json!({
        "type": "user.tool_confirmation", "action_id": action["id"], "args_hash": action["args_hash"],
    });
    event.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    owner.post(&format!("/sessions/{id}/events"), json!({ "events": [event] })).await.ok();
}

#[tokio::test]
async fn a_call_waits_for_a_person_unless_a_rule_allows_it() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let fake = McpFake::stateless(vec![tool("one"), tool("two")], echo).await;
    let steps = json!([
        { "tools": [call("one", "a")] }, { "tools": [call("one", "b")] }, { "tools": [call("two", "c")] },
        { "text": "Done." },
    ]);
    let rules = json!([{ "tool": "mcp__fake__two", "policy": "deny" }]);
    let id = play_by(owner, json!([server(&fake, json!({}))]), rules, steps).await;
    let action = pending(owner, &id).await;
    assert_eq!((&action["kind"], &action["tool"]), (&json!("confirmation"), &json!("mcp__fake__one")));
    assert_eq!(fake.seen("tools/call").len(), 0);
    let rule = action["always"][0].clone();
    assert_eq!(rule["tool"], "mcp__fake__one");
    confirm(owner, &id, &action, json!({ "decision": "always", "rule": rule })).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let outputs = outputs(&log);
    assert_eq!(outputs[..2], ["one: a", "one: b"], "the grant allows the second");
    assert!(outputs[2].contains("do not allow"), "{outputs:?}");
    assert_eq!(of(&log, "action.required").len(), 1);
    assert_eq!(fake.seen("tools/call").len(), 2);
    scene.close().await;
}

#[tokio::test]
async fn a_grant_ends_when_the_schema_of_its_tool_changes() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let mut changed = tool("act");
    changed["inputSchema"]["properties"]["force"] = json!({ "type": "boolean" });
    let decide = move |name: &str, arguments: &Value| match arguments["word"].as_str() {
        Some("b") => Reply::NewTools { tools: vec![changed.clone()], is_told: true, result: text("act: b") },
        _ => echo(name, arguments),
    };
    let fake = McpFake::legacy(vec![tool("act")], decide).await;
    let steps = json!([
        { "tools": [call("act", "a")] }, { "tools": [call("act", "b")] }, { "tools": [call("act", "c")] },
        { "text": "Done." },
    ]);
    let id = play_by(owner, json!([server(&fake, json!({}))]), json!([]), steps).await;
    let action = pending(owner, &id).await;
    confirm(owner, &id, &action, json!({ "decision": "always", "rule": action["always"][0] })).await;
    let asks_again = |page: &Value| page["data"][0]["input"]["word"] == "c";
    let page = owner.until(&format!("/sessions/{id}/pending"), asks_again).await;
    confirm(owner, &id, &page["data"][0], json!({ "decision": "reject", "message": "Not this." })).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(outputs(&log)[..2], ["act: a", "act: b"]);
    assert_eq!(outcomes(&log), ["ran", "ran", "not_run"]);
    scene.close().await;
}

#[tokio::test]
async fn a_token_is_sent_to_its_own_origin_only() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    fake.accept(&["a-token-of-the-test"]);
    let store = |base: &str, token: &str| {
        owner.post("/credentials", json!({ "provider": "mcp", "base_url": base, "key": token }))
    };
    let id_of = |credential: Value| credential["id"].as_str().expect("an id").to_owned();
    let good = id_of(store(&fake.url, "a-token-of-the-test").await.ok());
    let elsewhere = id_of(store("http://127.0.0.1:9/", "a-token-of-the-test").await.ok());
    let error = owner.post("/credentials", json!({ "provider": "mcp", "key": "a-token" })).await.error(400);
    assert_eq!(error["param"], "base_url");

    let steps = || json!([{ "tools": [call("echo", "a")] }, { "text": "Done." }]);
    let agent = owner.inline_agent().await;
    for wrong in [elsewhere.as_str(), "cred_00000000-0000-7000-8000-000000000000"] {
        let with = server(&fake, json!({ "credential": wrong }));
        let error =
            owner.post("/sessions", json!({ "agent": agent, "mcp_servers": [with] })).await.error(400);
        assert_eq!(error["param"], "mcp_servers[0].credential", "{error}");
    }
    let id = play(owner, json!([server(&fake, json!({ "credential": good }))]), steps()).await;
    assert_eq!(outputs(&owner.settled(&id, 1).await), ["echo: a"]);
    let sent = &fake.seen("tools/call")[0].authorization;
    assert_eq!(sent.as_deref(), Some("Bearer a-token-of-the-test"));

    // A token that is replaced serves the sessions that have it already.
    fake.accept(&["another-token"]);
    owner.patch(&format!("/credentials/{good}"), json!({ "key": "another-token" })).await.ok();
    steer(owner, &id, &script(steps())).await;
    assert_eq!(outputs(&owner.settled(&id, 2).await), ["echo: a", "echo: a"]);

    fake.accept(&["none-of-these"]);
    let fresh =
        play(owner, json!([server(&fake, json!({ "credential": good }))]), json!([{ "text": "x" }])).await;
    let log = owner.settled(&fresh, 1).await;
    assert_eq!(of(&log, "mcp.failed")[0]["body"]["code"], "unauthorized");
    scene.close().await;
}

#[tokio::test]
async fn servers_are_part_of_an_agent_and_changed_for_a_session() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    let configured = server(&fake, json!({}));
    let body = json!({
        "name": "with-servers", "prompt": "", "model": "scripted/inline", "mcp_servers": [configured],
        "permissions": [{ "tool": "mcp__fake__*", "policy": "allow" }],
    });
    let agent = owner.post("/agents", body.clone()).await.ok();
    assert_eq!(agent["mcp_servers"], json!([configured]));
    assert_eq!(owner.post("/agents", body).await.ok()["id"], agent["id"]);
    let steps = json!([{ "tools": [call("echo", "a")] }, { "text": "Done." }]);
    let created = json!({ "agent": "with-servers", "input": { "script": steps } });
    let id = owner.post("/sessions", created).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(outputs(&owner.settled(&id, 1).await), ["echo: a"]);

    let path = format!("/sessions/{id}");
    owner.patch(&path, json!({ "mcp_servers": [] })).await.ok();
    let steps = json!([{ "tools": [call("echo", "b")] }, { "text": "Done." }]);
    steer(owner, &id, &script(steps.clone())).await;
    assert!(outputs(&owner.settled(&id, 2).await)[1].contains("There is no tool"));
    owner.patch(&path, json!({ "mcp_servers": null })).await.ok();
    steer(owner, &id, &script(steps)).await;
    assert_eq!(outputs(&owner.settled(&id, 3).await)[2], "echo: b");
    let repeated = json!({ "mcp_servers": [configured, configured] });
    assert_eq!(owner.patch(&path, repeated).await.error(400)["param"], "mcp_servers[1].name");
    scene.close().await;
}

#[tokio::test]
async fn a_credential_names_the_header_of_its_token() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let fake = McpFake::legacy(vec![tool("echo")], echo).await;
    let credential = json!({
        "provider": "mcp", "base_url": fake.url, "key": "a-token-of-the-test", "key_header": "X-Api-Key",
        "headers": { "x-team": "library" },
    });
    let credential = owner.post("/credentials", credential).await.ok()["id"].clone();
    let steps = json!([{ "tools": [call("echo", "a")] }, { "text": "Done." }]);
    let id = play(owner, json!([server(&fake, json!({ "credential": credential }))]), steps).await;
    assert_eq!(outputs(&owner.settled(&id, 1).await), ["echo: a"]);
    let seen = &fake.seen("tools/call")[0];
    assert_eq!(seen.headers["x-api-key"], "a-token-of-the-test");
    assert_eq!(seen.headers["x-team"], "library");
    assert_eq!(seen.authorization, None);
    scene.close().await;
}

#[tokio::test]
async fn a_grant_does_not_hold_for_another_server() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let one = McpFake::stateless(vec![tool("act")], echo).await;
    let other = McpFake::stateless(vec![tool("act")], echo).await;
    let steps = |word: &str| json!([{ "tools": [call("act", word)] }, { "text": "Done." }]);
    let id = play_by(owner, json!([server(&one, json!({}))]), json!([]), steps("a")).await;
    let action = pending(owner, &id).await;
    confirm(owner, &id, &action, json!({ "decision": "always", "rule": action["always"][0] })).await;
    owner.settled(&id, 1).await;
    steer(owner, &id, &script(steps("b"))).await;
    assert_eq!(outputs(&owner.settled(&id, 2).await), ["act: a", "act: b"], "the grant allows the second");

    // Its address is another one, its name and its tools are the same.
    owner.patch(&format!("/sessions/{id}"), json!({ "mcp_servers": [server(&other, json!({}))] })).await.ok();
    steer(owner, &id, &script(steps("c"))).await;
    let action = pending(owner, &id).await;
    assert_eq!((&action["input"]["word"], other.seen("tools/call").len()), (&json!("c"), 0));
    confirm(owner, &id, &action, json!({ "decision": "reject", "message": "Not there." })).await;
    assert_eq!(outcomes(&owner.settled(&id, 3).await), ["ran", "ran", "not_run"]);
    scene.close().await;
}

#[tokio::test]
async fn only_who_approves_calls_changes_the_servers_of_a_session() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let id = play(owner, json!([]), json!([{ "text": "Done." }])).await;
    owner.settled(&id, 1).await;
    let key = owner.post("/keys", json!({ "name": "writer", "scopes": ["sessions:write"] })).await.ok();
    let writer = scene.service.caller(key["key"].as_str().expect("a key"));
    let change = json!({ "mcp_servers": [{ "name": "a", "url": "https://mcp.example.com", "trust_annotations": true }] });
    let error = writer.patch(&format!("/sessions/{id}"), change.clone()).await.error(403);
    assert!(error.to_string().contains("sessions:approve"), "{error}");
    owner.patch(&format!("/sessions/{id}"), change).await.ok();
    scene.close().await;
}
