//! Images and other files in messages and results: what models and sandboxes get of them.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::Method;
use serde_json::{Value, json};
use sojourn::domain::conversation::ModelApi;

use super::{Scene, assert_sound, ends, of, outputs, steer};
use crate::{
    fake::{
        Fake, Request, Step, anthropic::Anthropic, file_parts::png, openai::OpenAi, responses::Responses,
    },
    model::Named,
    support::service::Caller,
};

pub fn by_id(kind: &str, file: &Value) -> Value {
    json!({ "type": kind, "source": { "type": "file", "file_id": file["id"] } })
}

pub fn inline(kind: &str, name: &str, content: &[u8]) -> Value {
    let data = BASE64_STANDARD.encode(content);
    json!({ "type": kind, "name": name, "source": { "type": "base64", "data": data } })
}

/// Creates an agent whose model is the fake.
async fn agent(owner: &Caller, provider: &str, tools: Value) -> Value {
    agent_of(owner, provider, ModelApi::ChatCompletions, tools).await
}

async fn agent_of(owner: &Caller, provider: &str, api: ModelApi, tools: Value) -> Value {
    let mut agent = json!({ "name": "viewer", "prompt": "You describe images.", "model": format!("{provider}/m-1"),
        "key": "sk-a-key-of-the-test", "tools": tools });
    if api == ModelApi::Responses {
        agent["model_options"] = json!({ "api": api });
    }
    owner.post("/agents", agent).await.ok()["id"].clone()
}

