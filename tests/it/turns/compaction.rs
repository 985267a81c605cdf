//! A history that is almost too long for its model is summarized, and the session goes on.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};

use super::{Scene, assert_sound, ends, last_turn, of, outputs, script, steer};
use crate::{
    fake::{Fake, Request, Step, Used, anthropic::Anthropic},
    support::service::Caller,
};

/// Begin of the question for a summary.
const ASK: &str = "The conversation above is almost too long";

/// Whether a request asks for a summary.
pub(super) fn asks(request: &Request) -> bool {
    let last = request.body["messages"].as_array().and_then(|all| all.last()).cloned().unwrap_or_default();
    last.to_string().contains(ASK)
}

/// A step that reports the size of its request as its tokens, 4 bytes each.
pub(super) fn counted(request: &Request, step: Step) -> Step {
    step.using(Used { input: request.body.to_string().len() as u64 / 4, ..Used::default() })
}

/// A call with 12,000 bytes of output.
pub(super) fn print(number: usize) -> Step {
    let command = format!("echo call {number}; head -c 12000 /dev/zero | tr '\\0' x");
    Step::default().and_tool("bash", json!({ "command": command }))
}

/// Creates the agent `long` that calls the fake, with these settings.
pub(super) async fn agent(owner: &Caller, options: Value, compaction: Value) {
    owner
        .post(
            "/credentials",
            json!({ "provider": "anthropic", "key": "sk-ant-of-the-test", "is_default": true }),
        )
        .await
        .ok();
    let agent = json!({
        "name": "long", "prompt": "You print.", "model": "anthropic/claude-sonnet-4-5", "model_options": options,
        "compaction": compaction, "tools": ["bash"],
    });
    owner.post("/agents", agent).await.ok();
}

/// Creates a session of the agent `long`.
pub(super) async fn start(owner: &Caller) -> String {
    let body = json!({ "agent": "long", "input": "Print six times and say THE WORD." });
    owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

async fn create(owner: &Caller, options: Value, compaction: Value) -> String {
    agent(owner, options, compaction).await;
    start(owner).await
}

/// The messages of a request without the marks of the cache.
fn messages(request: &Request) -> Vec<Value> {
    let mut all = request.body["messages"].as_array().expect("messages").clone();
    for message in &mut all {
        for block in message["content"].as_array_mut().into_iter().flatten() {
            block.as_object_mut().expect("a block").remove("cache_control");
        }
    }
    all
}

#[tokio::test]
async fn a_history_that_is_almost_too_long_is_summarized_by_its_model() {
    let decide = |request: &Request| {
        let said = request.body["messages"].to_string();
        let step = match () {
            () if asks(request) => Step::text("The task: print six times. Two are done."),
            () if said.contains("call 6") => Step::text("THE WORD."),
            () => print((1..=6).find(|number| !said.contains(&format!("echo call {number};"))).unwrap_or(6)),
        };
        counted(request, step)
    };
    // A summary does not have the calls, so the model prints some of them again.
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let options = json!({ "max_tokens": 1_000, "context_tokens": 14_000 });
    let id = create(owner, options, json!({ "instructions": "Keep THE WORD." })).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    let compacted = of(&log, "history.compacted");
    assert!(!compacted.is_empty(), "{:?}", ends(&log));
    let body = &compacted[0]["body"];
    assert_eq!(
        (&body["trigger"], &body["summary"]),
        (&json!("auto"), &json!("The task: print six times. Two are done."))
    );
    let tokens = |name: &str| body[name].as_u64().expect("a number");
    assert!(
        tokens("before_tokens") > 10_400 && tokens("after_tokens") < tokens("before_tokens") / 2,
        "{body}"
    );
    let step =
        log.iter().rfind(|event| event["seq"].as_i64() < compacted[0]["seq"].as_i64()).expect("a step");
    assert_eq!((&step["type"], &step["body"]["purpose"]), (&json!("step.completed"), &json!("compaction")));

    // The question repeats the history, and the next request has the summary, the task and the newest step.
    let requests = fake.requests();
    let place = requests.iter().position(asks).expect("a question");
    let (before, asked) = (messages(&requests[place - 1]), messages(&requests[place]));
    assert_eq!(asked[..before.len()], before);
    assert!(asked.last().expect("a message").to_string().contains("Keep THE WORD."));
    assert_eq!(requests[place].body["tools"], requests[place - 1].body["tools"]);
    let next = messages(&requests[place + 1]);
    let said = next[0].to_string();
    assert!(
        said.contains("[Summary of the conversation up to event ")
            && said.contains("Print six times and say"),
        "{said}"
    );
    assert!(next.len() < asked.len() && next.last().expect("a message").to_string().contains("tool_result"));
    scene.close().await;
}

#[tokio::test]
async fn a_history_that_the_provider_refuses_is_summarized_too() {
    let decide = |request: &Request| {
        let said = request.body["messages"].to_string();
        let size = said.len();
        let step = match () {
            () if size > 40_000 => Step::status(
                400,
                "invalid_request_error",
                "prompt is too long: 208310 tokens > 200000 maximum",
            ),
            () if asks(request) => Step::text("Five are done."),
            () if said.contains("Five are done.") => Step::text("THE WORD."),
            () => print(size),
        };
        counted(request, step)
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({}), json!({})).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), fake.refusals()), (vec!["completed"], Vec::new()));
    assert_eq!(of(&log, "error.model")[0]["body"]["code"], "context_too_long");
    assert_eq!(of(&log, "history.compacted")[0]["body"]["trigger"], "refused");

    // Without summaries it is the end of the turn.
    let path = format!("/sessions/{id}");
    owner.patch(&path, json!({ "compaction": { "auto": false } })).await.ok();
    steer(owner, &id, &format!("Read this. {}", "y".repeat(50_000))).await;
    assert_eq!(ends(&owner.settled(&id, 2).await).last(), Some(&"error"));
    assert_eq!(last_turn(owner, &id).await["error"]["code"], "context_exhausted");
    scene.close().await;
}

