//! Custom tools: a turn waits for the result of its caller, and takes it once.

mod answers;
mod confirmations;
mod kills;
mod questions;
mod registered;

use std::time::Duration;

use serde_json::{Value, json};

use super::{Scene, assert_sound, bash, ends, log, of, outputs, script, session, steer, until};
use crate::support::service::{Answer, Caller};

/// Creates an agent with the custom tool `ask_weather` and all that `more` adds to it, and plays a script.
async fn play(owner: &Caller, more: Value, steps: Value) -> String {
    play_with(owner, more, steps, json!({})).await
}

async fn play_with(owner: &Caller, more: Value, steps: Value, limits: Value) -> String {
    let mut tool = json!({
        "type": "custom", "name": "ask_weather", "description": "The weather of a city.",
        "input_schema": {
            "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"],
            "additionalProperties": false,
        },
    });
    tool.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let agent = owner.inline_agent().await;
    let body = json!({
        "agent": agent, "tools": ["bash", "read", tool], "limits": limits, "input": { "script": steps },
    });
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

fn weather(city: &str) -> Value {
    json!({ "tool": "ask_weather", "input": { "city": city } })
}

/// The open actions of a session, once there are `count` and the turn waits for them.
pub(super) async fn pending(owner: &Caller, id: &str, count: usize) -> Vec<Value> {
    let open = |page: &Value| page["data"].as_array().expect("a page").clone();
    // The actions first: after the last answer the phase stays until a worker continues the turn.
    owner.until(&format!("/sessions/{id}/pending"), |page| open(page).len() >= count).await;
    owner.until(&format!("/sessions/{id}"), |session| session["phase"] == "requires_action").await;
    let open = open(&owner.get(&format!("/sessions/{id}/pending")).await.ok());
    assert_eq!(open.len(), count, "{open:?}");
    open
}

fn result(action: &Value, text: &str) -> Value {
    let content = json!([{ "type": "text", "text": text }]);
    json!({ "type": "user.custom_tool_result", "action_id": action["id"], "content": content })
}

pub(super) async fn answer(owner: &Caller, id: &str, events: Value) -> Answer {
    owner.post(&format!("/sessions/{id}/events"), json!({ "events": events })).await
}

#[tokio::test]
async fn a_turn_waits_for_the_result_of_a_custom_tool_and_holds_nothing() {
    let scene = Scene::open(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [weather("Paris")] }, { "text": "It rains." }]);
    let id = play(owner, json!({}), steps).await;
    let action = pending(owner, &id, 1).await.remove(0);
    assert_eq!((&action["kind"], &action["tool"]), (&json!("tool_result"), &json!("ask_weather")));
    assert_eq!((&action["input"], &action["session_id"]), (&json!({ "city": "Paris" }), &json!(id)));
    let waiting = session(owner, &id).await;
    assert_eq!(
        (&waiting["status"], &waiting["last_turn"]["state"]),
        (&json!("awaiting_input"), &json!("waiting"))
    );
    let metrics = scene.service.metrics().await;
    assert_eq!((metrics["sojourn_jobs_held"], metrics["sojourn_turns{state=\"waiting\"}"]), (0.0, 1.0));
    assert_eq!(metrics["sojourn_actions_open"], 1.0);
    let all = owner.get("/pending?kind=tool_result").await.ok();
    assert_eq!(all["data"], json!([action]));

    let sent = answer(owner, &id, json!([result(&action, "rain")])).await;
    assert_eq!(sent.status, 202);
    let sent = sent.ok();
    assert_eq!(sent["data"][0]["type"], "user.custom_tool_result");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((outputs(&log), ends(&log)), (vec!["rain"], vec!["completed"]));
    let kinds: Vec<_> = log.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    let of_wait: Vec<_> = kinds
        .into_iter()
        .filter(|kind| !["session.created", "user.message", "step.completed", "agent.message"].contains(kind))
        .collect();
    assert_eq!(
        of_wait,
        [
            "turn.started",
            "tool.call",
            "action.required",
            "turn.waiting",
            "user.custom_tool_result",
            "turn.resumed",
            "tool.result",
            "turn.completed",
        ]
    );
    let call = of(&log, "tool.call")[0];
    assert_eq!(of(&log, "action.required")[0]["body"]["call_event_id"], call["id"]);
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "ran");
    // The same result again is the first one; another one comes too late.
    let again = answer(owner, &id, json!([result(&action, "rain")])).await;
    assert_eq!(again.status, 200);
    assert_eq!(again.ok()["data"], sent["data"]);
    let error = answer(owner, &id, json!([result(&action, "sun")])).await.error(409);
    assert_eq!((&error["code"], &error["param"]), (&json!("action_resolved"), &json!("events[0]")));
    assert_eq!(owner.get("/pending").await.ok()["data"], json!([]));
    scene.close().await;
}

