//! Servers that are away, hang, or do not follow the protocol.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::*;
use crate::{
    support::program::Program,
    support::service::{Ground, KEY},
};

#[tokio::test]
async fn an_unsafe_call_without_an_answer_is_made_once_and_its_outcome_is_unknown() {
    let scene = Scene::open(&[PRIVATE]).await;
    for (reply, outcome, said) in [
        (Reply::Cut, "unknown", "gave no result"),
        (Reply::Status(502), "unknown", "gave no result"),
        (Reply::Raw("nonsense"), "unknown", "does not follow the protocol"),
        (Reply::After(Duration::from_secs(5), text("late")), "unknown", "did not answer within 1 s"),
        (
            Reply::Result(json!({
                "resultType": "input_required", "requestState": "s",
                "inputRequests": { "where": { "method": "roots/list" } },
            })),
            "unknown",
            "which are not offered",
        ),
        (Reply::Status(429), "not_run", "The tool did not run"),
        (Reply::Redirect("http://127.0.0.2:9/mcp".to_owned()), "not_run", "another origin"),
        (Reply::Error(-32_000, "no"), "ran", "The server reports an error: no"),
        (
            Reply::Result(json!({ "isError": true, "content": [{ "type": "text", "text": "bad" }] })),
            "ran",
            "bad",
        ),
    ] {
        let shown = format!("{reply:?}");
        let decide = move |_: &str, _: &Value| reply.clone();
        let fake = McpFake::stateless(vec![tool("act")], decide).await;
        let steps = json!([{ "tools": [call("act", "")] }, { "text": "Done." }]);
        let id = play(&scene.owner, json!([server(&fake, json!({ "timeout_seconds": 1 }))]), steps).await;
        let log = scene.owner.settled(&id, 1).await;
        assert_sound(&log);
        assert_eq!((outcomes(&log), ends(&log)), (vec![outcome], vec!["completed"]), "{shown}");
        assert!(outputs(&log)[0].contains(said), "{shown}: {}", outputs(&log)[0]);
        assert_eq!(fake.seen("tools/call").len(), 1, "{shown}");
    }
    scene.close().await;
}

#[tokio::test]
async fn a_call_that_was_not_sent_has_not_run() {
    let scene = Scene::open(&[PRIVATE]).await;
    let fake = McpFake::legacy(vec![tool("act")], echo).await;
    let steps = || json!([{ "tools": [call("act", "a")] }, { "text": "Done." }]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps()).await;
    scene.owner.settled(&id, 1).await;
    // The list is known, and the server does not finish the handshake any more.
    fake.fail(Some(503));
    steer(&scene.owner, &id, &script(steps())).await;
    let log = scene.owner.settled(&id, 2).await;
    assert_eq!(outcomes(&log), ["ran", "not_run"], "{:?}", outputs(&log));
    assert_eq!(fake.seen("tools/call").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn a_call_that_is_safe_to_repeat_is_made_again() {
    let scene = Scene::open(&[PRIVATE]).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let decide = move |_: &str, _: &Value| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::Status(503),
        _ => Reply::Result(text("found")),
    };
    let fake = McpFake::stateless(vec![tool("search")], decide).await;
    let safe = server(&fake, json!({ "replay": { "search": "idempotent" } }));
    let steps = json!([{ "tools": [call("search", "")] }, { "text": "Done." }]);
    let id = play(&scene.owner, json!([safe]), steps).await;
    assert_eq!(outputs(&scene.owner.settled(&id, 1).await), ["found"]);
    let seen = fake.seen("tools/call");
    let named: Vec<_> = seen.iter().map(|seen| &seen.params["_meta"]["sojourn/call_id"]).collect();
    assert!(named.len() == 2 && named[0] == named[1], "{named:?}");
    scene.close().await;
}

#[tokio::test]
async fn a_server_that_is_away_keeps_its_last_list_and_ends_a_turn_that_needs_it() {
    let scene = Scene::open(&[PRIVATE]).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    fake.fail(Some(503));
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), json!([{ "text": "Done." }])).await;
    let log = scene.owner.settled(&id, 1).await;
    let failed = &of(&log, "mcp.failed")[0]["body"];
    assert_eq!((&failed["server"], &failed["code"]), (&json!("fake"), &json!("unreachable")));
    assert_eq!(ends(&log), ["completed"]);

    let needed = server(&fake, json!({ "required": true }));
    let id = play(&scene.owner, json!([needed]), json!([{ "text": "Done." }])).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!(of(&log, "turn.completed")[0]["body"]["error"]["code"], "mcp_unavailable");
    assert_eq!(of(&log, "step.completed").len(), 0, "no model call was paid for");

    // The turn is retried when the server is back.
    fake.fail(None);
    let turn = last_turn(&scene.owner, &id).await["id"].as_str().expect("an id").to_owned();
    scene.owner.post(&format!("/sessions/{id}/turns/{turn}/retry"), json!({})).await.ok();
    assert_eq!(ends(&scene.owner.settled(&id, 2).await), ["error", "completed"]);
    scene.close().await;
}

