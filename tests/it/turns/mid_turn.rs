//! Messages that steer a running turn: read before its next model call, each once.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Scene, assert_sound, bash, ends, log, of, outputs, run, script, session, steer, steering::with_fake,
};
use crate::{
    fake::{Fake, Step, anthropic::Anthropic},
    support::{
        program::Program,
        service::{Caller, Ground, KEY, send},
    },
};

/// Sends a message that steers the running turn; returns its `seq`.
async fn steers(owner: &Caller, id: &str, text: &str) -> i64 {
    let message = json!({ "text": text, "mode": "steer" });
    let sent = owner.post(&format!("/sessions/{id}/messages"), message).await;
    assert_eq!(sent.status, 202);
    sent.ok()["event"]["seq"].as_i64().expect("a place")
}

/// How often each message was read: by `turn.steered`, or by the turn that it had joined.
fn reads(log: &[Value]) -> BTreeMap<i64, usize> {
    let steered: Vec<i64> = of(log, "turn.steered")
        .iter()
        .flat_map(|event| event["body"]["seqs"].as_array().expect("a list"))
        .map(|seq| seq.as_i64().expect("a place"))
        .collect();
    let started: Vec<_> = of(log, "turn.started").iter().map(|event| event["turn_id"].clone()).collect();
    let count = |message: &&Value| {
        let seq = message["seq"].as_i64().expect("a place");
        let by_steer = steered.iter().filter(|steered| **steered == seq).count();
        // A message that was steered is not read again by its own turn.
        let by_turn = usize::from(by_steer == 0 && started.contains(&message["turn_id"]));
        (seq, by_steer + by_turn)
    };
    of(log, "user.message").iter().map(count).collect()
}

#[tokio::test]
async fn a_message_that_steers_is_read_before_the_next_model_call_behind_all_results() {
    let slow = Step {
        delay: Duration::from_secs(2),
        ..Step::default().and_tool("bash", json!({ "command": "echo ran" }))
    };
    let fake =
        Fake::script(Anthropic::default(), [slow, Step::text("Done."), Step::text("And now that.")]).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = with_fake(owner, "one").await;
    fake.called(1).await;
    let first = steers(owner, &id, "rather this").await;
    let queued = steer(owner, &id, "afterwards").await;
    let second = steers(owner, &id, "and this").await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    let steered = of(&log, "turn.steered");
    assert_eq!(steered.len(), 1);
    assert_eq!(steered[0]["body"]["seqs"], json!([first, second]));
    assert_eq!(steered[0]["body"]["from_turn_id"], of(&log, "user.message")[1]["turn_id"]);
    assert_eq!(steered[0]["body"].get("from_is_empty"), None, "another message waits there");
    let said = fake.requests()[1].body["messages"].to_string();
    let places: Vec<_> = ["one", "ran", "rather this", "and this"].map(|text| said.find(text)).to_vec();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{said}");
    assert!(!said.contains("afterwards"), "{said}");
    assert_eq!(fake.refusals(), Vec::<String>::new());
    assert_eq!(ends(&log), ["completed", "completed"]);
    // Each message says when it was read, also where the stream came before that.
    let log = super::log(owner, &id).await;
    let read_at = |seq: i64| {
        let message = log.iter().find(|event| event["seq"] == seq).expect("it is there");
        message["processed_at"].clone()
    };
    assert_eq!((read_at(first), read_at(second)), (steered[0]["ts"].clone(), steered[0]["ts"].clone()));
    assert_eq!(read_at(queued), of(&log, "turn.started")[1]["ts"]);
    assert!(reads(&log).values().all(|times| *times == 1), "{log:?}");
    scene.close().await;
}

#[tokio::test]
async fn a_message_during_the_last_response_continues_the_turn_and_its_queued_turn_is_gone() {
    let slow = Step { delay: Duration::from_secs(2), ..Step::text("I think I am done.") };
    let fake =
        Fake::script(Anthropic::default(), [slow, Step::text("Now I am."), Step::text("Again.")]).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = with_fake(owner, "one").await;
    fake.called(1).await;
    let seq = steers(owner, &id, "not yet").await;
    assert_eq!(session(owner, &id).await["input_cursor"], 2);
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), of(&log, "step.completed").len()), (vec!["completed"], 2));
    let steered = &of(&log, "turn.steered")[0]["body"];
    assert_eq!((&steered["seqs"], &steered["from_is_empty"]), (&json!([seq]), &json!(true)));
    let path = format!("/sessions/{id}");
    let turns = owner.get(&format!("{path}/turns")).await.ok();
    assert_eq!(turns["data"].as_array().map(Vec::len), Some(1), "{turns}");
    let gone = steered["from_turn_id"].as_str().expect("an id");
    owner.get(&format!("{path}/turns/{gone}")).await.error(404);
    let now = session(owner, &id).await;
    assert_eq!((&now["status"], &now["input_cursor"]), (&json!("idle"), &json!(seq)));
    let result = owner.get(&format!("{path}/result")).await.ok();
    assert_eq!(result["result"]["body"]["text"], "Now I am.", "{result}");
    // What comes after the end is the next turn's.
    steers(owner, &id, "once more").await;
    let log = owner.settled(&id, 2).await;
    assert_eq!((ends(&log), of(&log, "turn.steered").len()), (vec!["completed", "completed"], 1));
    assert_eq!(fake.refusals(), Vec::<String>::new());
    // An imported session says the same.
    let file = owner.get(&format!("{path}/export")).await.ok();
    let request =
        owner.request(Method::POST, "/sessions/import").header("content-type", "application/x-ndjson");
    let imported = send(request.body(file.as_str().expect("lines").to_owned())).await.ok();
    let copy = imported["session"]["id"].as_str().expect("an id");
    let times = |log: &[Value]| -> Vec<Value> {
        of(log, "user.message").iter().map(|event| event["processed_at"].clone()).collect()
    };
    assert_eq!(times(&super::log(owner, copy).await), times(&super::log(owner, &id).await));
    scene.close().await;
}

