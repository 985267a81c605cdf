//! Structured output: a turn with an output schema completes only with an output that fits it.

use serde_json::{Value, json};

use super::{Scene, assert_sound, bash, ends, last_turn, log, of, outputs, script, steer};
use crate::support::service::Caller;

/// Schema of `{"city": "...", "degrees": 1}`.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "type": "string", "pattern": "^[A-Z]" }, "degrees": { "type": "integer" } },
        "required": ["city", "degrees"],
        "additionalProperties": false,
    })
}

fn submit(input: &Value) -> Value {
    json!({ "tools": [{ "tool": "submit_output", "input": input }] })
}

/// Creates a session whose agent plays `steps`, with more fields of the request.
async fn play(owner: &Caller, more: Value, steps: Value) -> String {
    let mut body = json!({ "agent": owner.inline_agent().await, "input": { "script": steps } });
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn an_output_that_fits_is_the_result_of_its_turn() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let output = json!({ "city": "Rome", "degrees": 21 });
    let mut calls = submit(&output);
    calls["tools"].as_array_mut().expect("calls").push(bash("echo beside"));
    let steps = json!([{ "text": "I look.", "tools": [bash("echo look")] }, calls, { "text": "never" }]);
    let id = play(owner, json!({ "output_schema": schema() }), steps).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outputs(&log), ["look\n", "The output was accepted.", "beside\n"]);
    let end = of(&log, "turn.completed")[0];
    assert_eq!((&end["body"]["yield_reason"], &end["body"]["output"]), (&json!("completed"), &output));
    let result = owner.get(&format!("/sessions/{id}/result")).await.ok();
    assert_eq!((&result["output"], &result["output_repairs"]), (&output, &json!(0)));
    assert_eq!(result["last_turn"]["output"], output);
    let body = &result["result"]["body"];
    assert_eq!((&body["output"], &body["text"]), (&output, &json!(output.to_string())));
    let turn = owner
        .get(&format!("/sessions/{id}/turns/{}", result["last_turn"]["id"].as_str().expect("an id")))
        .await
        .ok();
    assert_eq!(turn["output"], output);

    // The next turn needs one too.
    steer(owner, &id, &script(json!([{ "text": "No." }, submit(&json!({ "city": "Oslo", "degrees": 2 }))])))
        .await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(of(&log, "output.rejected")[0]["body"]["faults"], json!(["no output was submitted"]));
    let result = owner.get(&format!("/sessions/{id}/result")).await.ok();
    assert_eq!((&result["output"]["city"], &result["output_repairs"]), (&json!("Oslo"), &json!(1)));
    scene.close().await;
}

