//! Lists of tools: when they are read, and what a model is offered of them.

use super::*;

fn listed(log: &[Value]) -> Vec<&Value> {
    of(log, "mcp.listed").iter().map(|event| &event["body"]).collect()
}

#[tokio::test]
async fn a_list_is_read_once_and_serves_the_next_turns() {
    let scene = Scene::open(&[PRIVATE]).await;
    let fake = McpFake::stateless(vec![tool("echo")], echo).await;
    let steps = |word: &str| json!([{ "tools": [call("echo", word)] }, { "text": "Done." }]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps("a")).await;
    scene.owner.settled(&id, 1).await;
    steer(&scene.owner, &id, &script(steps("b"))).await;
    let log = scene.owner.settled(&id, 2).await;
    assert_eq!(outputs(&log), ["echo: a", "echo: b"]);
    assert_eq!((listed(&super::log(&scene.owner, &id).await).len(), fake.seen("tools/list").len()), (1, 1));
    scene.close().await;
}

#[tokio::test]
async fn a_changed_list_is_read_before_the_next_model_call() {
    let scene = Scene::open(&[PRIVATE]).await;
    let decide = |name: &str, arguments: &Value| match name {
        "one" => {
            let tools = vec![tool("one"), tool("two")];
            Reply::NewTools { tools, is_told: true, result: text("one: a") }
        }
        _ => echo(name, arguments),
    };
    let fake = McpFake::legacy(vec![tool("one")], decide).await;
    let steps = json!([
        { "tools": [call("one", "a")] }, { "tools": [call("two", "b")] }, { "text": "Done." },
    ]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!(outputs(&log), ["one: a", "two: b"]);
    let log = super::log(&scene.owner, &id).await;
    let counts: Vec<_> = listed(&log).iter().map(|list| list["tools"].as_array().map(Vec::len)).collect();
    assert_eq!(counts, [Some(1), Some(2)]);
    scene.close().await;
}

#[tokio::test]
async fn a_tool_that_is_gone_is_told_and_the_list_is_read_again() {
    let scene = Scene::open(&[PRIVATE]).await;
    let decide = |_: &str, _: &Value| Reply::NewTools {
        tools: vec![tool("one")],
        is_told: false,
        result: text("one: a"),
    };
    let fake = McpFake::stateless(vec![tool("one"), tool("two")], decide).await;
    let steps = json!([
        { "tools": [call("one", "a")] },
        { "tools": [call("two", "b")] },
        { "tools": [call("two", "c")] },
        { "text": "Done." },
    ]);
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps).await;
    let log = scene.owner.settled(&id, 1).await;
    let outputs = outputs(&log);
    assert!(outputs[1].contains("Unknown tool"), "{outputs:?}");
    assert!(outputs[2].contains("There is no tool `mcp__fake__two`"), "{outputs:?}");
    assert_eq!(listed(&super::log(&scene.owner, &id).await).len(), 2);
    scene.close().await;
}

#[tokio::test]
async fn tools_that_no_model_can_be_offered_are_left_out_with_the_reason() {
    let scene = Scene::open(&[PRIVATE]).await;
    let with = |name: &str, schema: Value| json!({ "name": name, "inputSchema": schema });
    let mut deep = json!({ "type": "string" });
    for _ in 0..40 {
        deep = json!({ "type": "object", "properties": { "a": deep } });
    }
    let tools = vec![
        tool("good"),
        tool("good"),
        with(
            "remote",
            json!({ "type": "object", "properties": { "a": { "$ref": "https://example.com/s" } } }),
        ),
        with("lies", json!({ "type": "object", "properties": { "a": { "type": "no type" } } })),
        with("deep", deep),
        with("any", json!({ "type": "object", "anyOf": [] })),
        tool("odd/name é"),
    ];
    let fake = McpFake::stateless(tools, echo).await;
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), json!([{ "text": "Done." }])).await;
    scene.owner.settled(&id, 1).await;
    let log = super::log(&scene.owner, &id).await;
    let list = listed(&log)[0];
    let names: Vec<_> = list["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[1].as_str().expect("a name").starts_with("mcp__fake__odd_name___"), "{names:?}");
    let mut skipped: Vec<_> = list["skipped"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|one| one["tool"].as_str().expect("a name"))
        .collect();
    skipped.sort_unstable();
    assert_eq!(skipped, ["any", "deep", "good", "lies", "remote"]);
    scene.close().await;
}

#[tokio::test]
async fn only_the_named_tools_are_offered_and_annotations_count_where_they_are_trusted() {
    let scene = Scene::open(&[PRIVATE]).await;
    let mut reads = tool("reads");
    reads["annotations"] = json!({ "readOnlyHint": true });
    let fake = McpFake::stateless(vec![reads, tool("writes")], echo).await;
    let steps = || json!([{ "tools": [call("reads", "a"), call("writes", "b")] }, { "text": "Done." }]);
    let named = server(&fake, json!({ "tools": ["reads"], "trust_annotations": true }));
    let id = play(&scene.owner, json!([named]), steps()).await;
    let log = scene.owner.settled(&id, 1).await;
    assert!(outputs(&log)[1].contains("There is no tool"), "{:?}", outputs(&log));
    assert_eq!(of(&log, "tool.call")[0]["body"]["replay"], "read_only");
    let id = play(&scene.owner, json!([server(&fake, json!({}))]), steps()).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!(of(&log, "tool.call")[0]["body"]["replay"], "unsafe");
    scene.close().await;
}

#[tokio::test]
async fn lists_are_bounded_in_tools_pages_and_bytes() {
    let scene = Scene::open(&[PRIVATE]).await;
    let owner = &scene.owner;
    let many = |count: usize| (0..count).map(|number| tool(&format!("tool-{number}"))).collect::<Vec<_>>();
    let done = || json!([{ "text": "Done." }]);

    let fake = McpFake::stateless(many(130), echo).await;
    fake.set_page(100);
    let id = play(owner, json!([server(&fake, json!({}))]), done()).await;
    let log = owner.settled(&id, 1).await;
    let list = listed(&log)[0];
    let count = |field: &str| list[field].as_array().map(Vec::len);
    assert_eq!((count("tools"), count("skipped")), (Some(128), Some(2)));

    let mut long = tool("long");
    long["description"] = json!("x".repeat(1 << 20));
    for (tools, said) in [(many(66), "more than 32 pages"), (vec![long], "more than 1048576 bytes")] {
        let fake = McpFake::stateless(tools, echo).await;
        let id = play(owner, json!([server(&fake, json!({}))]), done()).await;
        let log = owner.settled(&id, 1).await;
        let failed = &of(&log, "mcp.failed")[0]["body"];
        assert_eq!(failed["code"], "protocol");
        assert!(failed["message"].as_str().expect("words").contains(said), "{failed}");
    }
    scene.close().await;
}
