//! Two workers and one session: the second one finishes the work of the first.

use serde_json::{Value, json};
use sqlx::Connection;

use super::{
    Scene, appears, ask_model, assert_sound, ends,
    hold::{Hold, Point, Then},
    of, outputs, run, script, steer, until, wait_until, workspace,
};
use crate::fake::{Fake, Fault, Step, anthropic::Anthropic};

/// Counts its runs, and waits for the file `go`.
const COUNTED: &str = "echo run >> counter; touch ready; until [ -e go ]; do sleep 0.05; done; echo finished";

fn go(scene: &Scene) {
    std::fs::write(workspace(&scene.ground).join("go"), "").expect("a file");
}

fn runs(scene: &Scene) -> String {
    std::fs::read_to_string(workspace(&scene.ground).join("counter")).expect("a counter")
}

/// Recorded attempts, in order.
fn attempts(log: &[Value]) -> Vec<i64> {
    of(log, "turn.started").iter().map(|event| event["body"]["attempt"].as_i64().expect("a number")).collect()
}

#[tokio::test]
async fn a_command_outlives_a_worker_that_drains_and_runs_once() {
    let scene = Scene::open(&["--role=api"]).await;
    let first = scene.ground.serve(&["--role=worker"]).await;
    let id = scene.owner.play(json!([run(COUNTED), run("cat counter"), { "text": "Done." }])).await;
    appears(&scene.ground, "ready").await;
    let second = scene.ground.serve(&["--role=worker"]).await;
    let asked = std::time::Instant::now();
    first.stop().await;
    assert!(asked.elapsed() < std::time::Duration::from_secs(5), "{:?}", asked.elapsed());
    go(&scene);
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"]);
    assert_eq!((outputs(&log)[0].trim(), outputs(&log)[1].trim()), ("finished", "run"));
    assert_eq!(attempts(&log), [1], "a drain is not a crash");
    assert_eq!(of(&log, "sandbox.created").len(), 1, "the same sandbox");
    assert_eq!(runs(&scene), "run\n");
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_short_command_is_let_finish_by_a_drain() {
    let scene = Scene::open(&["--role=api"]).await;
    let first = scene.ground.serve(&["--role=worker"]).await;
    let id =
        scene.owner.play(json!([run("touch ready; sleep 0.3; echo finished"), { "text": "Done." }])).await;
    appears(&scene.ground, "ready").await;
    first.stop().await;
    let log = super::log(&scene.owner, &id).await;
    assert_eq!(outputs(&log), ["finished\n"], "its result is recorded before the worker stops");
    let second = scene.ground.serve(&["--role=worker"]).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!((attempts(&log), ends(&log)), (vec![1], vec!["completed"]));
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_model_call_that_outlasts_the_drain_is_made_again() {
    let fake =
        Fake::script(Anthropic::default(), [Step::fault(Fault::StallAfter(300)), Step::text("Here.")]).await;
    let scene = Scene::open(&["--role=api"]).await;
    let worker = [&format!("--anthropic-base-url={}", fake.base_url), "--role=worker"];
    let first = scene.ground.serve(&worker).await;
    let id = ask_model(&scene.owner, "Go.").await;
    fake.called(1).await;
    let second = scene.ground.serve(&worker).await;
    let asked = std::time::Instant::now();
    first.stop().await;
    assert!(asked.elapsed() < std::time::Duration::from_secs(12), "{:?}", asked.elapsed());
    fake.hung_up(1).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((attempts(&log), ends(&log)), (vec![1], vec!["completed"]));
    assert_eq!((fake.calls(), fake.refusals()), (2, Vec::new()));
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn an_answer_that_arrives_during_the_drain_is_kept() {
    let slow = Step { delay: std::time::Duration::from_millis(500), ..Step::default() };
    let steps = [slow.and_tool("glob", json!({ "pattern": "*" })), Step::text("Here.")];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let scene = Scene::open(&["--role=api"]).await;
    let worker = [&format!("--anthropic-base-url={}", fake.base_url), "--role=worker"];
    let first = scene.ground.serve(&worker).await;
    let id = ask_model(&scene.owner, "Go.").await;
    fake.called(1).await;
    first.stop().await;
    assert_eq!(of(&super::log(&scene.owner, &id).await, "step.completed").len(), 1);
    let second = scene.ground.serve(&worker).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((attempts(&log), ends(&log), fake.calls()), (vec![1], vec!["completed"], 2));
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_turn_whose_key_is_revoked_ends_and_its_session_becomes_idle() {
    let steps = [Step::default().and_tool("bash", json!({ "command": COUNTED })), Step::text("Never.")];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let scene = Scene::open(&["--role=api"]).await;
    let worker = [&format!("--anthropic-base-url={}", fake.base_url), "--role=worker"];
    let first = scene.ground.serve(&worker).await;
    let id = ask_model(&scene.owner, "Go.").await;
    appears(&scene.ground, "ready").await;
    first.stop().await;
    let credential = super::session(&scene.owner, &id).await["credential_id"].clone();
    let path = format!("/credentials/{}", credential.as_str().expect("an id"));
    assert!(scene.owner.delete(&path).await.status.is_success());
    let second = scene.ground.serve(&worker).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    let turn = super::last_turn(&scene.owner, &id).await;
    assert_eq!((&turn["state"], &turn["error"]["code"]), (&json!("error"), &json!("no_credential")));
    assert_eq!(super::session(&scene.owner, &id).await["status"], "idle", "something happened before");
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_worker_whose_lease_was_stolen_writes_nothing_and_the_command_runs_once() {
    let scene = Scene::open(&[]).await;
    let other = scene.ground.serve(&["--role=worker"]).await;
    let id = scene.owner.play(json!([run(COUNTED), { "text": "Done." }])).await;
    appears(&scene.ground, "ready").await;
    until(&scene.owner, &id, "sandbox.created").await;
    // As after a pause that was longer than the lease: a third worker claimed the session, and died at once.
    let mut superuser = scene.ground.database.superuser().await;
    let sql = "with s as (update session set epoch = epoch + 1)
               update job set worker_id = gen_random_uuid(), ready_at = now() + interval '500 milliseconds'";
    sqlx::query(sql).execute(&mut superuser).await.expect("an update");
    superuser.close().await.expect("a clean end");
    let is_second = |event: &Value| event["type"] == "turn.started" && event["body"]["attempt"] == 2;
    scene.owner.follow(&id, is_second).await;
    go(&scene);
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((attempts(&log), ends(&log)), (vec![1, 2], vec!["completed"]));
    assert_eq!(outputs(&log), ["finished\n"]);
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "ran");
    assert_eq!(runs(&scene), "run\n");
    let turns = scene.owner.get(&format!("/sessions/{id}/turns")).await.ok();
    assert_eq!((turns["data"].as_array().map(Vec::len), &turns["data"][0]["attempt"]), (Some(1), &json!(2)));
    other.stop().await;
    scene.close().await;
}

/// Takes the lease away from its holder.
const STEAL: &str = "with s as (update session set epoch = epoch + 1)
    update job set worker_id = gen_random_uuid(), ready_at = now()";

#[tokio::test]
async fn a_creator_that_resumes_late_leaves_the_sandbox_to_its_new_worker() {
    let scene = Scene::open(&["--role=api"]).await;
    let mut hold = Hold::at(&scene.ground, Point::After("run")).await;
    hold.arm().await;
    let maker = hold.program(&scene.ground, &["--lease-ms=60000"]);
    let id = scene.owner.play(json!([run(COUNTED), { "text": "Done." }])).await;
    hold.is_reached().await;
    maker.freeze();
    hold.let_go(Then::GoesOn).await;
    let taker = scene.ground.serve(&["--role=worker"]).await;
    scene.ground.sql(STEAL).await;
    // The next worker attaches to the sandbox before its creator learns that it has started.
    appears(&scene.ground, "ready").await;
    let lock = workspace(&scene.ground).join("../../lock");
    let lock = std::fs::File::open(lock).expect("the lock of the disk");
    assert!(lock.try_lock().is_err(), "it is still being created");
    maker.thaw();
    wait_until("its maker is done", || lock.try_lock().is_ok()).await;
    drop(lock);
    // Time for late writes about it.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    maker.kill();
    scene.ground.sql(STEAL).await;
    let is_third = |event: &Value| event["type"] == "turn.started" && event["body"]["attempt"] == 3;
    scene.owner.follow(&id, is_third).await;
    go(&scene);
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!((attempts(&log), ends(&log)), (vec![1, 2, 3], vec!["completed"]));
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "ran");
    assert_eq!(runs(&scene), "run\n");
    taker.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn the_end_of_a_sandbox_that_is_written_late_ends_no_other() {
    let scene = Scene::open(&["--role=api"]).await;
    let mut hold = Hold::at(&scene.ground, Point::After("delete")).await;
    let first = hold.program(&scene.ground, &["--lease-ms=60000"]);
    let id = scene.owner.play(json!([run("echo one > file"), { "text": "Done." }])).await;
    scene.owner.settled(&id, 1).await;
    hold.arm().await;
    scene.ground.sql("update sandbox set rotates_at = now(), expires_at = now() + interval '1 hour'").await;
    steer(&scene.owner, &id, &script(json!([run("cat file"), { "text": "Done." }]))).await;
    hold.is_reached().await;
    first.freeze();
    let second = scene.ground.serve(&["--role=worker"]).await;
    scene.ground.sql(STEAL).await;
    let log = scene.owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!((outputs(&log), of(&log, "sandbox.created").len()), (vec!["(no output)", "one\n"], 2));
    hold.let_go(Then::GoesOn).await;
    first.thaw();
    // Time for late writes about the removed sandbox.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    first.kill();
    let looks = "select count(*) from job where kind = 'idle' and node_id is not null";
    assert_eq!(scene.ground.count(looks).await, 1, "the holder of the sandbox would never freeze it");
    let live = "select count(*) from sandbox where state = 'live'";
    assert_eq!(scene.ground.count(live).await, 1);
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_whose_creator_died_between_the_event_and_the_row_is_announced_once() {
    let scene = Scene::open(&[]).await;
    let id = scene.owner.play(json!([run(COUNTED), { "text": "Done." }])).await;
    appears(&scene.ground, "ready").await;
    until(&scene.owner, &id, "sandbox.created").await;
    let mut superuser = scene.ground.database.superuser().await;
    let sql =
        "with s as (update session set epoch = epoch + 1), b as (update sandbox set is_announced = false)
               update job set worker_id = gen_random_uuid(), ready_at = now()";
    sqlx::query(sql).execute(&mut superuser).await.expect("an update");
    superuser.close().await.expect("a clean end");
    let is_second = |event: &Value| event["type"] == "turn.started" && event["body"]["attempt"] == 2;
    scene.owner.follow(&id, is_second).await;
    go(&scene);
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(of(&log, "sandbox.created").len(), 1, "{log:#?}");
    let announced = "select count(*) from sandbox where is_announced";
    assert_eq!(scene.ground.count(announced).await, 1);
    assert_eq!((ends(&log), runs(&scene)), (vec!["completed"], "run\n".to_owned()));
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_that_never_came_up_leaves_no_doubt_about_a_call() {
    let scene = Scene::open(&[]).await;
    let agent = scene.owner.inline_agent().await;
    let created = scene.owner.post("/sessions", json!({ "agent": agent })).await.ok();
    let id = created["session"]["id"].as_str().expect("an id").to_owned();
    // Its creator died after writing the row and before creating the sandbox.
    let mut superuser = scene.ground.database.superuser().await;
    let sql = "insert into sandbox (org_id, sandbox_id, session_id, node_id, state)
               select org_id, gen_random_uuid(), session_id, node_id, 'live' from session, node";
    sqlx::query(sql).execute(&mut superuser).await.expect("a row");
    superuser.close().await.expect("a clean end");
    let script = json!({ "script": [run("echo run >> counter"), { "text": "Done." }] });
    let message = json!({ "text": script.to_string() });
    scene.owner.post(&format!("/sessions/{id}/messages"), message).await.ok();
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert!(of(&log, "sandbox.lost").is_empty(), "it was never announced");
    assert_eq!((ends(&log), runs(&scene)), (vec!["completed"], "run\n".to_owned()));
    scene.close().await;
}

#[tokio::test]
async fn a_turn_that_is_canceled_between_two_workers_settles_the_call_of_the_first() {
    let scene = Scene::open(&[]).await;
    let id = scene.owner.play(json!([run(COUNTED), { "text": "Never." }])).await;
    appears(&scene.ground, "ready").await;
    until(&scene.owner, &id, "sandbox.created").await;
    let mut superuser = scene.ground.database.superuser().await;
    let steal = "with s as (update session set epoch = epoch + 1)
                 update job set worker_id = gen_random_uuid(), ready_at = now() + interval '1 second'";
    sqlx::query(steal).execute(&mut superuser).await.expect("an update");
    superuser.close().await.expect("a clean end");
    // The next worker finds the cancellation in the row before its attempt starts.
    scene.owner.post(&format!("/sessions/{id}/cancel"), json!({})).await.ok();
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["canceled"]);
    assert_eq!(of(&log, "tool.result").len(), 1, "{log:#?}");
    scene.close().await;
}

#[tokio::test]
async fn a_turn_that_is_lost_again_and_again_is_given_up() {
    let scene = Scene::open(&[]).await;
    let mark = format!("given-up-{}", std::process::id());
    let command = format!("echo run >> counter; touch ready; exec -a {mark} sleep 600");
    let id = scene.owner.play(json!([run(&command), { "text": "Never." }])).await;
    appears(&scene.ground, "ready").await;
    // As after the fifth crash.
    let mut superuser = scene.ground.database.superuser().await;
    let sql = "with s as (update session set epoch = epoch + 1),
                    t as (update turn set attempt = 5 where state = 'running')
               update job set worker_id = gen_random_uuid(), ready_at = now(), takeovers = 4";
    sqlx::query(sql).execute(&mut superuser).await.expect("an update");
    superuser.close().await.expect("a clean end");
    let log = scene.owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(of(&log, "tool.result")[0]["body"]["outcome"], "unknown");
    assert_eq!(super::processes(&mark), 0, "nothing runs beside the next turn");
    let turn = super::last_turn(&scene.owner, &id).await;
    assert_eq!((&turn["state"], &turn["error"]["code"]), (&json!("error"), &json!("recovery_exhausted")));
    assert_eq!(super::session(&scene.owner, &id).await["status"], "failed");
    // A retry has all of its attempts.
    let path = format!("/sessions/{id}/turns/{}/retry", turn["id"].as_str().expect("an id"));
    scene.owner.post(&path, json!({})).await.ok();
    let log = scene.owner.settled(&id, 2).await;
    let starts = of(&log, "turn.started");
    assert_eq!((&starts[starts.len() - 1]["body"]["attempt"], ends(&log)[1]), (&json!(6), "completed"));
    let steered = super::script(json!([run("cat counter"), { "text": "Back." }]));
    super::steer(&scene.owner, &id, &steered).await;
    let log = scene.owner.settled(&id, 3).await;
    assert_eq!((outputs(&log)[1], ends(&log)[2]), ("run\n", "completed"));
    scene.close().await;
}

#[tokio::test]
async fn a_reader_of_a_stream_does_not_hold_up_the_end_of_a_process() {
    let scene = Scene::open(&["--role=api"]).await;
    let id = scene.owner.play(json!([{ "text": "Never." }])).await;
    let path = format!("/sessions/{id}/events?stream=sse");
    let mut reader = scene.owner.request(reqwest::Method::GET, &path).send().await.expect("a stream");
    assert!(reader.chunk().await.expect("a frame").is_some());
    let asked = std::time::Instant::now();
    scene.close().await;
    assert!(asked.elapsed() < std::time::Duration::from_secs(5), "{:?}", asked.elapsed());
    while reader.chunk().await.expect("a clean end").is_some() {}
}