#[tokio::test]
async fn an_output_is_repaired_a_bounded_number_of_times() {
    let scene = Scene::open(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = &scene.owner;
    let bad = json!({ "city": "rome", "degrees": "many", "more": 1 });
    let good = json!({ "city": "Rome", "degrees": 21 });
    let steps = json!([submit(&bad), submit(&bad), submit(&good)]);
    let id = play(owner, json!({ "output_schema": schema() }), steps.clone()).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    let faults = of(&log, "output.rejected")[0]["body"]["faults"].as_array().expect("faults").clone();
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert!(outputs(&log)[0].starts_with("The output does not fit its schema"));
    assert_eq!(owner.get(&format!("/sessions/{id}/result")).await.ok()["output_repairs"], 2);

    let id = play(owner, json!({ "output_schema": schema(), "output_repairs": 1 }), steps).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let end = &of(&log, "turn.completed")[0]["body"];
    assert_eq!(
        (&end["yield_reason"], &end["error"]["code"]),
        (&json!("output_invalid"), &json!("output_invalid"))
    );
    assert_eq!((end.get("output"), end.get("result_event_id")), (None, None));
    let turn = last_turn(owner, &id).await;
    assert_eq!(turn["state"], "error");
    let result = owner.get(&format!("/sessions/{id}/result")).await.ok();
    assert_eq!((&result["output"], &result["result"]), (&json!(null), &json!(null)));
    assert_eq!((&result["output_repairs"], &end["output_repairs"]), (&json!(2), &json!(2)));

    // The next turn is not told to submit anything.
    owner.patch(&format!("/sessions/{id}"), json!({ "output_schema": null })).await.ok();
    steer(owner, &id, &script(json!([{ "text": "Free." }]))).await;
    assert_eq!(ends(&owner.settled(&id, 2).await).last(), Some(&"completed"));

    // Without a call, and without repairs.
    let id =
        play(owner, json!({ "output_schema": schema(), "output_repairs": 0 }), json!([{ "text": "Done." }]))
            .await;
    assert_eq!(ends(&owner.settled(&id, 1).await), ["output_invalid"]);
    let metrics = scene.service.metrics().await;
    assert_eq!(metrics["sojourn_outputs_total{outcome=\"accepted\"}"], 1.0);
    assert_eq!(metrics["sojourn_outputs_total{outcome=\"rejected\"}"], 5.0);
    scene.close().await;
}

#[tokio::test]
async fn the_newest_schema_wins_and_other_ends_keep_their_reasons() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let word =
        json!({ "type": "object", "properties": { "word": { "const": "yes" } }, "required": ["word"] });
    let id = play(
        owner,
        json!({ "output_schema": schema() }),
        json!([{ "tools": [{ "tool": "ask", "input": { "question": "Which?" } }] }]),
    )
    .await;
    assert_eq!(ends(&owner.settled(&id, 1).await), ["needs_input"]);

    // A message's own schema holds for its turn.
    let path = format!("/sessions/{id}/messages");
    let text = script(json!([submit(&json!({ "word": "no" })), submit(&json!({ "word": "yes" }))]));
    owner.post(&path, json!({ "text": text, "output_schema": word })).await.ok();
    let log = owner.settled(&id, 2).await;
    assert_eq!(of(&log, "turn.completed")[1]["body"]["output"], json!({ "word": "yes" }));
    let path = format!("/sessions/{id}/events");
    let text = script(json!([submit(&json!({ "word": "yes" }))]));
    let event = json!({ "type": "user.message", "text": text, "output_schema": word });
    owner.post(&path, json!({ "events": [event] })).await.ok();
    assert_eq!(ends(&owner.settled(&id, 3).await).last(), Some(&"completed"));

    // That of the session holds again, and without one the tool is unknown.
    let calls =
        || script(json!([submit(&json!({ "word": "yes" })), submit(&json!({ "city": "A", "degrees": 1 }))]));
    steer(owner, &id, &calls()).await;
    let log = owner.settled(&id, 4).await;
    assert_eq!(of(&log, "turn.completed")[3]["body"]["output"]["city"], "A");
    owner.patch(&format!("/sessions/{id}"), json!({ "output_schema": null })).await.ok();
    steer(owner, &id, &calls()).await;
    let log = owner.settled(&id, 5).await;
    assert!(
        outputs(&log).last().is_some_and(|output| output.starts_with("There is no tool `submit_output`"))
    );
    assert_sound(&log);
    scene.close().await;
}