pub async fn create(owner: &Caller, body: Value) -> String {
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

/// Number of images in a request.
fn images(request: &Request) -> usize {
    let body = request.body.to_string();
    body.matches(r#""type":"image""#).count()
        + body.matches(r#""type":"image_url""#).count()
        + body.matches(r#""type":"input_image""#).count()
}

/// The model sees what a caller sends and what `read` shows, and its sandbox has the files.
async fn see<D: Named>(setting: &str, path: &str) {
    let steps = vec![
        Step::default().and_tool("bash", json!({ "command":
            "cd ~/files && sha256sum */photo.png | cut -c1-64 && cat */a.csv && stat -c %s */blob && cp */photo.png /workspace/copy.png" })),
        Step::default().and_tool("read", json!({ "path": "copy.png" })),
        Step::text("A picture, twice."),
        Step::text("Still the same picture."),
    ];
    let fake = Fake::script(D::default(), steps).await;
    let scene = Scene::open(&[&format!("--{setting}={}{path}", fake.base_url)]).await;
    let owner = &scene.owner;
    let photo = owner.upload("photo.png", png(40, 30)).await.ok();
    assert_eq!((&photo["media_type"], &photo["image"]["width"]), (&json!("image/png"), &json!(40)));
    let content = json!([
        by_id("image", &photo),
        inline("document", "a.csv", b"a,b\n1,2\n"),
        inline("document", "paper.pdf", b"%PDF-1.7 of the test"),
        inline("document", "blob", &[0; 4_000_000]),
    ]);
    let agent = agent_of(owner, D::PROVIDER, D::API, json!(["bash", "read"])).await;
    let id = create(owner, json!({ "agent": agent, "input": "Look.", "content": content })).await;
    let events = owner.settled(&id, 1).await;
    assert_eq!(fake.refusals(), Vec::<String>::new());
    assert_sound(&events);
    assert_eq!(ends(&events), ["completed"]);
    let message = &of(&events, "user.message")[0]["body"];
    assert_eq!(message["text"], "Look.");
    let kinds: Vec<_> =
        message["content"].as_array().expect("parts").iter().map(|part| &part["type"]).collect();
    assert_eq!(kinds, ["text", "image", "document", "document", "document"]);
    assert_eq!(message["content"][1]["sha256"], photo["sha256"]);
    let expected = format!("{}\na,b\n1,2\n4000000\n", photo["sha256"].as_str().expect("a hash"));
    assert_eq!(outputs(&events)[0], expected, "the sandbox has the files");
    let shown = &of(&events, "tool.result")[1]["body"];
    assert_eq!(shown["content"][0]["path"], "/workspace/copy.png");
    let requests = fake.requests();
    assert_eq!(requests.iter().map(images).collect::<Vec<_>>(), [1, 1, 2]);
    let first = requests[0].body.to_string();
    for part in
        [&*BASE64_STANDARD.encode(b"%PDF-1.7 of the test"), "a,b\\n1,2", "/blob (application/octet-stream"]
    {
        assert!(first.contains(part), "{part}");
    }
    // The next turn has the same history.
    steer(owner, &id, "And now?").await;
    assert_eq!(ends(&owner.settled(&id, 2).await), ["completed"; 2]);
    assert_eq!(images(fake.requests().last().expect("a request")), 2);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    let files = owner.get(&format!("/files?session={id}")).await.ok();
    assert_eq!(files["data"].as_array().expect("files").len(), 4, "what was read is one of the message");
    scene.close().await;
}

#[tokio::test]
async fn files_reach_a_model_through_the_messages_api_and_its_sandbox() {
    see::<Anthropic>("anthropic-base-url", "").await;
}

#[tokio::test]
async fn files_reach_a_model_through_chat_completions_and_its_sandbox() {
    see::<OpenAi>("openai-base-url", "/v1").await;
}

#[tokio::test]
async fn files_reach_a_model_through_the_responses_api_and_its_sandbox() {
    see::<Responses>("openai-base-url", "/v1").await;
}

/// Refuses a request with an image, as a model that takes only text does.
fn text_only(request: &Request) -> Step {
    if images(request) > 0 {
        return Step::status(400, "invalid_request_error", "Could not process image");
    }
    Step::text("I cannot see it.")
}

#[tokio::test]
async fn an_image_that_the_model_refuses_does_not_block_its_session() {
    let fake = Fake::decide(Anthropic::default(), text_only).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let agent = agent(owner, "anthropic", json!([])).await;
    let content = json!([inline("image", "a.png", &png(4, 4))]);
    let id = create(owner, json!({ "agent": agent, "content": content })).await;
    let events = owner.settled(&id, 1).await;
    assert_eq!(ends(&events), ["completed"]);
    assert_eq!(of(&events, "error.model")[0]["body"]["code"], "files_refused");
    let file = &of(&events, "user.message")[0]["body"]["content"][0];
    let pruned = &of(&events, "history.pruned")[0]["body"];
    assert_eq!(pruned["file_ids"], json!([file["file_id"]]));
    assert_eq!(fake.calls(), 2);
    assert!(fake.requests()[1].body.to_string().contains(file["path"].as_str().expect("a path")));
    // Later turns do not try it again.
    steer(owner, &id, "Sure?").await;
    assert_eq!(ends(&owner.settled(&id, 2).await).len(), 2);
    assert_eq!(fake.calls(), 3);
    scene.close().await;
}

#[tokio::test]
async fn an_image_in_a_result_that_the_model_refuses_ends_nothing() {
    let decide = |request: &Request| match () {
        () if images(request) > 0 => Step::status(400, "invalid_request_error", "Could not process image"),
        () if request.body.to_string().contains("tool_result") => Step::text("I cannot see it."),
        () => Step::default().and_tool("read", json!({ "path": "a.png" })),
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let agent = agent(owner, "anthropic", json!(["read"])).await;
    let id = create(owner, json!({ "agent": agent })).await;
    let request = owner.request(Method::PUT, &format!("/sessions/{id}/files?path=a.png"));
    crate::support::service::send(request.body(png(9, 9))).await.ok();
    steer(owner, &id, "Look at a.png.").await;
    let events = owner.settled(&id, 1).await;
    assert_eq!((ends(&events), fake.calls()), (vec!["completed"], 3));
    assert_eq!(of(&events, "history.pruned").len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn a_document_that_is_too_long_does_not_block_its_session() {
    let decide = |request: &Request| match request
        .body
        .to_string()
        .contains(&BASE64_STANDARD.encode(b"%PDF-1.7 of many pages"))
    {
        true => {
            Step::status(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
        }
        false => Step::text("It is too long for me."),
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let agent = agent(owner, "anthropic", json!([])).await;
    let content = json!([inline("document", "long.pdf", b"%PDF-1.7 of many pages")]);
    let id = create(owner, json!({ "agent": agent, "input": "Summarize.", "content": content })).await;
    let events = owner.settled(&id, 1).await;
    assert_eq!(ends(&events), ["completed"]);
    assert_eq!(of(&events, "error.model")[0]["body"]["code"], "files_refused");
    scene.close().await;
}

#[tokio::test]
async fn a_refusal_for_another_reason_leaves_the_files() {
    let refuse = |_: &Request| Step::status(404, "not_found_error", "model: m-1");
    let fake = Fake::decide(Anthropic::default(), refuse).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let agent = agent(owner, "anthropic", json!([])).await;
    let content = json!([inline("image", "a.png", &png(4, 4))]);
    let id = create(owner, json!({ "agent": agent, "content": content })).await;
    let events = owner.settled(&id, 1).await;
    assert_eq!(of(&events, "turn.completed")[0]["body"]["error"]["code"], "model_refused_request");
    assert_eq!((of(&events, "history.pruned").len(), fake.calls()), (0, 1));
    scene.close().await;
}

#[tokio::test]
async fn messages_with_files_at_the_same_time_are_all_accepted() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let file = owner.upload("a.csv", b"a,b".to_vec()).await.ok();
    let id = create(owner, json!({ "agent": owner.inline_agent().await })).await;
    let path = format!("/sessions/{id}/messages");
    let sends = (0..12).map(|at| {
        let mut part = by_id("document", &file);
        part["name"] = json!(format!("{at}.csv"));
        owner.post(&path, json!({ "text": super::script(json!([{ "text": "Yes." }])), "content": [part] }))
    });
    for sent in futures::future::join_all(sends).await {
        sent.ok();
    }
    // A file with two names is two files in the sandbox.
    steer(
        owner,
        &id,
        &super::script(json!([super::run("ls ~/files/*/ | grep -c csv"), { "text": "Done." }])),
    )
    .await;
    let events = owner.follow(&id, |event| event["type"] == "tool.result").await;
    assert_eq!(outputs(&events), ["12\n"]);
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_that_lost_its_disk_gets_the_files_again() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let script = |text: &str| json!([super::run("cat ~/files/*/*"), { "text": text }]);
    // The larger file is sent to the sandbox as an archive.
    let content =
        json!([inline("document", "a.csv", b"a,b\n"), inline("document", "b.bin", &[b'x'; 3_500_000])]);
    let body = json!({ "agent": owner.inline_agent().await, "input": { "script": script("One.") }, "content": content });
    let id = create(owner, body).await;
    let first = owner.settled(&id, 1).await;
    super::idle::destroy(&scene.ground).await;
    steer(owner, &id, &super::script(script("Two."))).await;
    let events = owner.settled(&id, 2).await;
    assert_eq!(of(&events, "sandbox.files_lost").len(), 1);
    let results = outputs(&events);
    assert!(results[0].starts_with("a,b\nxxx"), "{}", &results[0][..40]);
    assert_eq!(results[1].lines().next(), results[0].lines().next());
    assert_eq!((results.len(), outputs(&first).len()), (2, 1));
    scene.close().await;
}

#[tokio::test]
async fn a_repeated_message_stores_nothing_and_an_import_names_no_file() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({ "agent": owner.inline_agent().await })).await;
    let path = format!("/sessions/{id}/messages");
    let message = json!({ "text": super::script(json!([{ "text": "Yes." }])), "idempotency_key": "once",
        "content": [inline("document", "a.csv", b"a,b")] });
    let first = owner.post(&path, message.clone()).await.ok();
    let again = owner.post(&path, message).await.ok();
    assert_eq!(again["event"]["id"], first["event"]["id"]);
    owner.settled(&id, 1).await;
    assert_eq!(owner.get("/files").await.ok()["data"].as_array().expect("files").len(), 1);
    let stored = scene.ground.count("select count(*) from file").await;
    assert_eq!(stored, 1, "nothing was stored for the repetition");

    let log = owner.request(Method::GET, &format!("/sessions/{id}/export")).send().await.expect("a log");
    let log = log.text().await.expect("a log");
    let import =
        owner.request(Method::POST, "/sessions/import").header("content-type", "application/x-ndjson");
    let imported = crate::support::service::send(import.body(log)).await.ok();
    let copy = imported["session"]["id"].as_str().expect("an id");
    let events = super::log(owner, copy).await;
    let content = &of(&events, "user.message")[0]["body"]["content"];
    assert_eq!(content[1], json!({ "type": "text", "text": "[The file a.csv was not imported.]" }));
    scene.close().await;
}

#[tokio::test]
async fn the_newest_images_of_many_are_sent() {
    let fake = Fake::decide(Anthropic::default(), |_: &Request| Step::text("Seen.")).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let agent = agent(owner, "anthropic", json!([])).await;
    // 30 large images; each is 2,400 pixels wide, and scaled.
    let photo = owner.upload("large.png", png(2_400, 300)).await.ok();
    assert_eq!((&photo["image"]["width"], &photo["image"]["converted"]), (&json!(2_000), &json!(true)));
    let image = by_id("image", &photo);
    let content = |count: usize| Value::from(vec![image.clone(); count]);
    let id = create(owner, json!({ "agent": agent, "content": content(15) })).await;
    owner.settled(&id, 1).await;
    owner.post(&format!("/sessions/{id}/messages"), json!({ "content": content(15) })).await.ok();
    let events = owner.settled(&id, 2).await;
    assert_eq!(ends(&events), ["completed"; 2]);
    assert_eq!(fake.requests().iter().map(images).collect::<Vec<_>>(), [15, 20]);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn a_custom_tool_returns_an_image() {
    let steps = vec![Step::default().and_tool("camera", json!({})), Step::text("A wall.")];
    let fake = Fake::script(OpenAi, steps).await;
    let scene = Scene::open(&[&format!("--openai-base-url={}/v1", fake.base_url)]).await;
    let owner = &scene.owner;
    let tool = json!({ "type": "custom", "name": "camera", "description": "Takes a photo.",
        "input_schema": { "type": "object" } });
    let agent = agent(owner, "openai", json!([tool])).await;
    let id = create(owner, json!({ "agent": agent, "input": "What is there?" })).await;
    let action = super::until(owner, &id, "action.required").await;
    let action = of(&action, "action.required")[0]["body"]["id"].clone();
    let result = json!({ "type": "user.custom_tool_result", "action_id": action,
        "content": [{ "type": "text", "text": "Click." }, inline("image", "wall.png", &png(8, 8))] });
    let sent = owner.post(&format!("/sessions/{id}/events"), json!({ "events": [result] })).await.ok();
    let again = owner.post(&format!("/sessions/{id}/events"), json!({ "events": [result] })).await;
    assert_eq!(again.ok()["data"], sent["data"], "equal bytes are the same answer");
    let events = owner.settled(&id, 1).await;
    assert_eq!(ends(&events), ["completed"]);
    let done = &of(&events, "tool.result")[0]["body"];
    assert_eq!((&done["output"], &done["content"][0]["name"]), (&json!("Click."), &json!("wall.png")));
    assert_eq!(fake.requests().iter().map(images).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}
