//! Failing providers: which calls are retried, for how long, and the effect on other sessions.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Scene, assert_sound, ends, last_turn, of, script, session, steer, until};
use crate::{
    fake::{Fake, Fault, Step, anthropic::Anthropic, openai::OpenAi},
    model::Named,
    support::service::Caller,
};

fn status(status: u16, retry_after: Option<&str>) -> Step {
    let headers = retry_after.map(|value| ("retry-after", value.to_owned())).into_iter().collect();
    let (kind, message) = ("overloaded_error", "Overloaded".to_owned());
    Step::fault(Fault::Status { status, headers, kind, message })
}

async fn create(owner: &Caller, provider: &str, key: &str) -> String {
    let agent = json!({ "name": "fake", "prompt": "", "model": format!("{provider}/m-1"), "key": key });
    owner.post("/agents", agent).await.ok();
    let created = owner.post("/sessions", json!({ "agent": "fake", "input": "Go." })).await.ok();
    created["session"]["id"].as_str().expect("an id").to_owned()
}

async fn scene<D: Named>(fake: &Fake<D>) -> Scene {
    let path = if D::PROVIDER == "openai" { "/v1" } else { "" };
    Scene::open(&[&format!("--{}-base-url={}{path}", D::PROVIDER, fake.base_url)]).await
}

fn codes(log: &[Value]) -> Vec<&str> {
    of(log, "error.model").iter().map(|event| event["body"]["code"].as_str().expect("a code")).collect()
}

fn time(text: &Value) -> time::OffsetDateTime {
    let format = &time::format_description::well_known::Rfc3339;
    time::OffsetDateTime::parse(text.as_str().expect("a time"), format).expect("RFC 3339")
}

async fn recovers<D: Named>(faults: Vec<Step>) {
    let count = faults.len();
    let fake = Fake::script(D::default(), faults.into_iter().chain([Step::text("There I am.")])).await;
    let scene = scene(&fake).await;
    let id = create(&scene.owner, D::PROVIDER, "sk-a-key-of-the-test").await;
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!(codes(&log), vec!["model_unavailable"; count]);
    for failed in of(&log, "error.model") {
        let wait = time(&failed["body"]["retry_at"]) - time(&failed["ts"]);
        assert!(wait.is_positive() && wait < time::Duration::seconds(31), "{failed}");
    }
    // The truncated response is not in the log.
    assert_eq!(of(&log, "agent.message").len(), 1);
    assert_eq!(of(&log, "step.completed").len(), 1);
    assert_eq!(session(&scene.owner, &id).await["usage"]["steps"], 1);
    assert_eq!(fake.refusals(), Vec::<String>::new());
    scene.close().await;
}

#[tokio::test]
async fn a_provider_that_fails_is_asked_again_within_the_turn() {
    let error = Fault::ErrorEvent { kind: "overloaded_error", message: "Overloaded" };
    recovers::<Anthropic>(vec![
        status(529, None),
        Step::fault(Fault::CutAfter(500)),
        Step::fault(error),
        status(500, None),
    ])
    .await;
}

#[tokio::test]
async fn an_openai_compatible_provider_is_asked_again_too() {
    let error = Fault::ErrorEvent { kind: "server_error", message: "Try again." };
    recovers::<OpenAi>(vec![status(503, None), Step::fault(Fault::CutAfter(300)), Step::fault(error)]).await;
}

#[tokio::test]
async fn every_fault_that_may_pass_is_survived_once() {
    let scene = Scene::open(&[]).await;
    let kinds = ["rate_limited", "overloaded", "unavailable", "stall", "cut"];
    let step = |kind| {
        let fault = json!({ "kind": kind, "retry_after_ms": 1 });
        let glob = json!({ "tool": "glob", "input": { "pattern": kind } });
        json!({ "text": "A text of some length.", "tools": [glob], "delay_ms": 20, "fault": fault })
    };
    let id = scene.owner.play(kinds.map(step).into_iter().collect()).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), codes(&log)), (vec!["completed"], vec!["model_unavailable"; kinds.len()]));
    assert_eq!(of(&log, "agent.message").len(), kinds.len() + 1, "the truncated response is not in the log");
    scene.close().await;
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let fake = Fake::script(Anthropic::default(), [status(429, Some("2")), Step::text("Now.")]).await;
    let scene = scene(&fake).await;
    let id = create(&scene.owner, "anthropic", "sk-a-key-of-the-test").await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!(ends(&log), ["completed"]);
    let failed = of(&log, "error.model")[0];
    let asked = time(&failed["body"]["retry_at"]) - time(&failed["ts"]);
    // Counted from just before the event was written.
    assert!(asked > time::Duration::milliseconds(1_900), "{asked}");
    let answered = time(&of(&log, "step.completed")[0]["ts"]);
    assert!(answered >= time(&failed["body"]["retry_at"]));
    scene.close().await;
}

