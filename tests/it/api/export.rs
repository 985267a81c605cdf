//! Whole sessions: deleted, exported, imported.

use reqwest::Method;
use serde_json::{Value, json};
use sojourn::base::{seal::sha256, text::hex};

use super::{World, data, id, noop};
use crate::{
    fake::receiver::Receiver,
    support::{
        service::{Answer, Caller, send},
        wait::wait_for,
    },
};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

pub(super) async fn export(caller: &Caller, session: &str) -> String {
    let answer = caller.get(&format!("/sessions/{session}/export")).await;
    if answer.status == 200 {
        // Served as an attachment, which browsers do not run.
        assert!(answer.headers["content-disposition"].to_str().expect("text").starts_with("attachment; "));
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["content-security-policy"], "sandbox");
    }
    text(&answer.ok())
}

pub(super) async fn import(caller: &Caller, file: String) -> Answer {
    let request = caller.request(Method::POST, "/sessions/import");
    send(request.header("content-type", "application/x-ndjson").body(file)).await
}

/// The file with a changed line and a matching hash.
pub(super) fn forged(file: &str, forge: impl Fn(&mut Vec<Value>)) -> String {
    let mut lines: Vec<Value> = file.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    lines.pop();
    forge(&mut lines);
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let tail = json!({ "events": lines.len() - 1, "sha256": hex(&sha256(body.as_bytes())) });
    format!("{body}{tail}\n")
}

/// Number of rows of a session, for each table that has some.
async fn rows(world: &World, session: &str) -> Vec<(String, i64)> {
    let mut superuser = world.ground.database.superuser().await;
    let uuid = session.parse::<sojourn::domain::SessionId>().expect("an id").uuid();
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.relname::text from pg_class c
         join pg_attribute a on a.attrelid = c.oid and a.attname = 'session_id'
         where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
         order by 1",
    )
    .fetch_all(&mut superuser)
    .await
    .expect("tables");
    let mut found = Vec::new();
    for table in tables {
        let sql = format!("select count(*) from {table} where session_id = $1");
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(uuid)
            .fetch_one(&mut superuser)
            .await
            .expect("a count");
        if count > 0 {
            found.push((table, count));
        }
    }
    found
}

#[tokio::test]
async fn a_deleted_session_leaves_a_record_and_nothing_else() {
    let world = World::new().await;
    let owner = &world.owner;
    let mut receiver = Receiver::start([]).await;
    let only = json!({ "url": receiver.url().as_str(), "types": ["session.deleted"] });
    owner.post("/webhooks", only).await.ok();
    let agent = owner.inline_agent().await;
    let long = "x".repeat(40 << 10);
    let body = json!({
        "agent": agent, "key": "the key", "webhook": "http://127.0.0.1:9/hook",
        "input": { "script": [{ "text": long }] },
    });
    let created = owner.post("/sessions", body).await.ok();
    let session = id(&created);
    owner.settled(&session, 1).await;
    owner
        .post(&format!("/sessions/{session}/messages"), json!({ "text": "x", "idempotency_key": "k" }))
        .await
        .ok();
    owner.settled(&session, 2).await;
    let blobs = world.ground.data_dir.path().join("blobs");
    // One is the id of the store.
    let has_files = |place: &std::path::Path| walk(place) > 1;
    assert!(has_files(&blobs) && !rows(&world, &session).await.is_empty());
    let path = format!("/sessions/{session}");
    assert_eq!(owner.delete(&path).await.status, 204);
    for answer in
        [owner.get(&path).await, owner.delete(&path).await, owner.get(&format!("{path}/events")).await]
    {
        answer.error(404);
    }
    assert!(!has_files(&blobs), "no blob remains");
    let payload: Value = serde_json::from_slice(&receiver.next().await.body).expect("JSON");
    assert_eq!((&payload["type"], &payload["sessionId"]), (&json!("session.deleted"), &json!(session)));
    // The pending `session.deleted` delivery, and the job that removes remaining blobs.
    let may_stay = ["delivery", "delivery_attempt", "purged_session_blobs", "removal"];
    let left = rows(&world, &session).await;
    assert!(left.iter().all(|(table, _)| may_stay.contains(&table.as_str())), "{left:?}");
    let audit = owner.get(&format!("/audit?target={session}")).await.ok();
    assert_eq!((data(&audit).len(), &data(&audit)[0]["action"]), (1, &json!("session.deleted")));
    let token = world.service.caller(&text(&created["client_token"]));
    token.get(&format!("{path}/events")).await.error(401);
    // Its key can be used again.
    let again = owner.post("/sessions", json!({ "agent": agent, "key": "the key" })).await;
    assert_eq!(again.status, 201);
    assert_ne!(id(&again.body), session);
    world.end().await;
}

