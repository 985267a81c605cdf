//! Messages and turns: which turn reads a message, and in which order.

use serde_json::json;
use sojourn::base::limit;

use super::{Scene, assert_sound, ends, log, of, run, script, session, steer};
use crate::{
    fake::{Fake, Step, anthropic::Anthropic},
    support::service::Caller,
};

/// A session whose model is a fake of the test.
pub(super) async fn with_fake(owner: &Caller, input: &str) -> String {
    let agent = json!({ "name": "fake", "prompt": "Answer.", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test" });
    let agent = owner.post("/agents", agent).await.ok();
    let session = json!({ "agent": agent["id"], "input": input });
    owner.post("/sessions", session).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn inputs_that_wait_share_one_turn() {
    // Without a worker everything stays queued.
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([{ "text": "Never." }])).await;
    let second = steer(owner, &id, "And this.").await;
    let third = steer(owner, &id, &script(json!([{ "text": "All three." }]))).await;
    let turns = owner.get(&format!("/sessions/{id}/turns")).await.ok()["data"].clone();
    assert_eq!(turns.as_array().map(Vec::len), Some(1));
    assert_eq!((turns[0]["state"].as_str(), turns[0]["attempt"].as_i64()), (Some("queued"), Some(0)));
    assert_eq!(
        (turns[0]["input_from_seq"].as_i64(), turns[0]["input_to_seq"].as_i64()),
        (Some(2), Some(third))
    );
    assert_eq!((second, third), (3, 4));
    let waiting = session(owner, &id).await;
    assert_eq!((waiting["status"].as_str(), waiting["input_cursor"].as_i64()), (Some("queued"), Some(0)));

    let worker = scene.ground.serve(&["--role=worker"]).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let started = of(&log, "turn.started");
    assert_eq!(started.len(), 1);
    assert_eq!(started[0]["turn_id"], turns[0]["id"]);
    assert_eq!(
        (&started[0]["body"]["input_from_seq"], &started[0]["body"]["input_to_seq"]),
        (&json!(2), &json!(4))
    );
    assert_eq!(of(&log, "agent.message")[0]["body"]["text"], "All three.");
    worker.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_steer_during_a_turn_is_read_by_the_next_one_with_the_others_in_order() {
    let slow = Step { delay: std::time::Duration::from_millis(500), ..Step::text("The first answer.") };
    let fake = Fake::script(Anthropic::default(), [slow, Step::text("The second answer.")]).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = with_fake(owner, "one").await;
    fake.called(1).await;
    let two = steer(owner, &id, "two").await;
    let three = steer(owner, &id, "three").await;
    // Durable at once, and the running turn is unchanged.
    let running = session(owner, &id).await;
    assert_eq!((running["status"].as_str(), running["head"].as_i64()), (Some("running"), Some(three)));
    assert_eq!(running["input_cursor"], 2);
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed", "completed"]);
    let started = of(&log, "turn.started");
    assert_eq!(started[1]["body"]["input_from_seq"], two);
    assert_eq!(started[1]["body"]["input_to_seq"], three);
    let said = fake.requests()[1].body["messages"].to_string();
    let places: Vec<_> = ["one", "The first answer.", "two", "three"].map(|text| said.find(text)).to_vec();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{said}");
    assert!(!fake.requests()[0].body["messages"].to_string().contains("two"));
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn an_interrupt_ends_the_running_turn_and_is_read_next() {
    let fake = Fake::script(
        Anthropic::default(),
        [Step::fault(crate::fake::Fault::StallAfter(300)), Step::text("Now this.")],
    )
    .await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = with_fake(owner, "Think for hours.").await;
    fake.called(1).await;
    let message = json!({ "text": "Stop, do this.", "mode": "interrupt" });
    owner.post(&format!("/sessions/{id}/messages"), message).await.ok();
    let log = owner.settled(&id, 2).await;
    fake.hung_up(1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["canceled", "completed"]);
    assert_eq!(of(&log, "turn.cancel_requested")[0]["body"]["mode"], "interrupt");
    let said = fake.requests()[1].body["messages"].to_string();
    assert!(said.contains("Think for hours.") && said.contains("Stop, do this."), "{said}");
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn an_interrupt_of_an_idle_session_is_an_ordinary_message() {
    let scene = Scene::open(&[]).await;
    let id = scene.owner.play(json!([{ "text": "One." }])).await;
    scene.owner.settled(&id, 1).await;
    let message = json!({ "text": "Two.", "mode": "interrupt" });
    scene.owner.post(&format!("/sessions/{id}/messages"), message).await.ok();
    let log = scene.owner.settled(&id, 2).await;
    assert_eq!(ends(&log), ["completed", "completed"]);
    assert!(of(&log, "turn.cancel_requested").is_empty());
    scene.close().await;
}

#[tokio::test]
async fn more_input_than_any_model_reads_does_not_end_the_session() {
    let fake = Fake::decide(Anthropic::default(), |_| Step::text("Done.")).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = with_fake(owner, "Hello.").await;
    owner.settled(&id, 1).await;
    owner.post(&format!("/sessions/{id}/pause"), json!({})).await.ok();
    let one = limit::TEXT_BYTES_MAX;
    let count = limit::CONVERSATION_BYTES_MAX / one + 2;
    for n in 0..count {
        let text = n.to_string();
        steer(owner, &id, &(text.clone() + &"x".repeat(one - text.len()))).await;
    }
    owner.post(&format!("/sessions/{id}/resume"), json!({})).await.ok();
    let log = owner.settled(&id, 2).await;
    assert_eq!(ends(&log), ["completed", "completed"]);
    let said = fake.requests()[1].body["messages"].to_string();
    let left_out = said.matches(&format!("[This message of {one} bytes was left out")).count();
    assert_eq!(left_out, count - limit::WAITING_INPUT_BYTES_MAX / one);
    steer(owner, &id, "Go on.").await;
    let log = owner.settled(&id, 3).await;
    assert_eq!(ends(&log), ["completed"; 3]);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn many_steers_at_once_lose_nothing_and_leave_no_gap() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([run("sleep 0.3"), { "text": "First." }])).await;
    let texts: Vec<String> = (0..24).map(|at| format!("message {at}")).collect();
    let sent = texts.iter().map(|text| steer(owner, &id, text));
    let mut places = futures::future::join_all(sent).await;
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), texts.len());
    let last = *places.last().expect("some");
    // All of them are read, in whichever turns.
    let is_read = |event: &serde_json::Value| event["body"]["input_to_seq"].as_i64() >= Some(last);
    owner.follow(&id, |event| event["type"] == "turn.started" && is_read(event)).await;
    let turns = of(&log(owner, &id).await, "turn.started").len();
    let log = owner.settled(&id, turns).await;
    assert_sound(&log);
    let windows: Vec<_> = of(&log, "turn.started")
        .iter()
        .map(|event| (event["body"]["input_from_seq"].as_i64(), event["body"]["input_to_seq"].as_i64()))
        .collect();
    let inputs: Vec<_> = of(&log, "user.message").iter().map(|event| event["seq"].as_i64()).collect();
    for input in inputs {
        assert_eq!(windows.iter().filter(|(from, to)| *from <= input && input <= *to).count(), 1);
    }
    scene.close().await;
}
