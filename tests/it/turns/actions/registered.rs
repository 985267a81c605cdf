//! Tools that a caller registers with a session, and the agent gets.

use serde_json::{Value, json};

use super::{answer, pending, result, weather};
use crate::turns::{Scene, assert_sound, ends, outputs, script, steer};

fn tool(more: &Value) -> Value {
    let mut tool = json!({
        "name": "ask_weather", "description": "The weather.", "runs": "caller", "input_schema": { "type": "object" },
    });
    tool.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    tool
}

#[tokio::test]
async fn a_registered_tool_is_the_agents_from_its_next_turn_on() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let custom = json!({
        "type": "custom", "name": "wait_here", "description": "Waits.", "input_schema": { "type": "object" },
    });
    let steps = json!([
        { "tools": [{ "tool": "wait_here", "input": {} }] }, { "tools": [weather("Paris")] }, { "text": "None." },
    ]);
    let body = json!({ "agent": owner.inline_agent().await, "tools": ["bash", custom], "input": { "script": steps } });
    let made = owner.post("/sessions", body).await.ok();
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    let tools = format!("/sessions/{id}/tools");
    let open = pending(owner, &id, 1).await.remove(0);

    // Its turn has the tools of its start.
    let registered = owner.post(&tools, tool(&json!({ "expires_seconds": 60 }))).await.ok();
    assert_eq!((&registered["runs"], &registered["expires_seconds"]), (&json!("caller"), &json!(60)));
    assert_eq!(answer(owner, &id, json!([result(&open, "go on")])).await.status, 202);
    let log = owner.settled(&id, 1).await;
    assert!(outputs(&log)[1].starts_with("There is no tool `ask_weather`"), "{log:?}");

    // The next turn has it.
    let calls = || script(json!([{ "tools": [weather("Rome")] }, { "text": "Done." }]));
    steer(owner, &id, &calls()).await;
    let open = pending(owner, &id, 1).await.remove(0);
    assert_eq!((&open["tool"], &open["input"]), (&json!("ask_weather"), &json!({ "city": "Rome" })));
    assert_eq!(answer(owner, &id, json!([result(&open, "rain")])).await.status, 202);
    let log = owner.settled(&id, 2).await;
    assert_eq!(outputs(&log).last(), Some(&"rain"));

    // The same name again replaces it: now it is only recorded.
    owner.post(&tools, json!({ "name": "ask_weather" })).await.ok();
    steer(owner, &id, &calls()).await;
    let log = owner.settled(&id, 3).await;
    assert!(outputs(&log).last().is_some_and(|output| output.starts_with("There is no tool")), "{log:?}");
    assert_eq!(ends(&log), ["completed"; 3]);
    assert_sound(&log);
    scene.close().await;
}

#[tokio::test]
async fn a_registered_tool_that_the_agent_cannot_have_is_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let custom = json!({
        "type": "custom", "name": "known", "description": "A tool.", "input_schema": { "type": "object" },
    });
    let body = json!({ "agent": owner.inline_agent().await, "tools": ["bash", custom] });
    let made = owner.post("/sessions", body).await.ok();
    let tools = format!("/sessions/{}/tools", made["session"]["id"].as_str().expect("an id"));
    let error = owner.post(&tools, tool(&json!({ "name": "known" }))).await.error(409);
    assert_eq!((&error["code"], &error["param"]), (&json!("tool_exists"), &json!("name")));
    let error = owner.post(&tools, tool(&json!({ "input_schema": { "type": "array" } }))).await.error(400);
    assert_eq!((&error["code"], &error["param"]), (&json!("invalid_schema"), &json!("input_schema")));
    for (more, param) in [
        (json!({ "name": "read" }), "name"),
        (json!({ "name": "two words" }), "name"),
        (json!({ "description": "" }), "description"),
        (json!({ "expires_seconds": 9 }), "expires_seconds"),
        (json!({ "runs": "service" }), "runs"),
    ] {
        assert_eq!(owner.post(&tools, tool(&more)).await.error(400)["param"], param);
    }
    // What is only recorded is the caller's own.
    owner.post(&tools, json!({ "name": "two words", "input_schema": { "type": "array" } })).await.ok();
    // Its tools and those of the agent share their bounds.
    let class = |number: usize| json!({ "type": "string", "pattern": format!(r"^\p{{L}}{number}$") });
    let some = |numbers: std::ops::Range<usize>| -> Value {
        let properties: serde_json::Map<_, _> = numbers.map(|at| (format!("p{at}"), class(at))).collect();
        json!({ "input_schema": { "type": "object", "properties": properties } })
    };
    let mut first = some(0..20);
    first["name"] = json!("first");
    owner.post(&tools, tool(&first)).await.ok();
    let error = owner.post(&tools, tool(&some(20..40))).await.error(400);
    assert_eq!((&error["code"], &error["param"]), (&json!("invalid_schema"), &json!("input_schema")));
    // The same tool again takes the place of the first.
    owner.post(&tools, tool(&first)).await.ok();
    scene.close().await;
}
