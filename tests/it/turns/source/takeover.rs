//! Sandboxes and workers that follow the one that cloned.

use serde_json::json;

use super::{GitHost, Scene, assert_sound, done, ends, of, outputs, play, run, script, steer, told, worker};
use crate::{
    support::program::Program,
    turns::{idle::destroy, until, wait_until},
};

#[tokio::test]
async fn a_worker_that_is_killed_in_a_clone_leaves_it_to_the_next() {
    let host = GitHost::start().await;
    host.repository("open/app.git");
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    host.hold();
    let settings = host.settings();
    let settings: Vec<_> =
        ["--lease-ms=1000"].into_iter().chain(settings.iter().map(AsRef::as_ref)).collect();
    let first = Program::start(&scene.ground, &settings);
    let sources = json!([{ "url": host.url("open/app.git") }]);
    let environment =
        json!({ "environment": { "lifecycle_hooks": { "post_clone": "echo ready >> marks" } } });
    let command =
        "cat sources/app/README marks; git -C sources/app status --porcelain; ls -A /workspace sources";
    let id = play(owner, done(command), sources, environment).await;
    until(owner, &id, "source.cloning").await;
    let packs = || host.asked().iter().filter(|asked| asked.contains("git-upload-pack")).count();
    wait_until("the clone is in its middle", || packs() >= 3).await;
    first.kill();
    host.release();
    let second = worker(&scene, &host, &[]).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["completed"], "{log:#?}");
    assert_eq!(outputs(&log), ["main\nready\n/workspace:\nmarks\nsources\n\nsources:\napp\n"]);
    assert_eq!(told(&log), ["cloning", "cloning", "cloned", "prepared"]);
    assert_eq!(of(&log, "sandbox.created").len(), 1, "the same sandbox");
    second.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_with_the_files_of_another_is_not_cloned_into_again() {
    let host = GitHost::start().await;
    host.repository("open/app.git");
    let settings = host.settings();
    let asleep = ["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=0.3"];
    let scene = Scene::open(&[&asleep[..], &settings.each_ref().map(String::as_str)].concat()).await;
    let owner = &scene.owner;
    let sources = json!([{ "url": host.url("open/app.git") }]);
    let environment =
        json!({ "environment": { "lifecycle_hooks": { "post_clone": "echo ready >> marks" } } });
    let id = play(owner, done("echo mine > sources/app/README"), sources, environment).await;
    until(owner, &id, "sandbox.terminated").await;
    let asked = host.asked().len();
    steer(owner, &id, &script(done("cat sources/app/README marks"))).await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!(outputs(&log)[1], "mine\nready\n");
    assert_eq!((of(&log, "sandbox.checkpoint_restored").len(), of(&log, "source.cloning").len()), (1, 1));
    assert_eq!(host.asked().len(), asked);
    scene.close().await;
}

#[tokio::test]
async fn a_lost_sandbox_without_a_checkpoint_is_cloned_into_again() {
    let host = GitHost::start().await;
    host.repository("open/app.git");
    let settings = host.settings();
    let awake = ["--sandbox-freeze-after-seconds=600", "--sandbox-hibernate-after-seconds=600"];
    let scene = Scene::open(&[&awake[..], &settings.each_ref().map(String::as_str)].concat()).await;
    let owner = &scene.owner;
    let sources = json!([{ "url": host.url("open/app.git") }]);
    let environment =
        json!({ "environment": { "lifecycle_hooks": { "post_clone": "echo ready >> marks" } } });
    let id = play(owner, done("echo mine > sources/app/README"), sources, environment).await;
    owner.settled(&id, 1).await;
    destroy(&scene.ground).await;
    steer(owner, &id, &script(done("cat sources/app/README marks"))).await;
    let log = owner.settled(&id, 2).await;
    assert_sound(&log);
    assert_eq!(outputs(&log)[1], "main\nready\n");
    assert_eq!(told(&log), ["cloning", "cloned", "prepared"].repeat(2));
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_that_takes_the_place_of_another_has_its_sources() {
    let host = GitHost::start().await;
    host.repository("open/app.git");
    let scene = super::scene(&host).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    let body = json!({ "agent": agent, "environment": { "timeout_seconds": 60 },
        "sources": [{ "url": host.url("open/app.git") }] });
    let id = owner.post("/sessions", body).await.ok()["session"]["id"].as_str().expect("an id").to_owned();
    let short = json!({ "environment_id": null, "name": null, "config": {
        "timeout_seconds": 6, "rotation": { "pre_rotate_buffer_seconds": 3 } } });
    let mut superuser = scene.ground.database.superuser().await;
    sqlx::query("update session set environment = $1::json")
        .bind(short.to_string())
        .execute(&mut superuser)
        .await
        .expect("an update");
    let steps = json!([
        run("echo mine > sources/app/README; sleep 3.2"), run("cat sources/app/README"), { "text": "Done." },
    ]);
    steer(owner, &id, &script(steps)).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(outputs(&log)[1], "mine\n");
    assert_eq!((of(&log, "sandbox.rotation_completed").len(), of(&log, "source.cloning").len()), (1, 1));
    scene.close().await;
}