#[tokio::test]
async fn read_only_calls_pass_a_custom_one_and_a_changing_call_waits_for_it() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let read = json!({ "tool": "read", "input": { "path": "/etc/hostname" } });
    let calls = json!([weather("Paris"), read, weather("Rome"), bash("echo ran")]);
    let id = play(owner, json!({}), json!([{ "tools": calls }, { "text": "Done." }])).await;
    let open = pending(owner, &id, 2).await;
    let before = log(owner, &id).await;
    let tools = |log: &[Value]| -> Vec<String> {
        of(log, "tool.result")
            .iter()
            .map(|event| event["body"]["tool"].as_str().expect("text").to_owned())
            .collect()
    };
    assert_eq!(tools(&before), ["read"]);
    // One of two: the last call waits for both.
    assert_eq!(answer(owner, &id, json!([result(&open[1], "sun")])).await.status, 202);
    assert_eq!(pending(owner, &id, 1).await[0]["id"], open[0]["id"]);
    assert_eq!(answer(owner, &id, json!([result(&open[0], "rain")])).await.status, 202);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(tools(&log), ["read", "ask_weather", "ask_weather", "bash"]);
    let mut answers = outputs(&log)[1..3].to_vec();
    answers.sort_unstable();
    assert_eq!(answers, ["rain", "sun"]);
    scene.close().await;
}

#[tokio::test]
async fn a_wrong_answer_is_refused_and_changes_nothing() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([
        { "tools": [weather("Paris"), { "tool": "ask_weather", "input": { "town": "Rome" } }] }, { "text": "Done." },
    ]);
    let id = play(owner, json!({}), steps.clone()).await;
    // Arguments that do not fit open nothing.
    let action = pending(owner, &id, 1).await.remove(0);
    let other = play(owner, json!({}), steps).await;
    pending(owner, &other, 1).await;
    let foreign = scene.service.caller(&scene.ground.organization("another").await);

    let never = json!({ "id": "act_01jd0000000000000000000000" });
    answer(owner, &id, json!([result(&never, "x")])).await.error(404);
    answer(owner, &other, json!([result(&action, "x")])).await.error(404);
    answer(&foreign, &id, json!([result(&action, "x")])).await.error(404);
    let large = answer(owner, &id, json!([result(&action, "x"), result(&action, &"x".repeat(30_001))]))
        .await
        .error(400);
    assert_eq!(large["param"], "events[1].content");
    // All or none: the first of them is not appended.
    let head = session(owner, &id).await["head"].clone();
    answer(owner, &id, json!([{ "type": "user.message", "text": "Hello" }, result(&never, "x")]))
        .await
        .error(404);
    assert_eq!(session(owner, &id).await["head"], head);

    let path = format!("/sessions/{id}/pending/{}/claim", action["id"].as_str().expect("an id"));
    let claim = owner.post(&path, json!({ "seconds": 60 })).await.ok();
    assert_eq!(owner.post(&path, json!({})).await.error(409)["code"], "action_claimed");
    assert_eq!(answer(owner, &id, json!([result(&action, "x")])).await.error(409)["code"], "action_claimed");
    let mut claimed = result(&action, "rain");
    claimed["claim"] = claim["claim"].clone();
    assert_eq!(answer(owner, &id, json!([claimed])).await.status, 202);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let results = of(&log, "tool.result");
    let misfit = results.iter().find(|event| event["body"]["outcome"] == "not_run").expect("a misfit");
    assert!(misfit["body"]["output"].as_str().is_some_and(|words| words.contains("\"city\"")), "{misfit}");

    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    assert_eq!(answer(owner, &id, json!([result(&action, "sun")])).await.error(409)["code"], "archived");
    // Before a file of it is stored.
    let file = json!({ "type": "document", "source": { "type": "base64", "data": "MA==" } });
    let with_file =
        json!({ "type": "user.custom_tool_result", "action_id": action["id"], "content": [file] });
    let error = answer(owner, &id, json!([with_file])).await.error(409);
    assert_eq!((&error["code"], &error["param"]), (&json!("archived"), &json!("events[0]")));
    scene.close().await;
}