/// Number of files below a directory.
fn walk(place: &std::path::Path) -> usize {
    let Ok(entries) = std::fs::read_dir(place) else { return 0 };
    let count = |entry: std::fs::DirEntry| {
        if entry.path().is_dir() { walk(&entry.path()) } else { 1 }
    };
    entries.flatten().map(count).sum()
}

#[tokio::test]
async fn a_running_session_can_be_deleted() {
    let world = World::new().await;
    let session = world.owner.play(json!([{ "text": "Slow.", "delay_ms": 60_000 }])).await;
    world.owner.follow(&session, |event| event["type"] == "turn.started").await;
    assert_eq!(world.owner.delete(&format!("/sessions/{session}")).await.status, 204);
    assert_eq!(data(&world.owner.get("/sessions").await.ok()).len(), 0);
    // The worker is free for other sessions: it stops at its next check.
    let next = world.owner.play(json!([{ "text": "Next." }])).await;
    world.owner.settled(&next, 1).await;
    world.end().await;
}

#[tokio::test]
async fn an_import_may_be_larger_than_other_bodies() {
    let world = World::new().await;
    // Read as a whole and then refused as no export.
    import(&world.owner, "{}\n".repeat(1 << 20)).await.error(400);
    world.end().await;
}

#[tokio::test]
async fn an_environment_is_not_imported() {
    let world = World::new().await;
    let owner = &world.owner;
    let body = json!({ "agent": owner.inline_agent().await, "environment": { "env": { "A": "b" } } });
    let session = id(&owner.post("/sessions", body).await.ok());
    let file = export(owner, &session).await;
    assert!(file.contains(r#""environment":{"#), "{file}");
    // An imported environment is not validated: this one exceeds the limits.
    let file = forged(&file, |lines| {
        lines[1]["body"]["environment"]["config"]["memory"] = json!("900Gi");
    });
    let imported = import(owner, file).await.ok();
    assert!(imported["session"]["environment"].is_null(), "{imported}");
    world.end().await;
}

#[tokio::test]
async fn an_import_has_the_tools_and_the_credential_that_its_agent_has_here() {
    let world = World::new().await;
    let owner = &world.owner;
    let agent = json!({ "name": "reader", "model": "scripted/inline", "prompt": "Read.", "tools": ["read"] });
    let agent = id(&owner.post("/agents", agent).await.ok());
    let session = id(&owner.post("/sessions", json!({ "agent": agent })).await.ok());
    let file = export(owner, &session).await;
    let pinned = |imported: Value| imported["session"]["agent_snapshot"].clone();
    let own = owner.get(&format!("/sessions/{session}")).await.ok()["agent_snapshot"].clone();
    assert_eq!(own["tools"], json!(["read"]));
    let more = forged(&file, |lines| {
        let body = &mut lines[1]["body"];
        body["agent_snapshot"]["tools"] = Value::Null;
        body["agent_snapshot"]["model_options"] = json!({ "max_output_tokens": 1 });
        body["agent_snapshot"]["name"] = json!("another");
        body["credential_id"] = json!("cred_01m8160k2gfj1v6m3x8r0q5tzb");
    });
    assert_eq!(pinned(import(owner, more).await.ok()), own);
    let unknown = forged(&file, |lines| lines[1]["body"]["agent_snapshot"]["model"] = json!("nobody/x"));
    assert_eq!(pinned(import(owner, unknown).await.ok()), Value::Null, "no such session could be created");
    owner.delete(&format!("/agents/{agent}")).await.ok();
    assert_eq!(pinned(import(owner, file).await.ok()), Value::Null, "its agent was deleted");
    world.end().await;
}

#[tokio::test]
async fn what_is_exported_can_be_imported_elsewhere() {
    let world = World::new().await;
    let (owner, stranger) = (&world.owner, &world.stranger);
    let long = "é".repeat(40 << 10);
    let glob = json!({ "tools": [{ "tool": "glob", "input": { "pattern": "*" } }] });
    let session = owner.play(json!([glob, { "text": long }])).await;
    owner.settled(&session, 1).await;
    let file = export(owner, &session).await;
    let hash = file.lines().last().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let body = &file[..file.trim_end().rfind('\n').expect("lines") + 1];
    assert_eq!(hash.expect("a last line")["sha256"], hex(&sha256(body.as_bytes())));
    let imported = import(stranger, file.clone()).await.ok();
    let new = id(&imported);
    assert!(new != session && imported["session"]["source"] == "import");
    assert_eq!(
        (&imported["session"]["status"], &imported["session"]["agent_id"]),
        (&json!("idle"), &Value::Null)
    );
    let log = |page: Value| data(&page).clone();
    let before = log(owner.get(&format!("/sessions/{session}/events?limit=500")).await.ok());
    let after = log(stranger.get(&format!("/sessions/{new}/events?limit=500")).await.ok());
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(
            (&before["type"], &before["ts"], &before["seq"]),
            (&after["type"], &after["ts"], &after["seq"])
        );
        assert_ne!(before["id"], after["id"]);
    }
    let result = stranger.get(&format!("/sessions/{new}/result")).await.ok();
    assert_eq!(result["last_turn"]["yield_reason"], "completed");
    let view = stranger.get(&format!("/sessions/{new}")).await.ok();
    assert_eq!((&view["usage"]["output_tokens"], &view["usage"]["steps"]), (&json!(0), &json!(0)));
    let cost = &view["usage"]["cost"];
    assert_eq!(
        (&cost["total_micros"], &cost["unpriced_steps"]),
        (&json!(0), &json!(0)),
        "another organization was charged"
    );
    let error = stranger.post(&format!("/sessions/{new}/messages"), json!({ "text": "x" })).await.error(409);
    assert_eq!(error["code"], "no_agent", "its agent does not exist in that organization");
    assert_eq!(data(&stranger.get("/audit?action=session.imported").await.ok()).len(), 1);
    // Where the agent exists, the session continues; a second export is equal except for ids.
    let back = id(&import(owner, file).await.ok());
    owner
        .post(&format!("/sessions/{back}/messages"), json!({ "text": "{\"script\":[{\"text\":\"On.\"}]}" }))
        .await
        .ok();
    owner.settled(&back, 2).await;
    assert!(export(owner, &back).await.contains("On."));
    world.end().await;
}

#[tokio::test]
async fn an_invalid_export_file_is_rejected() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    let file = export(owner, &session).await;
    import(owner, file.clone()).await.ok();
    let changed = file.replacen("\"human\"", "\"agent\"", 1);
    let cut = file.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    let twice = forged(&file, |lines| lines.push(lines[1].clone()));
    let gap = forged(&file, |lines| lines[1]["seq"] = json!(2));
    let headless = forged(&file, |lines| lines[1]["type"] = json!("agent.thinking"));
    let unknown = forged(&file, |lines| lines[1]["type"] = json!("what.ever"));
    let other = forged(&file, |lines| lines[0]["format"] = json!("other"));
    let end = json!({ "turn_id": "trn_01jd0000000000000000000000", "yield_reason": "completed", "usage": {
        "input_tokens": 1, "output_tokens": 1, "cache_write_tokens": 0, "cache_read_tokens": 0, "steps": 1,
        "tool_calls": 0 }, "active_seconds": 1 });
    let orphan = forged(&file, |lines| {
        let mut event = lines[1].clone();
        (event["seq"], event["type"], event["body"]) = (json!(2), json!("turn.completed"), end.clone());
        lines.push(event);
    });
    let open = forged(&file, |lines| {
        let mut event = lines[1].clone();
        (event["seq"], event["type"]) = (json!(2), json!("user.message"));
        event["turn_id"] = json!("trn_01jd0000000000000000000000");
        event["body"] = json!({ "text": "x" });
        lines.push(event);
    });
    for bad in [
        changed,
        cut,
        twice,
        gap,
        headless,
        unknown,
        other,
        orphan,
        open,
        String::new(),
        "{}\n{}\n".to_owned(),
    ] {
        let error = import(owner, bad.clone()).await.error(400);
        assert!(text(&error["message"]).starts_with("line "), "{error} for {bad}");
    }
    owner.post("/sessions/import", json!({})).await.error(415);
    assert_eq!(data(&owner.get("/sessions").await.ok()).len(), 2, "a rejected file creates nothing");
    world.end().await;
}

