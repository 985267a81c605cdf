//! Imports of files that nobody exported: what a caller could not set, a file does not set either.

use serde_json::{Value, json};

use super::{
    World,
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
            event["id"] = json!(format!("evt_01m8160k2gfj1v6m3x8r0q5t{:02}", lines.len()));
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