#[tokio::test]
async fn a_waiting_turn_ends_at_once_with_a_cancel_an_interrupt_a_stop_and_an_archive() {
    let scene = Scene::open(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [weather("Paris"), bash("echo never")] }, { "text": "Never." }]);
    for way in ["cancel", "interrupt", "stop", "archive"] {
        let id = play(owner, json!({}), steps.clone()).await;
        let action = pending(owner, &id, 1).await.remove(0);
        match way {
            "interrupt" => {
                let message = json!({ "text": script(json!([{ "text": "Other." }])), "mode": "interrupt" });
                assert_eq!(owner.post(&format!("/sessions/{id}/messages"), message).await.status, 202);
            }
            way => drop(owner.post(&format!("/sessions/{id}/{way}"), json!({})).await.ok()),
        }
        let log = owner.settled(&id, if way == "interrupt" { 2 } else { 1 }).await;
        assert_sound(&log);
        assert_eq!(ends(&log)[0], "canceled", "{way}");
        let outcomes: Vec<_> =
            of(&log, "tool.result").iter().map(|event| event["body"]["outcome"].clone()).collect();
        assert_eq!(outcomes, ["not_run", "not_run"], "{way}");
        let closed = of(&log, "action.closed");
        assert_eq!(closed.len(), 1, "{way}");
        assert_eq!(closed[0]["body"], json!({ "action_id": action["id"], "reason": "withdrawn" }));
        assert_eq!(owner.get(&format!("/sessions/{id}/pending")).await.ok()["data"], json!([]));
        let code = answer(owner, &id, json!([result(&action, "late")])).await.error(409)["code"].clone();
        assert_eq!(code, if way == "archive" { "archived" } else { "action_resolved" }, "{way}");
    }
    let metrics = scene.service.metrics().await;
    let withdrawn = "sojourn_actions_total{kind=\"tool_result\",outcome=\"withdrawn\"}";
    assert_eq!((metrics[withdrawn], metrics["sojourn_actions_open"]), (4.0, 0.0));
    scene.close().await;
}

#[tokio::test]
async fn an_action_that_nobody_answers_expires_and_its_time_counts_in_no_limit() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [weather("Paris")] }, { "text": "Nobody knows." }]);
    let told =
        play_with(owner, json!({ "expires_seconds": 10 }), steps.clone(), json!({ "turn_seconds": 5 })).await;
    let ended = play(owner, json!({ "expires_seconds": 10, "on_expiry": "end_turn" }), steps).await;
    let action = pending(owner, &told, 1).await.remove(0);
    pending(owner, &ended, 1).await;
    // A message does not disturb the wait; it is read by the next turn.
    steer(owner, &told, &script(json!([{ "text": "Next." }]))).await;

    let log = owner.settled(&told, 2).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed", "completed"]);
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "unknown");
    assert_eq!(of(&log, "action.closed")[0]["body"]["reason"], "expired");
    let waited = of(&log, "turn.resumed")[0]["body"]["waited_ms"].as_u64().expect("a time");
    assert!((9_000..14_000).contains(&waited), "{waited}");
    let active = of(&log, "turn.completed")[0]["body"]["active_seconds"].as_u64().expect("a time");
    assert!(active < 5, "{active}");
    assert_eq!(
        answer(owner, &told, json!([result(&action, "late")])).await.error(409)["code"],
        "action_expired"
    );

    let log = owner.settled(&ended, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["requires_action"]);
    assert_eq!(session(owner, &ended).await["status"], "awaiting_input");
    scene.close().await;
}

