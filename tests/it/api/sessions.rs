//! Sessions: create, change, list, archive.

use futures::future::join_all;
use serde_json::json;

use super::{World, data, id, noop};

#[tokio::test]
async fn a_session_starts_with_text_or_an_object() {
    let world = World::still().await;
    let owner = &world.owner;
    let agent = id(&owner.post("/agents", noop("a")).await.ok());
    let object = json!({ "text": "do it", "refs": { "pr": 7 }, "extra": { "deep": [1, "é", null] } });
    for (input, text, refs) in
        [(json!("do it"), "do it", json!({})), (object.clone(), "do it", json!({ "pr": 7 }))]
    {
        let created = owner.post("/sessions", json!({ "agent": agent, "input": input })).await;
        assert_eq!(created.status, 201);
        let session = &created.body["session"];
        assert_eq!((&session["status"], &session["phase"]), (&json!("queued"), &json!(null)));
        assert_eq!(session["last_turn"]["state"], "queued");
        assert_eq!(session["agent_id"], agent.as_str());
        assert_eq!(session["agent_snapshot"]["name"], "a");
        let messages = owner.get(&format!("/sessions/{}/messages", id(session))).await.ok();
        let event = &data(&messages)[0];
        assert_eq!((&event["body"]["text"], &event["refs"]), (&json!(text), &refs));
        let whole = if input.is_object() { object.clone() } else { json!(null) };
        assert_eq!(event["body"]["input"], whole, "verbatim");
        assert_eq!(event["processed_at"], json!(null), "no turn has taken it");
    }
    for bad in [json!(7), json!(["x"]), json!(""), json!({ "text": 7 })] {
        let error = owner.post("/sessions", json!({ "agent": agent, "input": bad })).await.error(400);
        assert_eq!(error["param"], "input");
    }
    world.end().await;
}

#[tokio::test]
async fn a_session_without_input_waits_and_one_without_agent_is_a_log() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let waiting =
        owner.post("/sessions", json!({ "agent": "a", "title": "t", "metadata": { "k": [1] } })).await.ok();
    let session = &waiting["session"];
    assert_eq!((&session["status"], &session["phase"]), (&json!("idle"), &json!("pending")));
    assert_eq!((&session["title"], &session["metadata"]), (&json!("t"), &json!({ "k": [1] })));
    assert_eq!(session["last_turn"], json!(null));
    assert_eq!(session["context"], json!({ "working_dir": null, "env_vars": {}, "custom_state": {} }));
    let bare = owner.post("/sessions", json!({})).await.ok();
    let path = format!("/sessions/{}/messages", id(&bare));
    assert_eq!(owner.post(&path, json!({ "text": "anyone?" })).await.error(409)["code"], "no_agent");
    let error = owner.post("/sessions", json!({ "input": "hi" })).await.error(400);
    assert_eq!(error["param"], "agent");
    let error = owner.post("/sessions", json!({ "agent": "nobody" })).await.error(404);
    assert_eq!(error["param"], "agent");
    world.end().await;
}

#[tokio::test]
async fn the_phase_follows_the_sandbox() {
    let world = World::still().await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    let path = format!("/sessions/{session}");
    let phase = async || owner.get(&path).await.ok()["phase"].clone();
    assert_eq!(phase().await, "pending");
    // No worker serves it, so the command waits for its sandbox.
    let request = owner.request(reqwest::Method::POST, &format!("{path}/exec")).header("Prefer", "wait=0");
    let asked = crate::support::service::send(request.json(&json!({ "command": "true" }))).await;
    assert_eq!((asked.status.as_u16(), phase().await), (202, json!("creating_sandbox")));
    let row = "insert into sandbox (org_id, sandbox_id, session_id, node_id, state)
               select org_id, gen_random_uuid(), session_id, gen_random_uuid(), 'live' from session";
    let rotated = "update sandbox set state = 'ending', ending = 'rotated'";
    for (statement, expected) in [
        (row, json!("creating_sandbox")),
        ("update sandbox set is_announced = true", json!(null)),
        (rotated, json!("rotating")),
        ("update sandbox set state = 'ended', ended_at = now()", json!(null)),
        (row, json!("rotating")),
        ("update sandbox set is_announced = true", json!(null)),
    ] {
        world.ground.sql(statement).await;
        assert_eq!(phase().await, expected, "{statement}");
    }
    world.end().await;
}