#[tokio::test]
async fn an_archived_session_goes_when_its_time_is_over() {
    let world = World::new().await;
    let owner = &world.owner;
    owner.patch("/organization", json!({ "retention_days": 7 })).await.ok();
    let kept = id(&owner.post("/sessions", json!({})).await.ok());
    let gone = id(&owner.post("/sessions", json!({})).await.ok());
    for session in [&kept, &gone] {
        owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
    }
    let mut superuser = world.ground.database.superuser().await;
    sqlx::query("update session set stopped_at = now() - interval '8 days' where session_id = $1")
        .bind(gone.parse::<sojourn::domain::SessionId>().expect("an id").uuid())
        .execute(&mut superuser)
        .await
        .expect("an update");
    // A worker sweeps at its start.
    let worker = world.ground.serve(&["--role=worker"]).await;
    let path = format!("/sessions/{gone}");
    wait_for("its removal", async || (owner.get(&path).await.status != 200).then_some(())).await;
    owner.get(&format!("/sessions/{kept}")).await.ok();
    let audit = owner.get("/audit?action=session.deleted").await.ok();
    assert_eq!(data(&audit)[0]["details"]["reason"], "retention");
    worker.stop().await;
    world.end().await;
}

const UNKNOWN: &str = "act_01jd0000000000000000000000";