#[tokio::test]
async fn a_provider_that_stays_away_ends_the_turn_and_the_session_can_be_steered() {
    // Seven times: one more than the number of attempts.
    let fault = json!({ "kind": "overloaded", "times": 7, "retry_after_ms": 1 });
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([{ "fault": fault, "text": "Never." }])).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(codes(&log), vec!["model_unavailable"; 6]);
    assert!(of(&log, "error.model")[5]["body"]["retry_at"].is_null());
    let turn = last_turn(owner, &id).await;
    assert_eq!(
        (turn["state"].as_str(), turn["error"]["code"].as_str()),
        (Some("error"), Some("model_unavailable"))
    );
    assert_eq!(session(owner, &id).await["status"], "failed");
    steer(owner, &id, &script(json!([{ "text": "Back." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(ends(&log), ["error", "completed"]);
    assert_eq!(session(owner, &id).await["status"], "idle");
    scene.close().await;
}

#[tokio::test]
async fn a_long_wait_gives_the_only_slot_to_others_and_hears_a_cancel() {
    let scene = Scene::open(&["--max-concurrent-turns=1"]).await;
    let owner = &scene.owner;
    let fault = json!({ "kind": "rate_limited", "retry_after_ms": 600_000 });
    let waiting = owner.play(json!([{ "fault": fault, "text": "In ten minutes." }])).await;
    until(owner, &waiting, "error.model").await;
    let other = owner.play(json!([{ "text": "Meanwhile." }])).await;
    assert_eq!(ends(&owner.settled(&other, 1).await), ["completed"]);
    assert_eq!(session(owner, &waiting).await["status"], "running");
    // A steer does not change the wait.
    steer(owner, &waiting, &script(json!([{ "text": "The next turn." }]))).await;
    let asked = Instant::now();
    owner.post(&format!("/sessions/{waiting}/cancel"), json!({})).await.ok();
    let log = owner.settled(&waiting, 2).await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_sound(&log);
    assert_eq!(ends(&log), ["canceled", "canceled"]);
    assert_eq!(of(&log, "turn.started").len(), 1);
    assert_eq!(of(&log, "error.model").len(), 1, "no call was made too early");
    scene.close().await;
}

#[tokio::test]
async fn a_cancel_at_any_moment_of_giving_the_slot_away_is_heard() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let fault = json!({ "kind": "rate_limited", "retry_after_ms": 600_000 });
    for case in 0..12 {
        let agent = owner.inline_agent().await;
        let input = json!({ "case": case, "script": [{ "fault": fault, "text": "In ten minutes." }] });
        let created = owner.post("/sessions", json!({ "agent": agent, "input": input })).await.ok();
        let id = created["session"]["id"].as_str().expect("an id").to_owned();
        // At this event the worker is about to release the lease.
        until(owner, &id, "error.model").await;
        owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
        assert_eq!(ends(&owner.settled(&id, 1).await), ["canceled"]);
    }
    scene.close().await;
}

#[tokio::test]
async fn a_wait_ends_with_the_turn_s_deadline() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let fault = json!({ "kind": "rate_limited", "retry_after_ms": 600_000 });
    let input = json!({ "script": [{ "fault": fault, "text": "In ten minutes." }] });
    let session = json!({ "agent": agent, "input": input, "limits": { "turn_seconds": 4 } });
    let created = owner.post("/sessions", session).await.ok();
    let log = owner.settled(created["session"]["id"].as_str().expect("an id"), 1).await;
    assert_eq!(ends(&log), ["deadline_exceeded"]);
    let took = time(&of(&log, "turn.completed")[0]["ts"]) - time(&of(&log, "turn.started")[0]["ts"]);
    assert!(took >= time::Duration::seconds(4) && took < time::Duration::seconds(6), "{took}");
    scene.close().await;
}

#[tokio::test]
async fn a_key_that_is_refused_fails_the_session_until_it_is_rotated() {
    let fake = Fake::decide(Anthropic::default(), |_| Step::text("Thank you.")).await;
    let scene = scene(&fake).await;
    let owner = &scene.owner;
    let id = create(owner, "anthropic", crate::fake::anthropic::BAD_KEY).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!((ends(&log), codes(&log)), (vec!["error"], vec!["model_unauthorized"]));
    assert!(!log.iter().any(|event| event.to_string().contains(crate::fake::anthropic::BAD_KEY)));
    let failed = session(owner, &id).await;
    assert_eq!(failed["status"], "failed");
    assert_eq!(last_turn(owner, &id).await["error"]["code"], "model_unauthorized");
    let credential = failed["credential_id"].as_str().expect("an id").to_owned();
    owner.patch(&format!("/credentials/{credential}"), json!({ "key": "sk-ant-a-new-one" })).await.ok();
    steer(owner, &id, "Again.").await;
    assert_eq!(ends(&owner.settled(&id, 2).await), ["error", "completed"]);
    assert_eq!(session(owner, &id).await["status"], "idle");
    scene.close().await;
}

#[tokio::test]
async fn a_history_that_no_longer_fits_ends_the_turn() {
    let too_long = "prompt is too long: 208310 tokens > 200000 maximum";
    let steps = [
        Step::default().and_tool("glob", json!({ "pattern": "*" })),
        Step::status(400, "invalid_request_error", too_long),
    ];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let scene = scene(&fake).await;
    let id = create(&scene.owner, "anthropic", "sk-a-key-of-the-test").await;
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((ends(&log), codes(&log)), (vec!["error"], vec!["context_exhausted"]));
    let session = session(&scene.owner, &id).await;
    assert_eq!(session["status"], "idle", "something happened before");
    assert_eq!(last_turn(&scene.owner, &id).await["error"]["code"], "context_exhausted");
    scene.close().await;
}
