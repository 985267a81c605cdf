//! The database is away at the moment when work that cannot be repeated for free is done.

use std::{fs, sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::sleep;

use super::{Scene, appears, ask_model, of, outputs, run, script, steer};
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
    let id = ask_model(&owner, "Go.").await;
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

#[tokio::test]
async fn a_large_result_is_recorded_after_an_append_that_failed() {
    let scene = Scene::open(&[LEASE]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([{ "text": "First." }])).await;
    owner.settled(&id, 1).await;
    // The blob store is away, so the body goes into the database before the append, and again before the next one.
    let blobs = scene.ground.data_dir.path().join("blobs");
    fs::rename(&blobs, scene.ground.data_dir.path().join("blobs.away")).unwrap();
    fs::write(&blobs, "not a directory").unwrap();
    scene
        .ground
        .sql(
            "create sequence appends;
             grant usage on sequence appends to public;
             create function fail_once() returns trigger language plpgsql as $$
             begin
                 if nextval('appends') = 1 then
                     raise exception 'the server is shutting down' using errcode = '57P01';
                 end if;
                 return new;
             end
             $$;
             create trigger fail_once before insert on event
                 for each row when (new.type = 'tool.result') execute function fail_once()",
        )
        .await;
    let quotes = "echo ran >> file; yes '\"\"\"\"\"\"\"\"' | head -c 29000";
    steer(owner, &id, &script(json!([run(quotes), run("cat file"), { "text": "Done." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(scene.ground.count("select last_value from appends").await, 3, "one append failed");
    assert_eq!(outputs(&log)[1], "ran\n", "the command ran once");
    let event = of(&log, "tool.result")[0]["id"].as_str().expect("an id");
    let whole = owner.get(&format!("/sessions/{id}/events/{event}/content")).await.ok();
    assert_eq!(whole["output"].as_str().map(str::len), Some(29_000));
    scene.close().await;
}
