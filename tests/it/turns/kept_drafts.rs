//! The database is away at the moment when work that cannot be repeated for free is done.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::sleep;

use super::{appears, of, outputs, run};
use crate::{
    fake::{Fake, Step, anthropic::Anthropic},
    support::{
        relay::{Mode, Relay},
        service::{Ground, Service},
    },
};

/// The lease outlives the outage, so no other slot takes over.
const LEASE: &str = "--lease-ms=20000";

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_not_asked_again_for_an_answer_that_could_not_be_recorded() {
    let ground = Ground::new().await;
    let relay = Arc::new(Relay::start(&ground.urls(), None, Mode::Forward).await);
    // The database goes away while the model answers: first with a call, then with the end of the turn.
    let fake = Fake::decide(Anthropic::default(), {
        let relay = Arc::clone(&relay);
        move |request| {
            relay.set(Mode::Reset);
            match request.call {
                1 => Step::default().and_tool("bash", json!({ "command": "echo ran" })),
                _ => Step::text("Done."),
            }
        }
    })
    .await;
    let base_url = format!("--anthropic-base-url={}", fake.base_url);
    let service = Service::on(&relay.urls(&ground.urls()), ground.data_dir.path(), &[LEASE, &base_url]).await;
    let owner = service.owner();
    let agent =
        json!({ "name": "fake", "prompt": "", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test" });
    owner.post("/agents", agent).await.ok();
    let created = owner.post("/sessions", json!({ "agent": "fake", "input": "Go." })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id").to_owned();
    for calls in 1..=2 {
        while fake.calls() < calls {
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_secs(1)).await;
        relay.set(Mode::Forward);
    }
    let log = owner.settled(&id, 1).await;
    assert_eq!(fake.calls(), 2, "{log:?}");
    let steps = of(&log, "step.completed");
    assert_eq!(steps.len(), 2);
    assert_eq!(of(&log, "turn.started").len(), 1);
    let end = log.last().expect("an end");
    assert_eq!((&end["type"], &end["body"]["yield_reason"]), (&json!("turn.completed"), &json!("completed")));
    let tokens = |usage: &serde_json::Value| usage["output_tokens"].as_u64().expect("tokens");
    let sum: u64 = steps.iter().map(|step| tokens(&step["body"]["usage"])).sum();
    assert_eq!(tokens(&end["body"]["usage"]), sum);
    assert_eq!(outputs(&log), ["ran\n"]);
    service.stop().await;
}

#[tokio::test]
async fn a_command_whose_result_could_not_be_recorded_has_its_result() {
    let ground = Ground::new().await;
    let relay = Relay::start(&ground.urls(), None, Mode::Forward).await;
    let service = Service::on(&relay.urls(&ground.urls()), ground.data_dir.path(), &[LEASE]).await;
    let owner = service.owner();
    let id = owner
        .play(json!([run("touch begun; sleep 1; echo ran >> file; cat file"), { "text": "Done." }]))
        .await;
    appears(&ground, "begun").await;
    relay.set(Mode::Reset);
    sleep(Duration::from_secs(2)).await;
    relay.set(Mode::Forward);
    let log = owner.settled(&id, 1).await;
    assert_eq!(outputs(&log), ["ran\n"]);
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "ran");
    assert_eq!(of(&log, "turn.started").len(), 1);
    service.stop().await;
}