#[tokio::test]
async fn sessions_of_one_agent_have_its_snapshot_together() {
    let world = World::still().await;
    let owner = &world.owner;
    let revision = json!({ "prompt": "Do nothing at all." });
    let agent = id(&owner.post("/agents", noop("a")).await.ok());
    let first = owner.post("/sessions", json!({ "agent": "a" })).await.ok();
    let second = owner.post("/sessions", json!({ "agent": "a" })).await.ok();
    owner.patch(&format!("/agents/{agent}"), revision).await.ok();
    let later = owner.post("/sessions", json!({ "agent": "a" })).await.ok();
    let mut superuser = world.ground.database.superuser().await;
    let kept: (i64, i64) = sqlx::query_as(
        "select (select count(*) from agent_snapshot), count(distinct snapshot_id) from session",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("counts");
    assert_eq!(kept, (2, 2), "snapshots, referenced snapshots");
    for (created, number) in [(first, 1), (second, 1), (later, 2)] {
        let session = &created["session"];
        let read = owner.get(&format!("/sessions/{}", id(session))).await.ok();
        assert_eq!(read["agent_snapshot"], session["agent_snapshot"]);
        assert_eq!(read["agent_snapshot"]["revision"], number);
    }
    let listed = owner.get("/sessions").await.ok();
    assert!(data(&listed).iter().all(|session| session["agent_snapshot"]["name"] == "a"));
    world.end().await;
}

#[tokio::test]
async fn fields_that_are_unknown_or_not_built_are_refused_by_name() {
    let world = World::still().await;
    let owner = &world.owner;
    let session = id(&owner.post("/sessions", json!({})).await.ok());
    for (path, body, param) in [
        ("/sessions".to_owned(), json!({ "parent": "ses_1" }), "parent"),
        ("/sessions".to_owned(), json!({ "environment": { "gpus": 1 } }), "environment.gpus"),
        ("/sessions".to_owned(), json!({ "limits": { "coffee": 1 } }), "limits.coffee"),
        (
            "/sessions".to_owned(),
            json!({ "destinations": [{ "url": "https://a.example", "x": 1 }] }),
            "destinations[0].x",
        ),
        (format!("/sessions/{session}/messages"), json!({ "text": "x", "priority": 1 }), "priority"),
        (
            format!("/sessions/{session}/messages"),
            json!({ "envelope": { "text": "x", "y": 1 } }),
            "envelope.y",
        ),
        (format!("/sessions/{session}/client-tokens"), json!({ "scope": "read" }), "scope"),
        (format!("/sessions/{session}/cancel"), json!({ "now": true }), "now"),
    ] {
        let error = owner.post(&path, body).await.error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    // An array is not an object, although serde would read its items as the fields in order.
    for (path, body, param) in [
        ("/sessions", json!({ "limits": [1] }), "limits"),
        ("/sessions", json!({ "destinations": [["https://a.example"]] }), "destinations[0]"),
        (
            "/agents",
            json!({ "name": "a", "prompt": "", "model": "scripted/noop", "model_options": [] }),
            "model_options",
        ),
    ] {
        assert_eq!(owner.post(path, body).await.error(400)["param"], param);
    }
    let error = owner.patch(&format!("/sessions/{session}"), json!({ "status": "idle" })).await.error(400);
    assert_eq!(error["param"], "status");
    let error = owner
        .patch(&format!("/sessions/{session}"), json!({ "limits": { "tokens": u64::MAX } }))
        .await
        .error(400);
    assert_eq!(error["param"], "limits");
    let big = json!({ "metadata": { "x": "y".repeat(17 << 10) } });
    assert_eq!(owner.post("/sessions", big).await.error(400)["param"], "metadata");
    world.end().await;
}

#[tokio::test]
async fn a_patch_changes_what_it_names() {
    let world = World::still().await;
    let owner = &world.owner;
    let session =
        id(&owner.post("/sessions", json!({ "title": "old", "limits": { "turns": 3 } })).await.ok());
    let path = format!("/sessions/{session}");
    let patched = owner.patch(&path, json!({ "metadata": { "a": 1 }, "limits": { "tokens": 9 } })).await.ok();
    assert_eq!((&patched["title"], &patched["metadata"]), (&json!("old"), &json!({ "a": 1 })));
    assert_eq!(patched["limits"], json!({ "tokens": 9, "turns": 3 }));
    assert_eq!(owner.patch(&path, json!({ "title": null })).await.ok()["title"], json!(null));
    let head = owner.get(&path).await.ok()["head"].clone();
    assert_eq!(owner.patch(&path, json!({ "title": null })).await.ok()["head"], head, "nothing changed");
    assert_eq!(owner.patch(&path, json!({})).await.ok()["head"], head);
    // Two concurrent changes of different limits do not undo each other.
    let raises = [
        json!({ "tokens": 100 }),
        json!({ "turns": 200 }),
        json!({ "steps": 300 }),
        json!({ "turn_seconds": 400 }),
    ];
    join_all(raises.map(|limits| owner.patch(&path, json!({ "limits": limits })))).await;
    let limits = owner.get(&path).await.ok()["limits"].clone();
    assert_eq!(limits, json!({ "tokens": 100, "turns": 200, "steps": 300, "turn_seconds": 400 }));
    world.end().await;
}

#[tokio::test]
async fn an_archived_session_is_read_only() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let body = json!({ "agent": "a", "input": "x", "key": "k" });
    let session = id(&owner.post("/sessions", body.clone()).await.ok());
    let path = format!("/sessions/{session}");
    let archived = owner.post(&format!("{path}/archive"), json!({})).await.ok();
    assert_eq!(
        (&archived["status"], &archived["last_turn"]["yield_reason"]),
        (&json!("archived"), &json!("canceled"))
    );
    let again = owner.post(&format!("{path}/archive"), json!({})).await.ok();
    assert_eq!(again, archived, "archiving twice changes nothing");
    for (end, body) in [
        ("messages", json!({ "text": "x" })),
        ("client-tokens", json!({})),
        ("destinations", json!({ "url": "https://receiver.example/" })),
    ] {
        assert_eq!(owner.post(&format!("{path}/{end}"), body).await.error(409)["code"], "archived");
    }
    assert_eq!(owner.patch(&path, json!({ "title": "x" })).await.error(409)["code"], "archived");
    assert_eq!(owner.get(&path).await.ok(), archived);
    owner.get(&format!("{path}/events")).await.ok();
    // Its key still identifies it, and nothing reopens it.
    let again = owner.post("/sessions", body).await;
    assert_eq!((again.status.as_u16(), &again.body["client_token"]), (200, &json!(null)));
    world.end().await;
}

#[tokio::test]
async fn a_list_shows_what_its_filters_name() {
    let world = World::still().await;
    let owner = &world.owner;
    let agent = id(&owner.post("/agents", noop("a")).await.ok());
    let one = id(&owner
        .post("/sessions", json!({ "agent": "a", "metadata": { "team": "red", "n": 1 } }))
        .await
        .ok());
    let two = id(&owner.post("/sessions", json!({ "agent": "a", "input": "x", "key": "k 2" })).await.ok());
    let three =
        id(&owner.post("/sessions", json!({ "metadata": { "team": "red", "": "empty" } })).await.ok());
    owner.post(&format!("/sessions/{three}/archive"), json!({})).await.ok();
    let middle =
        owner.get(&format!("/sessions/{two}")).await.ok()["created_at"].as_str().expect("a time").to_owned();
    for (query, expected) in [
        (String::new(), vec![&three, &two, &one]),
        ("status=queued".to_owned(), vec![&two]),
        ("status=archived".to_owned(), vec![&three]),
        (format!("agent={agent}"), vec![&two, &one]),
        ("key=k%202".to_owned(), vec![&two]),
        ("metadata[team]=red".to_owned(), vec![&three, &one]),
        ("metadata%5Bteam%5D=red&metadata[n]=1".to_owned(), vec![&one]),
        ("metadata[team]=blue".to_owned(), vec![]),
        ("metadata[]=empty".to_owned(), vec![&three]),
        (format!("after={middle}"), vec![&three]),
        (format!("before={middle}"), vec![&one]),
    ] {
        let list = owner.get(&format!("/sessions?{query}")).await.ok();
        assert_eq!(
            data(&list).iter().map(id).collect::<Vec<_>>(),
            expected.into_iter().cloned().collect::<Vec<_>>(),
            "{query}"
        );
    }
    for (query, param) in [
        ("status=asleep", "status"),
        ("metadata[team][name]=red", "metadata[team][name]"),
        ("colour=red", "colour"),
        ("metadata=red", "metadata"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("after=yesterday", "after"),
        ("cursor=AAAA", "cursor"),
    ] {
        let error = owner.get(&format!("/sessions?{query}")).await.error(400);
        assert_eq!(error["param"], param, "{query}: {error}");
    }
    let error = owner.get("/sessions?key=%00").await.error(400);
    assert!(error["message"].as_str().unwrap_or_default().contains("U+0000"), "{error}");
    world.end().await;
}

/// An error without the field that differs between requests.
fn without_request(mut error: serde_json::Value) -> serde_json::Value {
    error["request_id"] = serde_json::Value::Null;
    error
}

/// Paths below a session that every session has.
const SESSION_PAGES: [&str; 13] = [
    "",
    "/events",
    "/messages",
    "/turns",
    "/result",
    "/steps",
    "/usage",
    "/sources",
    "/context",
    "/tools",
    "/checkpoints",
    "/destinations",
    "/deliveries",
];

#[tokio::test]
async fn a_name_or_slug_works_wherever_the_id_does() {
    let world = World::still().await;
    let (owner, stranger) = (&world.owner, &world.stranger);
    let agent = id(&owner.post("/agents", noop("code reviewer")).await.ok());
    let environment = id(&owner.post("/environments", json!({ "name": "small one" })).await.ok());
    let body = json!({ "agent": "code reviewer", "slug": "release-7", "input": "x" });
    let created = owner.post("/sessions", body).await.ok();
    let session = id(&created);
    for (by_id, by_name) in [
        (format!("/agents/{agent}"), "/agents/code%20reviewer".to_owned()),
        (format!("/environments/{environment}"), "/environments/small%20one".to_owned()),
        (format!("/sessions/{session}"), "/sessions/release-7".to_owned()),
    ] {
        let ends: &[&str] = match by_id.split('/').nth(1) {
            Some("agents") => &["", "/revisions", "/schedules", "/hooks"],
            Some("sessions") => &SESSION_PAGES,
            _ => &[""],
        };
        for end in ends {
            let (one, other) =
                (owner.get(&format!("{by_id}{end}")).await, owner.get(&format!("{by_name}{end}")).await);
            assert_eq!(one.ok(), other.ok(), "{by_name}{end}");
            let foreign = stranger.get(&format!("{by_name}{end}")).await.error(404);
            let unknown = stranger.get(&format!("{by_id}{end}")).await.error(404);
            assert_eq!(without_request(foreign), without_request(unknown), "{by_name}{end}");
        }
        stranger.patch(&by_name, json!({})).await.error(404);
        owner.patch(&by_name, json!({})).await.ok();
    }
    let turn = data(&owner.get("/sessions/release-7/turns").await.ok())[0]["id"].clone();
    let turn = turn.as_str().expect("an id");
    assert_eq!(owner.get(&format!("/sessions/release-7/turns/{turn}")).await.ok()["id"], turn);
    let message = json!({ "text": "More." });
    assert_eq!(
        owner.post("/sessions/release-7/messages", message.clone()).await.ok()["session"]["id"],
        session
    );
    stranger.post("/sessions/release-7/messages", message.clone()).await.error(404);
    let token = world.service.caller(created["client_token"].as_str().expect("a token"));
    token.post("/sessions/release-7/messages", message).await.ok();
    owner.post("/sessions", json!({ "slug": "another" })).await.ok();
    token.get("/sessions/another/events").await.error(404);
    let of_agent = owner.get("/sessions?agent=code%20reviewer").await.ok();
    assert_eq!((data(&of_agent).len(), id(&data(&of_agent)[0])), (1, session.clone()));
    for parent in [session.as_str(), "release-7"] {
        let child = owner.post("/sessions", json!({ "parent_session_id": parent })).await.ok();
        assert_eq!(child["session"]["parent_session_id"], session);
        owner.post(&format!("/sessions/{}/archive", id(&child)), json!({})).await.ok();
    }
    let strangers = stranger.post("/sessions", json!({ "parent_session_id": "release-7" })).await.error(404);
    assert_eq!(strangers["param"], "parent_session_id");
    assert_eq!(data(&owner.get("/sessions?parent_session_id=release-7").await.ok()).len(), 2);
    owner.get("/sessions?agent=nobody").await.error(404);
    owner.get("/usage?agent=code%20reviewer").await.ok();
    owner.delete("/environments/small%20one").await.ok();
    owner.delete("/agents/code%20reviewer").await.ok();
    // A slug names a session until it is archived.
    assert_eq!(owner.post("/sessions/release-7/cancel", json!({})).await.ok()["id"], session);
    owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
    owner.get("/sessions/release-7").await.error(404);
    world.end().await;
}

#[tokio::test]
async fn archiving_by_slug_can_be_repeated() {
    let world = World::still().await;
    let owner = &world.owner;
    let archive = |session: &str| {
        let path = format!("/sessions/{session}/archive");
        async move { owner.post(&path, json!({})).await }
    };
    let first = id(&owner.post("/sessions", json!({ "slug": "release-7" })).await.ok());
    let by_slug = archive("release-7").await.ok();
    assert_eq!((&by_slug["id"], &by_slug["status"]), (&json!(first), &json!("archived")));
    assert_eq!(archive("release-7").await.ok(), archive(&first).await.ok());
    // Only this request finds an archived session by its slug; an open one has precedence.
    owner.get("/sessions/release-7").await.error(404);
    world.stranger.post("/sessions/release-7/archive", json!({})).await.error(404);
    let second = id(&owner.post("/sessions", json!({ "slug": "release-7" })).await.ok());
    for _ in 0..2 {
        assert_eq!(archive("release-7").await.ok()["id"], second);
    }
    for unknown in ["never", "%00", "release-7%00", "%ff"] {
        archive(unknown).await.error(404);
    }
    world.end().await;
}

#[tokio::test]
async fn an_envelope_takes_its_conversation_as_an_object_or_a_string() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    let path = format!("/sessions/{session}/messages");
    let envelope = |conversation: serde_json::Value| json!({ "envelope": { "text": "x", "conversation": conversation } });
    let sent = [json!("C123"), json!({ "source": "slack", "ref": "C123/17" })];
    for conversation in &sent {
        owner.post(&path, envelope(conversation.clone())).await.ok();
    }
    let messages = owner.get(&path).await.ok();
    let stored: Vec<_> =
        data(&messages).iter().map(|event| event["body"]["envelope"]["conversation"].clone()).collect();
    assert_eq!(stored, sent, "stored as it was sent");
    for wrong in
        [json!(7), json!({}), json!({ "source": "slack" }), json!({ "source": "slack", "ref": "C", "x": 1 })]
    {
        let error = owner.post(&path, envelope(wrong.clone())).await.error(400);
        assert_eq!(error["param"], "envelope.conversation", "{wrong}: {error}");
    }
    let empty = envelope(json!({ "source": "slack", "ref": "" }));
    let param = owner.post(&path, empty).await.error(400)["param"].clone();
    assert!(param.as_str().is_some_and(|param| param.starts_with("envelope.conversation")), "{param}");
    world.end().await;
}
