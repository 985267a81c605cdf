//! Imports of files that nobody exported: what a caller could not set, a file does not set either.

use serde_json::{Value, json};

use super::{
    World, data,
    export::{export, forged, import},
    id,
};

/// The lines of an exported session without an agent, with more events behind the first.
async fn file(world: &World, more: &[(&str, Value)]) -> String {
    let session = id(&world.owner.post("/sessions", json!({})).await.ok()["session"]);
    let file = export(&world.owner, &session).await;
    forged(&file, |lines| {
        lines.truncate(2);
        for (kind, body) in more {
            let mut event = lines[1].clone();
            (event["type"], event["body"], event["level"]) = (json!(kind), body.clone(), json!("internal"));
            event["seq"] = json!(lines.len());
            event["id"] = json!(format!("evt_01m8160k2gfj1v6m3x8r{:06}", lines.len()));
            lines.push(event);
        }
    })
}

#[tokio::test]
async fn an_import_sets_nothing_that_its_caller_could_not_set() {
    let world = World::still().await;
    let owner = &world.owner;
    let updated = |body: Value| ("session.updated", body);
    for (event, param) in [
        (updated(json!({ "title": "t".repeat(1_000) })), "title"),
        (updated(json!({ "metadata": { "much": "m".repeat(20_000) } })), "metadata"),
        (("session.context_updated", json!({ "env_vars": { "not a name": "x" } })), "env_vars"),
        (("session.context_updated", json!({ "working_dir": "relative" })), "working_dir"),
    ] {
        let error = import(owner, file(&world, &[event]).await).await.error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    let taken = updated(json!({ "slug": "a slug that is not one", "title": "Kept." }));
    let imported = import(owner, file(&world, &[taken]).await).await.ok();
    assert_eq!(
        (&imported["session"]["slug"], &imported["session"]["title"]),
        (&Value::Null, &json!("Kept."))
    );

    let tool = json!({ "name": "bash", "tool_type": "custom", "description": "", "runs": "caller" });
    let imported = import(owner, file(&world, &[("tool.registered", tool)]).await).await.ok();
    let tools = owner.get(&format!("/sessions/{}/tools", id(&imported["session"]))).await.ok();
    assert_eq!((&tools["data"][0]["name"], tools["data"][0].get("runs")), (&json!("bash"), None), "{tools}");
    world.end().await;
}

#[tokio::test]
async fn the_tools_that_a_file_says_a_server_has_are_void() {
    let world = World::still().await;
    let tool = json!({
        "name": "mcp__s__search", "tool": "wipe", "description": "", "input_schema": { "type": "object" },
        "replay": "unsafe",
    });
    let listed = json!({
        "server": "s", "server_hash": "h", "protocol_version": "2026-07-28", "hash": "x", "tools": [tool],
        "ttl_seconds": 86_400,
    });
    let imported = import(&world.owner, file(&world, &[("mcp.listed", listed)]).await).await;
    assert_eq!(imported.status, 201, "{:?}", imported.body);
    let log = export(&world.owner, &id(&imported.ok()["session"])).await;
    assert!(log.contains("mcp__s__search") && log.contains("\"server_hash\":\"\""), "{log}");
    world.end().await;
}

#[tokio::test]
async fn numbers_that_no_session_has_are_refused() {
    let world = World::still().await;
    let ran = |milliseconds: u64| {
        json!({
            "exec_id": "exe_01m8160k2gfj1v6m3x8r0q5tzb", "exit_code": 0, "duration_ms": milliseconds, "stdout": "",
            "stderr": "",
        })
    };
    let twice = [("exec.completed", ran(u64::MAX)), ("exec.completed", ran(u64::MAX))];
    let error = import(&world.owner, file(&world, &twice).await).await.error(400);
    assert_eq!(error["type"], "invalid", "{error}");
    world.end().await;
}

/// Events that register so many tools, each with a description and a schema of these sizes.
fn tools(count: usize, description_bytes: usize, schema_bytes: usize) -> Vec<(&'static str, Value)> {
    let tool = |at: usize| {
        // The JSON around the text has 15 bytes.
        let schema = json!({ "$comment": "s".repeat(schema_bytes - 15) });
        json!({
            "name": format!("tool_{at}"), "tool_type": "custom", "description": "d".repeat(description_bytes),
            "input_schema": schema,
        })
    };
    (0..count).map(|at| ("tool.registered", tool(at))).collect()
}

#[tokio::test]
async fn an_import_has_no_more_tools_and_rules_than_a_session_that_ran_here() {
    let world = World::still().await;
    let owner = &world.owner;
    let imported = import(owner, file(&world, &tools(64, 8 << 10, 16 << 10)).await).await.ok();
    let path = format!("/sessions/{}/tools", id(&imported["session"]));
    let answer = owner.get(&path).await.ok();
    assert_eq!(data(&answer).len(), 64);
    assert!(answer.to_string().len() < 2 << 20, "the largest list of tools");
    let one_more = json!({ "name": "one_more" });
    assert_eq!(owner.post(&path, one_more).await.error(409)["code"], "too_many_tools");

    let tool = json!({ "name": "mcp__s__t", "tool": "t", "description": "", "input_schema": {} });
    let listed = json!({
        "server": "s", "server_hash": "h", "protocol_version": "2026-07-28", "hash": "x", "tools": vec![tool; 129],
        "ttl_seconds": 60,
    });
    let grant = json!({
        "rule": { "tool": "bash", "prefix": "ls", "policy": "allow" }, "schema_hash": "",
        "confirmation_event_id": "evt_01m8160k2gfj1v6m3x8r0q5tzb",
    });
    for (events, words) in [
        (tools(1_000, 0, 20), "line 67: there are 65 registered tools"),
        (tools(1, (8 << 10) + 1, 20), "line 3: `description`"),
        (tools(1, 0, (16 << 10) + 1), "line 3: `input_schema`"),
        (vec![("mcp.listed", listed)], "line 3: there are 129 tools of a server"),
        (vec![("permission.granted", grant); 65], "line 67: there are 65 granted rules"),
        (vec![("session.stopped", json!({ "reason": "r".repeat(201) }))], "line 3: `reason`"),
    ] {
        let error = import(owner, file(&world, &events).await).await.error(400);
        assert!(error["message"].as_str().is_some_and(|message| message.starts_with(words)), "{error}");
    }
    let signed = forged(&file(&world, &[]).await, |lines| {
        lines[1]["actor"]["display"] = json!("d".repeat(301));
    });
    let error = import(owner, signed).await.error(400);
    assert_eq!(error["message"], "line 2: `actor.display` has 301 bytes; at most 300 are allowed");
    world.end().await;
}
