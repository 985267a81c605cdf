//! Cancel: waiting work ends at once, running work ends soon, and no process survives.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{
    Scene, appears, ask_model, assert_sound, ends, last_turn, log, of, outputs, processes, run, script,
    session, steer,
};
use crate::{
    fake::{Fake, Fault, Step, anthropic::Anthropic},
    support::service::Caller,
};

/// Time to settle, on a machine that is busy with other tests.
const SETTLED: Duration = Duration::from_secs(5);

async fn cancel(owner: &Caller, id: &str) -> serde_json::Value {
    owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok()
}

#[tokio::test]
async fn a_queued_turn_ends_at_once_and_its_input_stays_in_the_history() {
    let fake = Fake::script(Anthropic::default(), [Step::text("I have read both.")]).await;
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = ask_model(owner, "the first").await;
    let canceled = cancel(owner, &id).await;
    assert_eq!((canceled["status"].as_str(), canceled["input_cursor"].as_i64()), (Some("idle"), Some(2)));
    assert_eq!(canceled["last_turn"]["yield_reason"], "canceled");
    let turn = last_turn(owner, &id).await;
    assert_eq!((turn["state"].as_str(), turn["attempt"].as_i64()), (Some("ok"), Some(0)));

    let worker =
        scene.ground.serve(&["--role=worker", &format!("--anthropic-base-url={}", fake.base_url)]).await;
    steer(owner, &id, "the second").await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["canceled", "completed"]);
    assert_eq!(fake.calls(), 1, "the canceled input created no turn of its own");
    let said = fake.requests()[0].body["messages"].to_string();
    assert!(said.find("the first") < said.find("the second") && said.contains("the first"), "{said}");
    assert_eq!(fake.refusals(), Vec::<String>::new());
    worker.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_model_call_is_hung_up_on() {
    for fault in [Fault::Stall, Fault::StallAfter(400)] {
        let fake = Fake::script(Anthropic::default(), [Step::fault(fault), Step::text("Back.")]).await;
        let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
        let owner = &scene.owner;
        let agent =
            json!({ "name": "fake", "prompt": "", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test" });
        owner.post("/agents", agent).await.ok();
        let created = owner.post("/sessions", json!({ "agent": "fake", "input": "Go." })).await.ok();
        let id = created["session"]["id"].as_str().expect("an id").to_owned();
        fake.called(1).await;
        let asked = Instant::now();
        let running = cancel(owner, &id).await;
        assert_eq!(running["status"], "running", "it ends at its checkpoint, not in this call");
        let log = owner.settled(&id, 1).await;
        assert!(asked.elapsed() < SETTLED, "{:?}", asked.elapsed());
        fake.hung_up(1).await;
        assert_sound(&log);
        assert_eq!(ends(&log), ["canceled"]);
        let session = session(owner, &id).await;
        assert_eq!((session["status"].as_str(), session["usage"]["steps"].as_i64()), (Some("idle"), Some(0)));
        steer(owner, &id, "Again.").await;
        assert_eq!(ends(&owner.settled(&id, 2).await), ["canceled", "completed"]);
        assert_eq!(fake.refusals(), Vec::<String>::new());
        scene.close().await;
    }
}

#[tokio::test]
async fn nothing_of_a_command_survives_however_it_resists() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let mark = format!("resists-{}", std::process::id());
    let stubborn = format!(
        "trap '' TERM; (setsid bash -c 'trap \"\" TERM; touch fled; exec -a {mark}-fled sleep 600' &) ; \
         bash -c 'exec -a {mark}-child sleep 600' & touch ready; while :; do sleep 1; done"
    );
    let id = owner.play(json!([run(&stubborn), { "text": "Never." }])).await;
    appears(&scene.ground, "ready").await;
    appears(&scene.ground, "fled").await;
    super::wait_until("both run", || processes(&mark) >= 2).await;
    let asked = Instant::now();
    cancel(owner, &id).await;
    let log = owner.settled(&id, 1).await;
    assert!(asked.elapsed() < SETTLED, "{:?}", asked.elapsed());
    assert_eq!(processes(&mark), 0, "the whole process tree is gone when the turn has ended");
    assert_sound(&log);
    assert_eq!(ends(&log), ["canceled"]);
    assert!(outputs(&log)[0].contains("canceled"), "{:?}", outputs(&log));

    // The sandbox still exists, and the model gets the outcome of the call.
    steer(owner, &id, &script(json!([run("ls"), { "text": "There." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(of(&log, "sandbox.created").len(), 1);
    assert!(outputs(&log)[1].contains("ready"));
    scene.close().await;
}

#[tokio::test]
async fn an_idle_session_has_nothing_to_cancel() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([{ "text": "Done." }])).await;
    owner.settled(&id, 1).await;
    let before = session(owner, &id).await;
    assert_eq!(cancel(owner, &id).await, before);
    assert_eq!(session(owner, &id).await, before);
    scene.close().await;
}

#[tokio::test]
async fn a_cancel_ends_the_running_turn_and_the_one_that_waits() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([run("touch ready; sleep 600"), { "text": "Never." }])).await;
    appears(&scene.ground, "ready").await;
    steer(owner, &id, "This waits.").await;
    cancel(owner, &id).await;
    cancel(owner, &id).await;
    let log_at_end = owner.settled(&id, 2).await;
    assert_sound(&log_at_end);
    assert_eq!(ends(&log_at_end), ["canceled", "canceled"]);
    assert_eq!(of(&log_at_end, "turn.cancel_requested").len(), 1, "asked twice, requested once");
    let at_rest = session(owner, &id).await;
    assert_eq!(at_rest["status"], "idle");
    let history = script(json!([{ "text": "Here." }]));
    steer(owner, &id, &history).await;
    owner.settled(&id, 3).await;
    assert_sound(&log(owner, &id).await);
    scene.close().await;
}