#[tokio::test]
async fn a_server_that_fails_again_and_again_is_left_alone() {
    let scene = Scene::open(&[PRIVATE]).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    fake.fail(Some(500));
    let mut failures = Vec::new();
    for _ in 0..6 {
        let id = play(&scene.owner, json!([server(&fake, json!({}))]), json!([{ "text": "Done." }])).await;
        let log = scene.owner.settled(&id, 1).await;
        failures.push(of(&log, "mcp.failed")[0].clone());
    }
    for failed in &failures[..5] {
        assert_eq!((&failed["body"]["code"], failed["body"].get("retry_at")), (&json!("unreachable"), None));
    }
    let suspended = &failures[5];
    assert_eq!(suspended["body"]["code"], "suspended");
    let at = |time: &Value| OffsetDateTime::parse(time.as_str().expect("text"), &Rfc3339).expect("a time");
    let left = at(&suspended["body"]["retry_at"]) - at(&suspended["ts"]);
    assert!((1..=30).contains(&left.whole_seconds()), "{suspended}");
    scene.close().await;
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_refused_and_never_connected_to() {
    let scene = Scene::open(&[]).await;
    let agent = scene.owner.inline_agent().await;
    for url in [
        "http://127.0.0.1:9/mcp",
        "https://10.0.0.1/mcp",
        "https://169.254.169.254/",
        "https://localhost:9/mcp",
        "file:///etc",
        "x",
    ] {
        let body = json!({ "agent": agent, "mcp_servers": [{ "name": "bad", "url": url }] });
        let error = scene.owner.post("/sessions", body).await.error(400);
        assert_eq!(error["param"], "mcp_servers[0].url", "{url}: {error}");
    }
    scene.close().await;
}

#[tokio::test]
async fn an_environment_keeps_the_agent_from_all_servers() {
    let fake = McpFake::stateless(vec![tool("search")], echo).await;
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let body = |required: bool, allow: Option<bool>| {
        json!({
            "mcp_servers": [server(&fake, json!({ "required": required }))],
            "environment": { "network": { "allow_mcp_servers": allow.unwrap_or(true) } },
            "permissions": [{ "tool": "mcp__*", "policy": "allow" }],
            "input": { "script": [{ "tools": [call("search", "x")] }, { "text": "Done." }] },
        })
    };
    let play = async |body: Value| {
        let mut body = body;
        body["agent"] = json!(owner.inline_agent().await);
        let made = owner.post("/sessions", body).await.ok();
        owner.settled(made["session"]["id"].as_str().expect("an id"), 1).await
    };
    let log = play(body(false, Some(false))).await;
    let failed = &of(&log, "mcp.failed")[0]["body"];
    assert_eq!(failed["code"], "refused", "{failed}");
    assert!(outputs(&log)[0].starts_with("There is no tool `mcp__fake__search`."), "{}", outputs(&log)[0]);
    assert_eq!(ends(&log), ["completed"]);
    let log = play(body(true, Some(false))).await;
    assert_eq!(of(&log, "turn.completed")[0]["body"]["error"]["code"], "mcp_unavailable");
    assert!(
        fake.seen("server/discover").is_empty() && fake.seen("initialize").is_empty(),
        "nothing was sent"
    );
    assert_eq!(outputs(&play(body(true, None)).await), ["search: x"]);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_killed_worker_is_not_made_twice() {
    let ground = Ground::new().await;
    let settings = [PRIVATE, "--lease-ms=1000"];
    // The calls of the killed worker are never answered.
    let searches = AtomicUsize::new(0);
    let decide = move |name: &str, _: &Value| match name {
        "search" if searches.fetch_add(1, Ordering::SeqCst) > 0 => Reply::Result(text("read")),
        _ => Reply::After(Duration::from_secs(600), text("late")),
    };
    let fake = McpFake::stateless(vec![tool("slow"), tool("search")], decide).await;
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let slow = json!({ "replay": { "search": "read_only" }, "timeout_seconds": 600 });
    let configured = server(&fake, slow);
    let mut ids = Vec::new();
    for name in ["slow", "search"] {
        let steps = json!([{ "tools": [call(name, "")] }, { "text": "Done." }]);
        ids.push(play(&caller, json!([configured.clone()]), steps).await);
    }
    crate::support::wait::wait_for("both calls", async || (fake.seen("tools/call").len() == 2).then_some(()))
        .await;
    program.kill();
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    let log = caller.settled(&ids[0], 1).await;
    assert_sound(&log);
    assert_eq!((outcomes(&log), ends(&log)), (vec!["unknown"], vec!["completed"]));
    let log = caller.settled(&ids[1], 1).await;
    assert_eq!((outputs(&log), outcomes(&log)), (vec!["read"], vec!["ran"]));
    let calls = fake.seen("tools/call");
    let of = |name: &str| calls.iter().filter(|seen| seen.params["name"] == name).count();
    assert_eq!((of("slow"), of("search")), (1, 2));
    program.kill();
}

#[tokio::test]
async fn notifications_before_a_result_are_read_and_a_flood_of_them_ends_the_connection() {
    let scene = Scene::open(&[PRIVATE]).await;
    let decide = |name: &str, _: &Value| {
        let note = json!({
            "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": "working" },
        });
        let count = if name == "flood" { 30_000 } else { 3 };
        Reply::Stream(vec![note; count], text("done"))
    };
    let fake = McpFake::legacy(vec![tool("talk"), tool("flood")], decide).await;
    let steps =
        json!([{ "tools": [call("talk", "")] }, { "tools": [call("flood", "")] }, { "text": "Done." }]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!(
        (outcomes(&log), ends(&log)),
        (vec!["ran", "unknown"], vec!["completed"]),
        "{:?}",
        outputs(&log)
    );
    scene.close().await;
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_and_the_turn_goes_on() {
    let scene = Scene::open(&[PRIVATE]).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    fake.hang();
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), json!([{ "text": "Done." }])).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!(
        (&of(&log, "mcp.failed")[0]["body"]["code"], ends(&log)),
        (&json!("timeout"), vec!["completed"])
    );
    // A cancel does not wait for it.
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), json!([{ "text": "Done." }])).await;
    until(&scene.owner, &id, "turn.started").await;
    scene.owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!((of(&log, "mcp.failed").len(), ends(&log)), (0, vec!["canceled"]));
    scene.close().await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_not_read() {
    let scene = Scene::open(&[PRIVATE]).await;
    let decide = |_: &str, _: &Value| Reply::Result(text(&"x".repeat(9 << 20)));
    let fake = McpFake::stateless(vec![tool("flood")], decide).await;
    let steps = json!([{ "tools": [call("flood", "")] }, { "text": "Done." }]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!((outcomes(&log), ends(&log)), (vec!["unknown"], vec!["completed"]));
    assert!(outputs(&log)[0].contains("maximum size of 8388608 bytes"), "{}", outputs(&log)[0]);
    scene.close().await;
}