#[tokio::test]
async fn a_turn_that_waits_for_the_last_of_several_actions_uses_no_time() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [weather("Paris"), weather("Rome")] }, { "text": "Done." }]);
    let expires = json!({ "expires_seconds": 10 });
    let id = play_with(owner, expires, steps, json!({ "turn_seconds": 4 })).await;
    let open = pending(owner, &id, 2).await;
    assert_eq!(answer(owner, &id, json!([result(&open[0], "rain")])).await.status, 202);
    // Nobody answers the other one.
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    let waited = of(&log, "turn.resumed")[0]["body"]["waited_ms"].as_u64().expect("a time");
    assert!(waited >= 8_000, "{waited}");
    scene.close().await;
}

#[tokio::test]
async fn each_turn_of_a_session_waits_for_its_own_actions() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let steps = json!([{ "tools": [weather("Paris")] }, { "tools": [weather("Rome")] }, { "text": "Done." }]);
    let id = play(owner, json!({}), steps.clone()).await;
    for (turn, message) in [(1, None), (2, Some(script(steps)))] {
        if let Some(message) = message {
            steer(owner, &id, &message).await;
        }
        for city in ["Paris", "Rome"] {
            let path = format!("/sessions/{id}/pending");
            let page = owner.until(&path, |page| page["data"][0]["input"]["city"] == *city).await;
            let action = page["data"][0].clone();
            assert_eq!(answer(owner, &id, json!([result(&action, city)])).await.status, 202);
        }
        assert_sound(&owner.settled(&id, turn).await);
    }
    let log = log(owner, &id).await;
    assert_eq!((outputs(&log), ends(&log)), (vec!["Paris", "Rome", "Paris", "Rome"], vec!["completed"; 2]));
    scene.close().await;
}

#[tokio::test]
async fn a_call_that_waited_for_an_answer_runs_while_another_action_is_open() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let calls = json!([weather("Paris"), bash("echo ran"), weather("Rome")]);
    let id = play(owner, json!({}), json!([{ "tools": calls }, { "text": "Done." }])).await;
    let open = pending(owner, &id, 2).await;
    let paris = open.iter().find(|action| action["input"]["city"] == "Paris").expect("it is open");
    assert_eq!(answer(owner, &id, json!([result(paris, "rain")])).await.status, 202);
    let ran = |event: &Value| event["type"] == "tool.result" && event["body"]["tool"] == "bash";
    owner.follow(&id, ran).await;
    let open = pending(owner, &id, 1).await;
    assert_eq!(open[0]["input"]["city"], "Rome");
    assert_eq!(answer(owner, &id, json!([result(&open[0], "sun")])).await.status, 202);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outputs(&log), ["rain", "ran\n", "sun"]);
    scene.close().await;
}