#[tokio::test]
async fn a_waiting_turn_reads_what_steers_it_with_the_answers() {
    let scene = Scene::open(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = &scene.owner;
    let question = json!({ "tool": "ask", "input": { "questions": [{ "question": "Where?" }, { "question": "When?" }] } });
    let steps =
        json!([{ "tools": [question] }, { "text": "Never read: the newest message has the script." }]);
    let body = json!({ "agent": owner.inline_agent().await, "ask": { "mode": "wait" }, "input": { "script": steps } });
    let made = owner.post("/sessions", body).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    let path = format!("/sessions/{id}/pending");
    let open = owner.until(&path, |page| page["data"].as_array().is_some_and(|rows| rows.len() == 1)).await;
    owner.until(&format!("/sessions/{id}"), |session| session["phase"] == "requires_action").await;
    let text = script(json!([{ "text": "I read both." }]));
    let event = json!({ "type": "user.message", "text": text, "mode": "steer" });
    let sent = owner.post(&format!("/sessions/{id}/events"), json!({ "events": [event] })).await.ok();
    assert_eq!(sent["data"][0]["type"], "user.message");
    let seq = sent["data"][0]["seq"].as_i64().expect("a place");
    sleep(Duration::from_millis(300)).await;
    assert_eq!(of(&log(owner, id).await, "turn.resumed").len(), 0, "it does not disturb the wait");
    let answers = json!([{ "type": "user.answer", "action_id": open["data"][0]["id"], "answers": [{ "text": "here" }, { "text": "now" }] }]);
    owner.post(&format!("/sessions/{id}/events"), json!({ "events": answers })).await.ok();
    let log = owner.settled(id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), outputs(&log)), (vec!["completed"], vec!["1. here\n2. now"]));
    assert_eq!(of(&log, "turn.steered")[0]["body"]["seqs"], json!([seq]));
    assert_eq!(of(&log, "agent.message").last().expect("an answer")["body"]["text"], "I read both.");
    assert_eq!(scene.service.metrics().await["sojourn_messages_steered_total"], 1.0);
    scene.close().await;
}

/// A session whose turn calls the model several times, and messages that steer it at any time, some at once.
async fn many(owner: &Caller, gaps: &[u64]) -> String {
    let steps: Vec<_> = (0..3).map(|at| run(&format!("sleep 0.05; echo {at}"))).collect();
    let id = owner.play(json!([steps[0], steps[1], steps[2], { "text": "Done." }])).await;
    for (at, gap) in gaps.iter().enumerate() {
        sleep(Duration::from_millis(*gap)).await;
        let more = script(
            json!([{ "tools": [bash(&format!("sleep 0.02; echo {at}"))] }, { "text": format!("Done with {at}.") }]),
        );
        if at % 3 == 2 {
            steer(owner, &id, &more).await;
        } else {
            tokio::join!(steers(owner, &id, &more), steers(owner, &id, &more));
        }
    }
    id
}

async fn at_rest(owner: &Caller, id: &str) -> Vec<Value> {
    owner
        .until(&format!("/sessions/{id}"), |session| {
            session["status"] == "idle" && session["input_cursor"].as_i64() >= Some(2)
        })
        .await;
    let log = log(owner, id).await;
    assert_sound(&log);
    log
}

#[tokio::test]
async fn whenever_a_message_steers_it_is_read_once() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let mut steered = 0;
    for gaps in [
        [0, 40, 10, 90, 20, 60],
        [120, 5, 70, 0, 130, 15],
        [200, 30, 30, 30, 30, 250],
        [3, 150, 80, 40, 7, 110],
    ] {
        let id = many(owner, &gaps).await;
        let log = at_rest(owner, &id).await;
        assert!(reads(&log).values().all(|times| *times == 1), "{:?}", reads(&log));
        assert!(ends(&log).iter().all(|end| *end == "completed"), "{:?}", ends(&log));
        steered += of(&log, "turn.steered").len();
    }
    assert!(steered > 0, "no message came in time");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_reads_no_message_twice() {
    let ground = Ground::new().await;
    let start = |ground: &Ground| {
        let program = Program::start(ground, &["--lease-ms=1000"]);
        let caller = Caller::new(&program.base, KEY);
        (program, caller)
    };
    let (mut program, mut owner) = start(&ground);
    for after in [0, 10, 30, 60, 120] {
        let id = many(&owner, &[20, 60]).await;
        sleep(Duration::from_millis(after)).await;
        program.kill();
        (program, owner) = start(&ground);
        let log = at_rest(&owner, &id).await;
        assert!(reads(&log).values().all(|times| *times == 1), "{:?}", reads(&log));
    }
    program.kill();
}