#[tokio::test]
async fn each_action_of_an_import_has_a_new_id_and_one_end() {
    let world = World::new().await;
    let owner = &world.owner;
    let tool =
        json!({ "type": "custom", "name": "t", "description": "d", "input_schema": { "type": "object" } });
    let script = json!([{ "tools": [{ "tool": "t", "input": {} }, { "tool": "t", "input": {} }] }, { "text": "Done." }]);
    let body = json!({ "agent": owner.inline_agent().await, "tools": [tool], "input": { "script": script } });
    let session = id(&owner.post("/sessions", body).await.ok());
    let path = format!("/sessions/{session}");
    owner.until(&path, |session| session["phase"] == "requires_action").await;
    let open = owner.get(&format!("{path}/pending")).await.ok();
    let content = json!([{ "type": "text", "text": "x" }]);
    let answer = |action: &Value| json!({ "type": "user.custom_tool_result", "action_id": action["id"], "content": content });
    let answers: Vec<_> = data(&open).iter().map(answer).collect();
    owner.post(&format!("{path}/events"), json!({ "events": answers })).await.ok();
    owner.settled(&session, 1).await;

    let file = export(owner, &session).await;
    let imported = id(&import(owner, file.clone()).await.ok());
    let log = owner.get(&format!("/sessions/{imported}/events?limit=500&level=internal")).await.ok();
    let ids = |kind: &str, field: &str| -> Vec<String> {
        let of = data(&log).iter().filter(|event| event["type"] == kind);
        of.map(|event| text(event["body"].get(field).unwrap_or(&event[field]))).collect()
    };
    let required = ids("action.required", "id");
    assert_eq!((required.len(), &required), (2, &ids("user.custom_tool_result", "action_id")));
    assert_eq!(ids("action.required", "call_event_id"), ids("tool.call", "id"));
    assert!(data(&open).iter().all(|action| !required.contains(&text(&action["id"]))));

    let at =
        |lines: &[Value], kind: &str| lines.iter().position(|line| line["type"] == kind).expect("an event");
    let removed = |kind: &'static str| {
        forged(&file, move |lines| {
            lines.remove(at(lines, kind));
            let events = lines.iter_mut().skip(1).enumerate();
            events.for_each(|(index, event)| event["seq"] = json!(index + 1));
        })
    };
    let changed = |kind: &'static str, field: &'static str, value: &'static str| {
        forged(&file, move |lines| {
            let place = at(lines, kind);
            lines[place]["body"][field] = json!(value);
        })
    };
    for bad in [
        removed("action.required"),
        removed("user.custom_tool_result"),
        changed("user.custom_tool_result", "action_id", UNKNOWN),
        changed("action.required", "call_id", "another"),
        changed("action.required", "id", UNKNOWN),
        forged(&file, |lines| {
            let place = at(lines, "user.custom_tool_result");
            let first = lines[place]["body"].clone();
            lines[place + 1]["body"] = first;
        }),
        forged(&file, |lines| {
            let place = at(lines, "user.custom_tool_result");
            let closed = json!({ "action_id": lines[place]["body"]["action_id"], "reason": "expired" });
            (lines[place + 1]["type"], lines[place + 1]["body"]) = (json!("action.closed"), closed);
        }),
    ] {
        let error = import(owner, bad).await.error(400);
        assert!(text(&error["message"]).starts_with("line "), "{error}");
    }
    world.end().await;
}