#[tokio::test]
async fn of_many_racing_results_one_is_taken() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = play(owner, json!({}), json!([{ "tools": [weather("Paris")] }, { "text": "Done." }])).await;
    let action = pending(owner, &id, 1).await.remove(0);
    let racing = (0..100).map(|n| {
        let events = json!([result(&action, &format!("result {n}"))]);
        let (owner, id) = (owner.clone(), id.clone());
        async move { answer(&owner, &id, events).await.status.as_u16() }
    });
    let statuses = futures::future::join_all(racing).await;
    assert_eq!(statuses.iter().filter(|status| **status == 202).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| [202, 409, 429].contains(status)), "{statuses:?}");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(of(&log, "user.custom_tool_result").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn the_sandbox_of_a_waiting_turn_is_hibernated_and_restored() {
    let soon = ["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=0.3"];
    let scene = Scene::open(&soon).await;
    let owner = &scene.owner;
    let steps = json!([
        { "tools": [bash("echo kept > file")] }, { "tools": [weather("Paris")] }, { "tools": [bash("cat file")] },
        { "text": "Done." },
    ]);
    let id = play(owner, json!({}), steps).await;
    let action = pending(owner, &id, 1).await.remove(0);
    let rested = until(owner, &id, "sandbox.terminated").await;
    assert_eq!(of(&rested, "sandbox.terminated")[0]["body"]["reason"], "idle");
    assert_eq!(session(owner, &id).await["phase"], "requires_action");
    assert_eq!(answer(owner, &id, json!([result(&action, "rain")])).await.status, 202);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outputs(&log)[1..], ["rain", "kept\n"]);
    assert_eq!(of(&log, "turn.started").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn a_waiting_turn_needs_no_worker_and_continues_on_another_one() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let steps =
        json!([{ "tools": [bash("echo before")] }, { "tools": [weather("Paris")] }, { "text": "Done." }]);
    let id = play(owner, json!({}), steps).await;
    let first = scene.ground.serve(&["--role=worker"]).await;
    let action = pending(owner, &id, 1).await.remove(0);
    first.stop().await;
    assert_eq!(answer(owner, &id, json!([result(&action, "rain")])).await.status, 202);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(of(&log(owner, &id).await, "tool.result").len(), 1);
    let second = scene.ground.serve(&["--role=worker"]).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outputs(&log)[1], "rain");
    let attempts: Vec<_> =
        of(&log, "turn.started").iter().map(|event| event["body"]["attempt"].clone()).collect();
    assert_eq!(attempts, [1]);
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_tool_that_cannot_work_is_refused_when_it_is_defined() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let tool =
        |schema: Value| json!({ "type": "custom", "name": "t", "description": "d", "input_schema": schema });
    let create = async |tools: Value| {
        owner
            .post("/agents", json!({ "name": "a", "prompt": "", "model": "scripted/demo", "tools": tools }))
            .await
    };
    let endless = json!({ "type": "object", "$defs": { "a": { "items": { "$ref": "#/$defs/a" } } },
                          "properties": { "x": { "$ref": "#/$defs/a" } } });
    let double = |n: usize| json!({ "allOf": [{ "$ref": format!("#/$defs/d{n}") }, { "$ref": format!("#/$defs/d{n}") }] });
    let defs: serde_json::Map<_, _> = (0..20).map(|n| (format!("d{}", n), double(n + 1))).collect();
    let mut defs = Value::Object(defs);
    defs["d20"] = json!({});
    let bomb = json!({ "type": "object", "$defs": defs, "properties": { "x": { "$ref": "#/$defs/d0" } } });
    for schema in [
        json!({ "type": "object", "properties": { "x": { "$ref": "https://example.com/x.json" } } }),
        json!({ "type": "object", "properties": { "x": { "type": "no such type" } } }),
        json!({ "type": "object", "$schema": "http://json-schema.org/draft-07/schema#" }),
        json!({ "type": "object", "properties": { "x": { "type": "string", "pattern": "(" } } }),
        json!({ "type": "object", "description": "x".repeat(17_000) }),
        json!({ "type": "array" }),
        endless,
        bomb,
    ] {
        let error = create(json!(["bash", tool(schema)])).await.error(400);
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("invalid_schema"), &json!("tools[1].input_schema"))
        );
    }
    let named = |name: &str| {
        let mut tool = tool(json!({ "type": "object" }));
        tool["name"] = json!(name);
        tool
    };
    let mut late = tool(json!({ "type": "object" }));
    late["expires_seconds"] = json!("soon");
    for (tools, param) in [
        (json!([late]), "tools[0].expires_seconds"),
        (json!([named("bash")]), "tools[0].name"),
        (json!([named("a b")]), "tools[0].name"),
        (json!([named("mcp__x")]), "tools[0].name"),
        (json!([named("x"), named("x")]), "tools[1]"),
        (json!(["no_such_tool"]), "tools[0]"),
    ] {
        assert_eq!(create(tools).await.error(400)["param"], param);
    }
    // Stored and read back in one order, so that a repeated creation finds the agent.
    let mixed = json!([tool(json!({ "type": "object" })), "bash"]);
    let agent = create(mixed.clone()).await;
    assert_eq!(agent.status, 201);
    let agent = agent.ok();
    assert_eq!((&agent["tools"][0], &agent["tools"][1]["name"]), (&json!("bash"), &json!("t")));
    assert_eq!(create(mixed).await.status, 200);
    scene.close().await;
}
