//! Calls of tools in both eras of the protocol, and their results.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::*;

#[tokio::test]
async fn a_model_calls_the_tools_of_servers_of_both_eras() {
    let scene = Scene::open(&[PRIVATE]).await;
    let tools = || vec![tool("first"), tool("second"), tool("third")];
    let (new, old) = (McpFake::stateless(tools(), echo).await, McpFake::legacy(tools(), echo).await);
    for (fake, version) in [(&new, "2026-07-28"), (&old, "2025-11-25")] {
        let steps = json!([{ "tools": [call("first", "a"), call("third", "b")] }, { "text": "Done." }]);
        let id = play(&scene.owner, json!([server(fake, json!({}))]), steps).await;
        let log = scene.owner.settled(&id, 1).await;
        assert_sound(&log);
        assert_eq!((outputs(&log), ends(&log)), (vec!["first: a", "third: b"], vec!["completed"]));
        let listed = of(&super::log(&scene.owner, &id).await, "mcp.listed")[0]["body"].clone();
        assert_eq!((&listed["server"], &listed["protocol_version"]), (&json!("fake"), &json!(version)));
        let names: Vec<_> =
            listed["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
        assert_eq!(names, ["mcp__fake__first", "mcp__fake__second", "mcp__fake__third"]);
        assert_eq!(fake.refusals(), Vec::<String>::new());
        let calls = fake.seen("tools/call");
        assert_eq!(calls[0].params["name"], "first");
        let named = calls[0].params["_meta"]["sojourn/call_id"].as_str().expect("the id of the call");
        assert!(named.starts_with(&id), "{named}");
    }
    assert_eq!(old.sessions(), 0, "its session was ended");
    assert_eq!(old.seen("initialize").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn an_ended_session_of_a_server_is_begun_again_once() {
    let scene = Scene::open(&[PRIVATE]).await;
    let decide = |name: &str, arguments: &Value| match arguments["word"].as_str() {
        Some("a") => Reply::EndedSessions(text("echo: a")),
        _ => echo(name, arguments),
    };
    let fake = McpFake::legacy(vec![tool("echo")], decide).await;
    let steps = json!([
        { "tools": [call("echo", "a")] }, { "tools": [call("echo", "b")] }, { "text": "Done." },
    ]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!((outputs(&log), ends(&log)), (vec!["echo: a", "echo: b"], vec!["completed"]));
    assert_eq!(fake.seen("initialize").len(), 2);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn a_long_result_is_in_a_file_and_an_image_is_shown() {
    const PIXEL: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let scene = Scene::open(&[PRIVATE]).await;
    let decide = |name: &str, _: &Value| {
        Reply::Result(match name {
            "long" => text(&format!("begin {} end", "x".repeat(100_000))),
            _ => json!({ "content": [
                { "type": "image", "data": PIXEL, "mimeType": "image/png" },
                { "type": "image", "data": BASE64_STANDARD.encode("no image"), "mimeType": "image/png" },
            ]}),
        })
    };
    let fake = McpFake::stateless(vec![tool("long"), tool("picture")], decide).await;
    let steps = json!([
        { "tools": [call("long", ""), call("picture", "")] },
        { "tools": [bash("wc -c < $(ls /home/agent/results/*.txt); ls /home/agent/files")] },
        { "text": "Done." },
    ]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    let outputs = outputs(&log);
    assert!(outputs[0].len() < 31_000 && outputs[0].starts_with("begin x"), "{}", outputs[0].len());
    assert!(outputs[0].contains("The whole result is in the file /home/agent/results/"), "it says where");
    assert!(outputs[1].contains("cannot be shown"), "{}", outputs[1]);
    let content = &of(&log, "tool.result")[1]["body"]["content"];
    assert_eq!((content[0]["type"].as_str(), content.as_array().map(Vec::len)), (Some("image"), Some(1)));
    assert!(outputs[2].starts_with("100010\n") && outputs[2].lines().count() > 1, "{}", outputs[2]);
    scene.close().await;
}

#[tokio::test]
async fn a_cancel_ends_a_call_that_hangs() {
    let scene = Scene::open(&[PRIVATE]).await;
    let decide = |_: &str, _: &Value| Reply::After(Duration::from_secs(600), text("late"));
    let fake = McpFake::legacy(vec![tool("hang")], decide).await;
    let steps = json!([{ "tools": [call("hang", "")] }, { "text": "Done." }]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps).await;
    until(&scene.owner, &id, "tool.started").await;
    scene.owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), outcomes(&log)), (vec!["canceled"], vec!["unknown"]));
    scene.close().await;
}
