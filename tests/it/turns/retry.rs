//! A failed turn is retried: the same turn, from its last complete step.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};

use super::{Scene, assert_sound, ends, last_turn, of, session, steer};
use crate::{
    fake::{Fake, Request, Step, Used, anthropic::Anthropic},
    support::service::{Caller, send},
};

/// Creates a session whose agent calls the fake.
async fn create(owner: &Caller, more: Value) -> String {
    let key = json!({ "provider": "anthropic", "key": "sk-ant-of-the-test", "is_default": true });
    owner.post("/credentials", key).await.ok();
    let mut agent = json!({
        "name": "maker", "prompt": "You make things.", "model": "anthropic/claude-sonnet-4-5", "tools": ["bash"],
    });
    agent.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    owner.post("/agents", agent).await.ok();
    let body = json!({ "agent": "maker", "input": "Make a file." });
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

fn path_of(id: &str, turn: &Value) -> String {
    format!("/sessions/{id}/turns/{}/retry", turn["id"].as_str().expect("an id"))
}

/// A model that makes a call, then refuses requests until `works`, then ends.
async fn failing(works: Arc<AtomicUsize>) -> Fake<Anthropic> {
    let decide = move |request: &Request| match request.body["messages"].to_string().contains("tool_result") {
        false => Step::default().and_tool("bash", json!({ "command": "echo made >> made; cat made" })),
        true if works.load(Ordering::SeqCst) == 0 => {
            Step::status(401, "authentication_error", "invalid x-api-key")
        }
        true => Step::text("It is made."),
    };
    Fake::decide(Anthropic::default(), decide).await
}

/// A session whose turn failed after its first call, because the model refuses requests until `works`.
struct Failed {
    fake: Fake<Anthropic>,
    scene: Scene,
    works: Arc<AtomicUsize>,
    id: String,
    turn: Value,
}

async fn failed() -> Failed {
    let works = Arc::new(AtomicUsize::new(0));
    let fake = failing(Arc::clone(&works)).await;
    let base_url = format!("--anthropic-base-url={}", fake.base_url);
    let scene = Scene::open(&[&base_url, "--metrics-listen=127.0.0.1:0"]).await;
    let id = create(&scene.owner, json!({})).await;
    assert_eq!(ends(&scene.owner.settled(&id, 1).await), ["error"]);
    let turn = last_turn(&scene.owner, &id).await;
    Failed { fake, scene, works, id, turn }
}

#[tokio::test]
async fn a_retry_continues_after_the_last_complete_step_as_the_same_turn() {
    let Failed { fake, scene, works, id, turn: failed } = failed().await;
    let owner = &scene.owner;
    assert_eq!((&failed["state"], &failed["attempt"]), (&json!("error"), &json!(1)));

    works.store(1, Ordering::SeqCst);
    let path = path_of(&id, &failed);
    let retry =
        || owner.request(reqwest::Method::POST, &path).header("idempotency-key", "again").json(&json!({}));
    let accepted = send(retry()).await;
    assert_eq!(accepted.status, 202);
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!((ends(&log), fake.refusals()), (vec!["error", "completed"], Vec::new()));
    let (accepted, repeated) = (accepted.ok(), send(retry()).await);
    assert_eq!((repeated.status.as_u16(), &repeated.ok()), (200, &accepted));
    let retried = of(&log, "turn.retried");
    assert_eq!(retried.len(), 1, "{log:#?}");
    assert_eq!(retried[0]["id"], accepted["event"]["id"]);
    assert_eq!(retried[0]["body"], json!({ "turn_id": failed["id"], "attempt": 2 }));
    let starts: Vec<_> = of(&log, "turn.started").iter().map(|event| event["body"].clone()).collect();
    assert_eq!((&starts[1]["attempt"], &starts[1]["is_retry"]), (&json!(2), &json!(true)));

    // The call of the first attempt did not run again, and its usage is part of the turn.
    let result = owner.get(&format!("/sessions/{id}/result")).await.ok();
    assert_eq!(result["result"]["body"]["text"], "It is made.");
    let (turn, read) = (&result["last_turn"], owner.get(&format!("/sessions/{id}")).await.ok());
    assert_eq!((&turn["id"], &turn["state"], &turn["attempt"]), (&failed["id"], &json!("ok"), &json!(2)));
    assert_eq!((&turn["usage"]["steps"], &turn["error"]), (&json!(2), &Value::Null));
    assert_eq!(turn["started_at"], failed["started_at"]);
    assert_eq!((of(&log, "tool.result").len(), &read["status"]), (1, &json!("idle")));
    assert_eq!(of(&log, "tool.result")[0]["body"]["output"], "made\n");
    let requests = fake.requests();
    assert_eq!(requests[requests.len() - 1].body, requests[requests.len() - 2].body);
    assert_eq!(
        owner.get(&format!("/sessions/{id}/turns")).await.ok()["data"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(scene.service.metrics().await["sojourn_turns_retried_total"], 1.0);

    // An export with a retried turn is a session elsewhere, too.
    let request = owner.request(reqwest::Method::GET, &format!("/sessions/{id}/export"));
    let file = request.send().await.expect("an answer").text().await.expect("a text");
    let import = owner.request(reqwest::Method::POST, "/sessions/import");
    let imported = send(import.header("content-type", "application/x-ndjson").body(file)).await.ok();
    let path = format!("/sessions/{}/turns", imported["session"]["id"].as_str().expect("an id"));
    let turns = owner.get(&path).await.ok();
    assert_eq!((turns["data"].as_array().map(Vec::len), &turns["data"][0]["state"]), (Some(1), &json!("ok")));
    scene.close().await;
}

#[tokio::test]
async fn a_response_that_was_cut_off_is_continued() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let decide = move |_: &Request| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Step::text("It begins").stopping("max_tokens"),
        _ => Step::text("and ends."),
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({})).await;
    owner.settled(&id, 1).await;
    let failed = last_turn(owner, &id).await;
    assert_eq!(failed["error"]["code"], "max_output_tokens");
    owner.post(&path_of(&id, &failed), json!({})).await.ok();
    let log = owner.settled(&id, 2).await;
    assert_eq!((ends(&log), fake.refusals()), (vec!["error", "completed"], Vec::new()));
    let requests = fake.requests();
    let said = requests[1].body["messages"].as_array().expect("messages");
    assert_eq!((said.len(), &said[2]["role"]), (3, &json!("user")));
    assert!(
        said[2].to_string().contains("The turn ended with an error after your last response."),
        "{said:?}"
    );
    scene.close().await;
}

#[tokio::test]
async fn only_the_last_turn_is_retried_and_only_if_it_failed() {
    let Failed { fake, scene, works, id, turn: failed } = failed().await;
    let owner = &scene.owner;
    let path = path_of(&id, &failed);
    let unknown = format!("/sessions/{id}/turns/trn_01m8dpsj22f6xbv5t2jje2t66p/retry");
    owner.post(&unknown, json!({})).await.error(404);

    // Of many requests at once, one retries it.
    let requests = (0..8).map(|_| async { owner.post(&path, json!({})).await });
    let answers = futures::future::join_all(requests).await;
    let accepted = answers.iter().filter(|answer| answer.status == 202).count();
    assert!(accepted >= 1 && answers.iter().all(|answer| [202, 409].contains(&answer.status.as_u16())));
    owner.settled(&id, 1 + accepted).await;

    // A message while it is queued joins it; canceled, it ends with what it used before.
    owner.post(&format!("/sessions/{id}/pause"), json!({})).await.ok();
    owner.post(&path, json!({})).await.ok();
    steer(owner, &id, "And this.").await;
    let queued = last_turn(owner, &id).await;
    assert_eq!(
        (&queued["id"], &queued["state"], &queued["error"]),
        (&failed["id"], &json!("queued"), &Value::Null)
    );
    assert_eq!(session(owner, &id).await["status"], "queued");
    assert_eq!(owner.post(&path, json!({})).await.error(409)["code"], "turn_running");
    owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    let canceled = last_turn(owner, &id).await;
    assert_eq!((&canceled["id"], &canceled["yield_reason"]), (&failed["id"], &json!("canceled")));
    assert_eq!(canceled["usage"]["steps"], failed["usage"]["steps"]);
    assert_eq!(owner.post(&path, json!({})).await.error(409)["code"], "turn_not_failed");
    owner.post(&format!("/sessions/{id}/resume"), json!({})).await.ok();

    works.store(1, Ordering::SeqCst);
    steer(owner, &id, "Again.").await;
    owner.settled(&id, 3 + accepted).await;
    assert_eq!(owner.post(&path, json!({})).await.error(409)["code"], "not_last_turn");
    assert_eq!(fake.refusals(), Vec::<String>::new());
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    assert_eq!(owner.post(&path, json!({})).await.error(409)["code"], "archived");
    scene.close().await;
}

#[tokio::test]
async fn a_turn_that_a_check_canceled_starts_at_its_retry() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([{ "text": "First." }])).await;
    owner.settled(&id, 1).await;
    let agent = session(owner, &id).await["agent_id"].as_str().expect("an id").to_owned();
    owner.patch(&format!("/agents/{agent}"), json!({ "enabled": false })).await.ok();
    steer(owner, &id, &super::script(json!([{ "text": "Second." }]))).await;
    owner.settled(&id, 2).await;
    let refused = last_turn(owner, &id).await;
    assert_eq!((&refused["attempt"], &refused["error"]["code"]), (&json!(0), &json!("agent_disabled")));
    let path = path_of(&id, &refused);
    owner.post(&path, json!({})).await.ok();
    let log = owner.settled(&id, 3).await;
    assert_eq!(ends(&log), ["completed", "canceled", "canceled"], "the check is made again");
    owner.patch(&format!("/agents/{agent}"), json!({ "enabled": true })).await.ok();
    owner.post(&path, json!({})).await.ok();
    let log = owner.settled(&id, 4).await;
    assert_sound(&log);
    assert_eq!(ends(&log)[3], "completed");
    let done = last_turn(owner, &id).await;
    assert_eq!((&done["id"], &done["attempt"]), (&refused["id"], &json!(1)));
    let usage = owner.get(&format!("/sessions/{id}/usage")).await.ok();
    assert_eq!(usage["usage"]["steps"], 2);
    scene.close().await;
}