#[tokio::test]
async fn a_message_that_steers_asks_for_another_output() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let tool = json!({ "type": "custom", "name": "ask_me", "description": "Asks.", "input_schema": { "type": "object" } });
    let first = json!({ "city": "Rome", "degrees": 1 });
    let mut calls = submit(&first);
    calls["tools"].as_array_mut().expect("calls").push(json!({ "tool": "ask_me", "input": {} }));
    let id = play(owner, json!({ "output_schema": schema(), "tools": [tool] }), json!([calls])).await;
    let path = format!("/sessions/{id}/pending");
    let open = owner.until(&path, |page| page["data"].as_array().is_some_and(|rows| rows.len() == 1)).await;
    let second = json!({ "city": "Oslo", "degrees": 2 });
    let text = script(json!([submit(&second)]));
    owner.post(&format!("/sessions/{id}/messages"), json!({ "text": text, "mode": "steer" })).await.ok();
    let result = json!({ "type": "user.custom_tool_result", "action_id": open["data"][0]["id"], "content": [{ "type": "text", "text": "ok" }] });
    owner.post(&format!("/sessions/{id}/events"), json!({ "events": [result] })).await.ok();
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(of(&log, "turn.completed")[0]["body"]["output"], second);
    assert_eq!(of(&log, "turn.steered").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn a_schema_that_cannot_be_used_is_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let id = play(owner, json!({}), json!([{ "text": "Hi." }])).await;
    let deep = (0..40).fold(
        json!({ "type": "string" }),
        |inner, _| json!({ "type": "object", "properties": { "a": inner } }),
    );
    for unfit in [
        json!({ "type": "array" }),
        json!({ "type": "object", "properties": { "a": { "$ref": "https://example.com/schema" } } }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } } }),
        json!({ "type": "object", "properties": { "a": { "type": "strin" } } }),
        json!({ "type": "object", "anyOf": [{}] }),
        json!({ "type": "object", "description": "x".repeat(20_000) }),
        deep,
    ] {
        let body = json!({ "name": "n", "prompt": "p", "model": "scripted/inline", "output_schema": unfit });
        let error = owner.post("/agents", body).await.error(400);
        assert_eq!((&error["code"], &error["param"]), (&json!("invalid_schema"), &json!("output_schema")));
        let session = json!({ "agent": agent, "output_schema": unfit });
        assert_eq!(owner.post("/sessions", session).await.error(400)["code"], "invalid_schema");
        let change = json!({ "output_schema": unfit });
        assert_eq!(
            owner.patch(&format!("/sessions/{id}"), change).await.error(400)["code"],
            "invalid_schema"
        );
        let message = json!({ "text": "Hi.", "output_schema": unfit });
        let error = owner.post(&format!("/sessions/{id}/messages"), message).await.error(400);
        assert_eq!((&error["code"], &error["param"]), (&json!("invalid_schema"), &json!("output_schema")));
        let event = json!({ "type": "user.message", "text": "Hi.", "output_schema": unfit });
        let error =
            owner.post(&format!("/sessions/{id}/events"), json!({ "events": [event] })).await.error(400);
        assert_eq!(error["param"], "events[0].output_schema");
    }
    let steering = json!({ "text": "Hi.", "mode": "steer", "output_schema": schema() });
    let error = owner.post(&format!("/sessions/{id}/messages"), steering).await.error(400);
    assert_eq!(error["param"], "output_schema");
    let many = json!({ "agent": agent, "output_repairs": 6 });
    assert_eq!(owner.post("/sessions", many).await.error(400)["param"], "output_repairs");
    assert_eq!(log(owner, &id).await.iter().filter(|event| event["type"] == "user.message").count(), 1);
    scene.close().await;
}

#[tokio::test]
async fn an_output_keeps_its_place_beside_questions_and_within_limits() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let output = json!({ "city": "Rome", "degrees": 21 });
    let mut calls = submit(&output);
    let question = json!({ "tool": "ask", "input": { "question": "Sure?" } });
    calls["tools"].as_array_mut().expect("calls").push(question);
    let id = play(owner, json!({ "output_schema": schema() }), json!([calls])).await;
    assert_eq!(ends(&owner.settled(&id, 1).await), ["completed"]);
    assert_eq!(owner.get(&format!("/sessions/{id}/result")).await.ok()["output"], output);

    let steps = json!([{ "tools": [bash("echo one")] }, submit(&output)]);
    let more = json!({ "output_schema": schema(), "limits": { "tool_calls": 1 } });
    let id = play(owner, more, steps).await;
    assert_eq!(ends(&owner.settled(&id, 1).await), ["completed"]);
    let usage = owner.get(&format!("/sessions/{id}")).await.ok()["usage"]["tool_calls"].clone();
    assert_eq!(usage, 1);

    // A large output is whole in the result, and truncated in its event.
    let free = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
    let large = json!({ "text": "x".repeat(60_000) });
    let id = play(owner, json!({ "output_schema": free }), json!([submit(&large)])).await;
    owner.settled(&id, 1).await;
    let result = owner.get(&format!("/sessions/{id}/result")).await.ok();
    assert_eq!((&result["output"], &result["result"]["body_truncated"]), (&large, &json!(true)));
    scene.close().await;
}

#[tokio::test]
async fn a_client_token_cannot_name_a_schema() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let body = json!({ "agent": owner.inline_agent().await, "output_schema": schema() });
    let made = owner.post("/sessions", body).await.ok();
    let path = format!("/sessions/{}", made["session"]["id"].as_str().expect("an id"));
    let token = scene.service.caller(made["client_token"].as_str().expect("a token"));
    let message = json!({ "text": "Hi.", "output_schema": { "type": "object" } });
    token.post(&format!("{path}/messages"), message.clone()).await.error(403);
    let mut event = message;
    event["type"] = json!("user.message");
    token.post(&format!("{path}/events"), json!({ "events": [event] })).await.error(403);
    assert_eq!(owner.get(&path).await.ok()["status"], "idle");
    scene.close().await;
}