#[tokio::test]
async fn a_message_that_its_model_cannot_read_ends_its_turn_and_not_its_session() {
    let decide = |request: &Request| match request.body["messages"].to_string().len() {
        ..40_000 => counted(request, Step::text("Read.")),
        _ => Step::status(400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    agent(owner, json!({}), json!({})).await;
    let long = format!("Read this. {}", "y".repeat(50_000));
    // The first message of a session, then one after others, then two that one turn reads together.
    let created = owner.post("/sessions", json!({ "agent": "long", "input": long })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id");
    for turn in [1, 3, 5] {
        if turn == 3 {
            steer(owner, id, &long).await;
        }
        if turn == 5 {
            owner.post(&format!("/sessions/{id}/pause"), json!({})).await.ok();
            steer(owner, id, &long).await;
            steer(owner, id, &long).await;
            owner.post(&format!("/sessions/{id}/resume"), json!({})).await.ok();
        }
        let log = owner.settled(id, turn).await;
        assert_eq!(ends(&log).last(), Some(&"error"), "{turn}");
        assert_eq!(last_turn(owner, id).await["error"]["code"], "context_exhausted", "{turn}");
        steer(owner, id, "And now?").await;
        let log = owner.settled(id, turn + 1).await;
        assert_sound(&log);
        assert_eq!(ends(&log).last(), Some(&"completed"), "{turn}");
        let pruned = of(&log, "history.pruned");
        assert_eq!(pruned.last().expect("an event")["body"]["input_seqs"].as_array().map(Vec::len), Some(1));
    }
    assert_eq!(fake.refusals(), Vec::<String>::new());
    let said = fake.requests().last().expect("a request").body["messages"].to_string();
    assert_eq!(said.matches("It begins with: Read this. yyy").count(), 4);
    scene.close().await;
}

#[tokio::test]
async fn a_summary_that_saves_nothing_ends_the_turn() {
    let long = "z".repeat(48_000);
    let decide = move |request: &Request| {
        let step = if asks(request) { Step::text(&long) } else { print(request.body.to_string().len()) };
        counted(request, step)
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({ "max_tokens": 1_000, "context_tokens": 14_000 }), json!({})).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let failed = &of(&log, "history.compaction_failed")[0]["body"];
    assert!(failed["after_tokens"].as_u64() > failed["before_tokens"].as_u64(), "{failed}");
    assert_eq!(last_turn(owner, &id).await["error"]["code"], "context_exhausted");
    assert_eq!(of(&log, "history.compacted").len(), 0);
    scene.close().await;
}

#[tokio::test]
async fn a_response_that_is_no_summary_changes_nothing_and_is_asked_for_again() {
    let questions = AtomicUsize::new(0);
    let decide = move |request: &Request| {
        let said = request.body["messages"].to_string();
        let step = match () {
            () if asks(request) && questions.fetch_add(1, Ordering::Relaxed) == 0 => {
                Step::text("Let me look.").and_tool("bash", json!({ "command": "touch never" }))
            }
            () if asks(request) => Step::text("All is printed."),
            () if said.contains("All is printed.") => Step::text("THE WORD."),
            () => print(request.call),
        };
        counted(request, step)
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({ "max_tokens": 1_000, "context_tokens": 14_000 }), json!({})).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), fake.refusals()), (vec!["completed"], Vec::new()));
    let steps = of(&log, "step.completed");
    let summaries = steps.iter().filter(|step| step["body"]["purpose"] == "compaction").count();
    assert_eq!((summaries, of(&log, "history.compacted").len()), (2, 1));
    let ran = of(&log, "tool.call").iter().any(|call| call["body"]["input"]["command"] == "touch never");
    assert!(!ran, "a call in place of a summary does not run");
    scene.close().await;
}