#[tokio::test]
async fn an_imported_session_has_the_agent_of_its_organization() {
    let world = World::new().await;
    let owner = &world.owner;
    let rule = json!({ "tool": "bash", "policy": "deny" });
    let agent = json!({ "name": "bound", "prompt": "p", "model": "scripted/inline", "permissions": [rule] });
    owner.post("/agents", agent).await.ok();
    let made = owner.post("/sessions", json!({ "agent": "bound" })).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    let changed = owner.patch(&format!("/sessions/{id}"), json!({ "tools": ["read"] })).await.ok();
    let file = export(owner, id).await;
    let free = forged(&file, |lines| {
        let change = lines.iter_mut().find(|line| line["type"] == "session.updated").expect("a change");
        change["body"]["agent_snapshot"]["permissions"] = json!({});
        change["body"]["agent_snapshot"]["model"] = json!("openai/any");
    });
    for file in [file, free] {
        let imported = import(owner, file).await.ok()["session"].clone();
        let snapshot = &imported["agent_snapshot"];
        assert_eq!(snapshot["permissions"]["agent"], json!([rule]));
        assert_eq!((&snapshot["model"], &snapshot["tools"]), (&json!("scripted/inline"), &json!(null)));
        assert_eq!(snapshot["revision_id"], changed["agent_snapshot"]["revision_id"]);
    }
    world.end().await;
}

#[tokio::test]
async fn decisions_answers_and_steers_are_imported() {
    let world = World::new().await;
    let owner = &world.owner;
    let question = json!({ "tool": "ask", "input": { "questions": [{ "question": "Where to?" }] } });
    let call = json!({ "tool": "schedule_wake", "input": { "after_seconds": 86_400, "note": "x" } });
    let script = json!([{ "tools": [call, question] }, { "text": "Done." }]);
    let rules = json!([{ "tool": "schedule_wake", "policy": "ask" }]);
    let body = json!({
        "agent": owner.inline_agent().await, "ask": { "mode": "wait" }, "permissions": rules, "input": { "script": script },
    });
    let session = id(&owner.post("/sessions", body).await.ok());
    let path = format!("/sessions/{session}");
    owner.until(&path, |session| session["phase"] == "requires_action").await;
    let open = owner.get(&format!("{path}/pending")).await.ok();
    let event = |action: &Value| match action["kind"].as_str() {
        Some("question") => {
            json!({ "type": "user.answer", "action_id": action["id"], "answers": [{ "text": "there" }] })
        }
        _ => json!({
            "type": "user.tool_confirmation", "action_id": action["id"], "decision": "always", "rule": action["always"][0],
        }),
    };
    let events: Vec<_> = data(&open).iter().map(event).collect();
    assert_eq!(events.len(), 2);
    let steer = json!({ "text": json!({ "script": [{ "text": "Done." }] }).to_string(), "mode": "steer" });
    owner.post(&format!("{path}/messages"), steer).await.ok();
    owner.post(&format!("{path}/events"), json!({ "events": events })).await.ok();
    owner.settled(&session, 1).await;
    let file = export(owner, &session).await;
    let imported = id(&import(owner, file.clone()).await.ok());
    let log = owner.get(&format!("/sessions/{imported}/events?limit=500&level=internal")).await.ok();
    let of = |kind: &str| data(&log).iter().find(|event| event["type"] == kind).expect("it is there").clone();
    assert_eq!(of("user.answer")["body"]["answers"], json!([{ "text": "there" }]));
    assert_eq!(of("permission.granted")["body"]["confirmation_event_id"], of("user.tool_confirmation")["id"]);
    let steered = of("turn.steered");
    let read = data(&log).iter().filter(|event| event["type"] == "user.message").nth(1).expect("a message");
    assert_eq!((&read["processed_at"], &read["turn_id"]), (&steered["ts"], &steered["body"]["from_turn_id"]));
    for seqs in [json!([2]), json!([read["seq"], read["seq"]]), json!([read["seq"], 9_999])] {
        let bad = forged(&file, |lines| {
            let place = lines.iter().position(|line| line["type"] == "turn.steered").expect("an event");
            lines[place]["body"]["seqs"] = seqs.clone();
        });
        let error = import(owner, bad).await.error(400);
        assert!(text(&error["message"]).contains("a message is read once"), "{error}");
    }
    for attempt in [0, 2, i32::MAX] {
        let bad = forged(&file, |lines| {
            let place = lines.iter().position(|line| line["type"] == "turn.started").expect("an event");
            lines[place]["body"]["attempt"] = json!(attempt);
        });
        let error = import(owner, bad).await.error(400);
        assert!(text(&error["message"]).contains("number its attempts from 1"), "{error}");
    }
    world.end().await;
}