#[tokio::test]
async fn a_summary_that_failed_is_made_by_the_retry_and_says_nothing_of_itself_in_the_history() {
    let works = Arc::new(AtomicUsize::new(0));
    let can = Arc::clone(&works);
    let decide = move |request: &Request| {
        let messages = request.body["messages"].as_array().expect("messages");
        let asks = messages[messages.len() - 1].to_string().contains("The conversation above");
        let step = match (asks, can.load(Ordering::SeqCst)) {
            (true, 0) => Step::status(401, "authentication_error", "invalid x-api-key"),
            (true, _) => Step::text("Things were made."),
            (false, _) => Step::text(&"It is made. ".repeat(800)),
        };
        step.using(Used { input: request.body.to_string().len() as u64 / 4, ..Used::default() })
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({})).await;
    for turn in 1..=2 {
        owner.settled(&id, turn).await;
        steer(owner, &id, "Another one.").await;
    }
    owner.settled(&id, 3).await;
    owner.post(&format!("/sessions/{id}/compact"), json!({})).await.ok();
    owner.settled(&id, 4).await;
    let failed = last_turn(owner, &id).await;
    assert_eq!(failed["error"]["code"], "model_unauthorized");
    works.store(1, Ordering::SeqCst);
    owner.post(&path_of(&id, &failed), json!({})).await.ok();
    let log = owner.settled(&id, 5).await;
    assert_sound(&log);
    assert_eq!((&ends(&log)[3..], fake.refusals()), (&["error", "completed"][..], Vec::new()));
    assert_eq!(of(&log, "history.compacted").len(), 1, "{log:#?}");
    let said = fake.requests().last().expect("a request").body["messages"].to_string();
    assert!(!said.contains("ended with an error"), "{said}");
    scene.close().await;
}