/// 40 turns in a window of 12,000 tokens; with `SOJOURN_TEST_FULL` 2,000 turns in one of 200,000.
#[tokio::test]
async fn a_session_of_many_turns_keeps_working_in_a_small_window() {
    let is_full = std::env::var_os("SOJOURN_TEST_FULL").is_some();
    let (turns, window, summaries) = if is_full { (2_000, 200_000, 8) } else { (40, 12_000, 3) };
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = json!({
        "name": "many", "prompt": "p", "model": "scripted/inline",
        "model_options": { "max_tokens": 1_000, "context_tokens": window },
    });
    owner.post("/agents", agent).await.ok();
    let id = owner.post("/sessions", json!({ "agent": "many" })).await.ok()["session"]["id"].clone();
    let id = id.as_str().expect("an id");
    let mut log: Vec<Value> = Vec::new();
    for turn in 1..=turns {
        let head = log.last().and_then(|event| event["seq"].as_i64()).unwrap_or_default();
        let call = json!({ "tool": "bash", "input": { "command": format!("echo turn {turn}") } });
        let steps =
            json!([{ "text": "w".repeat(4_000), "tools": [call] }, { "text": format!("Turn {turn}.") }]);
        steer(owner, id, &script(steps)).await;
        let ended = owner.follow_from(id, head, |event| event["type"] == "turn.completed").await;
        assert_eq!(ends(&ended), ["completed"], "turn {turn}");
        log.extend(ended);
    }
    assert_sound(&log);
    let compacted = of(&log, "history.compacted");
    assert!(compacted.len() >= summaries, "{}", compacted.len());
    let largest =
        of(&log, "step.completed").iter().map(|step| step["body"]["usage"]["input_tokens"].as_u64()).max();
    eprintln!("{} summaries, at most {largest:?} tokens", compacted.len());
    assert!(largest.flatten().is_some_and(|tokens| tokens < window));
    // Each command ran, and once.
    let expected: Vec<_> = (1..=turns).map(|turn| format!("turn {turn}\n")).collect();
    assert_eq!(outputs(&log), expected);
    scene.close().await;
}

#[tokio::test]
async fn a_caller_has_a_history_summarized() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id =
        owner.post("/sessions", json!({ "agent": owner.inline_agent().await })).await.ok()["session"]["id"]
            .clone();
    let id = id.as_str().expect("an id");
    let path = format!("/sessions/{id}/compact");
    assert_eq!(owner.post(&path, json!({})).await.error(409)["code"], "nothing_to_compact");
    for turn in 1..=3 {
        steer(owner, id, &script(json!([{ "text": "w".repeat(9_000) }]))).await;
        owner.settled(id, turn).await;
    }

    // An idle session gets a turn for it, which reads no message and gives no result.
    let request = json!({ "instructions": "Keep the numbers." });
    let accepted = owner.post(&path, request.clone()).await;
    assert_eq!(accepted.status, 202);
    let log = owner.settled(id, 4).await;
    assert_sound(&log);
    assert_eq!(ends(&log), vec!["completed"; 4]);
    let asked = of(&log, "history.compaction_requested")[0];
    assert_eq!((&asked["seq"], &asked["body"]), (&accepted.ok()["event"]["seq"], &request));
    let compacted = of(&log, "history.compacted");
    assert_eq!((compacted.len(), &compacted[0]["body"]["trigger"]), (1, &json!("manual")));
    assert_eq!(of(&log, "step.completed").len(), 4, "one for each turn");
    assert_eq!(owner.get(&format!("/sessions/{id}/result")).await.ok()["result"], json!(null));

    // There is nothing left to summarize; the session goes on.
    owner.post(&path, json!({})).await.ok();
    let log = owner.settled(id, 5).await;
    assert_eq!((of(&log, "history.compaction_failed").len(), ends(&log).last()), (1, Some(&"completed")));
    steer(owner, id, &script(json!([{ "text": "Still here." }]))).await;
    let log = owner.settled(id, 6).await;
    assert_sound(&log);
    assert_eq!(of(&log, "agent.message").last().expect("an answer")["body"]["text"], "Still here.");
    scene.close().await;
}

#[tokio::test]
async fn a_history_that_the_provider_refuses_is_summarized_when_a_caller_wants_it() {
    let decide = |request: &Request| {
        let said = request.body["messages"].to_string();
        let step = match () {
            () if said.len() > 40_000 => Step::status(
                400,
                "invalid_request_error",
                "prompt is too long: 208310 tokens > 200000 maximum",
            ),
            () if asks(request) => Step::text("Most of it is done."),
            () if said.contains("Most of it is done.") => Step::text("THE WORD."),
            () => print(request.call),
        };
        counted(request, step)
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({}), json!({ "auto": false })).await;
    assert_eq!(ends(&owner.settled(&id, 1).await), ["error"]);
    assert_eq!(last_turn(owner, &id).await["error"]["code"], "context_exhausted");

    owner.post(&format!("/sessions/{id}/compact"), json!({})).await.ok();
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!((ends(&log), fake.refusals()), (vec!["error", "completed"], Vec::new()));
    assert_eq!(of(&log, "history.compacted")[0]["body"]["trigger"], "manual");
    // The model read a part of what the summary stands for.
    let question = fake.requests().into_iter().rfind(asks).expect("a question");
    assert!(question.body["messages"][0].to_string().contains("is left out here"));
    steer(owner, &id, "Go on.").await;
    assert_eq!(ends(&owner.settled(&id, 3).await).last(), Some(&"completed"));
    scene.close().await;
}

#[tokio::test]
async fn a_running_turn_summarizes_before_its_next_call() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let tool = json!({ "type": "custom", "name": "ask_me", "description": "Asks.", "input_schema": { "type": "object" } });
    let body = json!({ "agent": owner.inline_agent().await, "tools": [tool] });
    let id = owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    for turn in 1..=2 {
        steer(owner, &id, &script(json!([{ "text": "w".repeat(9_000) }]))).await;
        owner.settled(&id, turn).await;
    }
    steer(
        owner,
        &id,
        &script(json!([{ "tools": [{ "tool": "ask_me", "input": {} }] }, { "text": "Done." }])),
    )
    .await;
    let path = format!("/sessions/{id}/pending");
    let open = owner.until(&path, |page| page["data"].as_array().is_some_and(|rows| rows.len() == 1)).await;
    owner.post(&format!("/sessions/{id}/compact"), json!({})).await.ok();
    let result = json!({ "type": "user.custom_tool_result", "action_id": open["data"][0]["id"], "content": [{ "type": "text", "text": "ok" }] });
    owner.post(&format!("/sessions/{id}/events"), json!({ "events": [result] })).await.ok();
    let log = owner.settled(&id, 3).await;
    assert_sound(&log);
    assert_eq!((ends(&log), of(&log, "history.compacted").len()), (vec!["completed"; 3], 1));
    assert_eq!(outputs(&log), ["ok"]);
    assert_eq!(of(&log, "agent.message").last().expect("an answer")["body"]["text"], "Done.");
    scene.close().await;
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    for (field, value) in [
        ("compaction", json!({ "threshold": 0.05 })),
        ("compaction", json!({ "threshold": 0.99 })),
        ("compaction", json!({ "instructions": "x".repeat(5_000) })),
        ("model_options", json!({ "context_tokens": 1_000 })),
        ("model_options", json!({ "context_tokens": 10_000, "max_tokens": 10_000 })),
    ] {
        let mut body = json!({ "name": "n", "prompt": "p", "model": "scripted/inline" });
        body[field] = value.clone();
        assert_eq!(owner.post("/agents", body).await.error(400)["param"], field);
        if field == "compaction" {
            let session = json!({ "agent": agent, "compaction": value });
            assert_eq!(owner.post("/sessions", session).await.error(400)["param"], "compaction");
        }
    }
    scene.close().await;
}