#[tokio::test]
async fn a_message_that_joined_a_retry_is_processed_when_it_starts_again() {
    let Failed { fake, scene, works, id, turn: failed } = failed().await;
    let owner = &scene.owner;
    works.store(1, Ordering::SeqCst);
    owner.post(&format!("/sessions/{id}/pause"), json!({})).await.ok();
    owner.post(&path_of(&id, &failed), json!({})).await.ok();
    let seq = steer(owner, &id, "And this.").await;
    let message = async || {
        let log = super::log(owner, &id).await;
        log.into_iter().find(|event| event["seq"] == seq).expect("the message")
    };
    assert_eq!(message().await["processed_at"], Value::Null);
    owner.post(&format!("/sessions/{id}/resume"), json!({})).await.ok();
    let log = owner.settled(&id, 2).await;
    let start = of(&log, "turn.started")[1]["ts"].clone();
    assert_eq!((&message().await["processed_at"], ends(&log)[1]), (&start, "completed"));
    let asked = fake.requests().last().expect("a request").body["messages"].to_string();
    assert!(asked.contains("And this."), "{asked}");
    scene.close().await;
}

#[tokio::test]
async fn each_end_has_the_rejections_of_its_own_attempts() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let schema =
        json!({ "type": "object", "properties": { "word": { "const": "yes" } }, "required": ["word"] });
    let agent = json!({
        "name": "sayer", "prompt": "", "model": "scripted/inline", "output_schema": schema, "output_repairs": 0,
    });
    owner.post("/agents", agent).await.ok();
    let submit = |word: &str| json!({ "tools": [{ "tool": "submit_output", "input": { "word": word } }] });
    let script = json!({ "script": [submit("no"), submit("never"), submit("yes")] });
    let created = owner.post("/sessions", json!({ "agent": "sayer", "input": script })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id").to_owned();
    owner.settled(&id, 1).await;
    let path = path_of(&id, &last_turn(owner, &id).await);
    let repairs = async || owner.get(&format!("/sessions/{id}/result")).await.ok()["output_repairs"].clone();
    assert_eq!(repairs().await, 1);
    owner.post(&path, json!({})).await.ok();
    let log = owner.settled(&id, 2).await;
    assert_eq!((ends(&log), repairs().await), (vec!["output_invalid"; 2], json!(1)));
    owner.post(&path, json!({})).await.ok();
    let log = owner.settled(&id, 3).await;
    let result = owner.get(&format!("/sessions/{id}/result")).await.ok();
    assert_eq!((ends(&log)[2], &result["output"]), ("completed", &json!({ "word": "yes" })));
    scene.close().await;
}