/// The parts of a request in the order in which Anthropic caches them, each with its bytes and whether it ends a cached
/// prefix.
fn parts(request: &Request) -> Vec<(String, bool)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let messages = list(&request.body["messages"]);
    let blocks = messages.iter().flat_map(|message| list(&message["content"]));
    let all = list(&request.body["tools"]).into_iter().chain(list(&request.body["system"])).chain(blocks);
    all.map(|mut part| {
        let ends = part.as_object_mut().and_then(|part| part.remove("cache_control")).is_some();
        (part.to_string(), ends)
    })
    .collect()
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Share of the bytes of all requests that the provider has cached: the longest prefix that an earlier request ended with
/// a mark, which is found at a mark or up to 20 parts before one.
fn cache_hits(requests: &[Request]) -> f64 {
    let (mut cached, mut hit, mut sent) = (BTreeSet::new(), 0, 0);
    for request in requests {
        let parts = parts(request);
        let (mut prefix, mut prefixes) = (String::new(), Vec::new());
        for (part, ends) in &parts {
            prefix += part;
            prefixes.push((prefix.len(), digest(&prefix), *ends));
        }
        let near = |at: &usize| prefixes[*at..].iter().take(21).any(|(.., ends)| *ends);
        let found = (0..prefixes.len()).rev().find(|at| near(at) && cached.contains(&prefixes[*at].1));
        hit += found.map_or(0, |at| prefixes[at].0);
        sent += prefix.len();
        cached.extend(prefixes.into_iter().filter(|(.., ends)| *ends).map(|(_, digest, _)| digest));
    }
    hit as f64 / sent as f64
}

#[tokio::test]
async fn the_history_of_a_long_session_stays_cached() {
    let decide = |request: &Request| {
        let last =
            request.body["messages"].as_array().and_then(|all| all.last()).cloned().unwrap_or_default();
        let step = match () {
            () if asks(request) => Step::text("Everything so far is done."),
            () if last.to_string().contains("tool_result") && request.call.is_multiple_of(4) => {
                Step::text("Done.")
            }
            () => Step::default().and_tool(
                "bash",
                json!({ "command": format!("echo {}; head -c 5000 /dev/zero | tr '\\0' x", request.call) }),
            ),
        };
        counted(request, step)
    };
    let fake = Fake::decide(Anthropic::default(), decide).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({ "max_tokens": 1_000, "context_tokens": 24_000 }), json!({})).await;
    for turn in 1..=15 {
        let log = owner.settled(&id, turn).await;
        assert_eq!(ends(&log).last(), Some(&"completed"));
        steer(owner, &id, "Go on.").await;
    }
    let log = owner.settled(&id, 16).await;
    assert_sound(&log);
    assert!(of(&log, "history.compacted").len() >= 2, "{}", of(&log, "history.compacted").len());
    let rate = cache_hits(&fake.requests());
    eprintln!("cache hits of {} requests: {rate:.3}", fake.requests().len());
    assert!(rate > 0.85, "{rate}");
    scene.close().await;
}
