//! Idle sessions: their sandboxes are frozen, hibernated, and restored with their files.

use std::{fs, path::Path};

use reqwest::Method;
use serde_json::{Value, json};
use sojourn::node::local::Local;
use sojourn::sandbox::Sandbox;

use super::{
    Scene, appears, assert_sound, ends, log, of, outputs, processes, run, script, session, steer, until,
    wait_until, workspace,
};
use crate::support::service::{Caller, Ground, send};

/// Frozen soon, never removed.
const FROZEN_SOON: [&str; 2] =
    ["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=600"];
/// Removed soon after the freeze.
const HIBERNATED_SOON: [&str; 2] =
    ["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=0.3"];
/// Neither frozen nor removed within a test.
const NEVER_IDLE: [&str; 2] = ["--sandbox-freeze-after-seconds=600", "--sandbox-hibernate-after-seconds=600"];

/// Waits for the `count`-th event of that type.
async fn counted(caller: &Caller, session: &str, kind: &str, count: usize) -> Vec<Value> {
    let seen = std::cell::Cell::new(0);
    caller
        .follow(session, |event| {
            seen.set(seen.get() + usize::from(event["type"] == kind));
            seen.get() == count
        })
        .await
}

async fn say(caller: &Caller, session: &str, command: &str, turns: usize) -> Vec<Value> {
    steer(caller, session, &script(json!([run(command), { "text": "Done." }]))).await;
    caller.settled(session, turns).await
}

/// Number of files below a directory.
pub fn files(directory: &Path) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let count = |path: &Path| if path.is_dir() { files(path) } else { 1 };
    entries.flatten().map(|entry| count(&entry.path())).sum()
}

/// Number of files in the blob store.
pub fn blobs(ground: &Ground) -> usize {
    let blobs = ground.data_dir.path().join("blobs");
    files(&blobs) - usize::from(blobs.join("store-id").exists())
}

/// Destroys the only sandbox from outside; its disk stays.
pub async fn destroy_sandbox(ground: &Ground) {
    let local = Local::new(ground.sandboxes()).expect("sandboxes are supported here");
    let found = local.list().await.expect("a list").pop().expect("a disk");
    local.destroy(found.sandbox.expect("a sandbox")).await.expect("it ends");
}

/// Destroys the only sandbox from outside, together with its disk.
pub async fn destroy(ground: &Ground) {
    let local = Local::new(ground.sandboxes()).expect("sandboxes are supported here");
    let found = local.list().await.expect("a list").pop().expect("a disk");
    if let Some(sandbox) = found.sandbox {
        local.destroy(sandbox).await.expect("it ends");
    }
    local.erase(found.org, found.session).await.expect("it is removed");
}

#[tokio::test]
async fn an_idle_sandbox_is_frozen_and_resumes_where_it_stopped() {
    let scene = Scene::open(&FROZEN_SOON).await;
    let owner = &scene.owner;
    let command = "echo here > /tmp/mark; (sleep 611 > /dev/null 2>&1 &)";
    let id = owner.play(json!([run(command), { "text": "Done." }])).await;
    let rested = until(owner, &id, "sandbox.frozen").await;
    assert_eq!(of(&rested, "sandbox.checkpoint_created").len(), 1, "its files are saved by then");
    let frozen = &of(&rested, "sandbox.frozen")[0]["body"];
    assert!(frozen["memory_bytes"].as_u64().expect("a number") > 0);
    let mut shown = Value::Null;
    // The row is updated after the log.
    while shown["state"] != "frozen" {
        shown = session(owner, &id).await["sandbox"].clone();
    }
    assert_eq!(shown["id"], frozen["sandbox_id"]);
    assert_eq!(shown["checkpoint_id"], of(&rested, "sandbox.checkpoint_created")[0]["body"]["checkpoint_id"]);
    assert_eq!(shown["expires_at"], Value::Null);

    let log = say(owner, &id, "cat /tmp/mark; pgrep -c sleep", 2).await;
    assert_sound(&log);
    assert_eq!(outputs(&log)[1], "here\n1\n", "memory contents are preserved, too");
    assert_eq!((of(&log, "sandbox.created").len(), of(&log, "sandbox.thawed").len()), (1, 1));
    counted(owner, &id, "sandbox.frozen", 2).await;
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_stays_while_the_result_of_a_command_is_in_it() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let made = owner.post("/sessions", json!({})).await.ok();
    let id = made["session"]["id"].as_str().expect("an id");
    let worker = ground.serve(&[&["--role=worker"], &NEVER_IDLE[..]].concat()).await;
    let request = owner.request(Method::POST, &format!("/sessions/{id}/exec")).header("Prefer", "wait=0");
    send(request.json(&json!({ "command": "touch started; sleep 1; echo over" }))).await.ok();
    appears(&ground, "started").await;
    worker.stop().await;

    // The next worker looks at the idle sandbox first: its command has ended, and nobody has read the result.
    ground
        .sql(
            "update sandbox set used_at = now() - interval '1 hour';
             update job set ready_at = now() + interval '3 s', is_scheduled = true where kind = 'operation';
             update job set ready_at = now(), is_scheduled = false where kind = 'idle'",
        )
        .await;
    let jobs = "select count(*) from job where kind in ('operation', 'idle')";
    assert_eq!(ground.count(jobs).await, 2);
    let worker = ground.serve(&[&["--role=worker"], &HIBERNATED_SOON[..]].concat()).await;
    let log = until(&owner, id, "sandbox.terminated").await;
    let completed = &of(&log, "exec.completed")[0]["body"];
    assert_eq!((&completed["exit_code"], &completed["summary"]), (&json!(0), &json!("over\n")), "{log:#?}");
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn a_hibernated_session_holds_no_process_and_is_restored_with_its_files() {
    let scene = Scene::open(&HIBERNATED_SOON).await;
    let owner = &scene.owner;
    let mark = format!("asleep-{}", std::process::id());
    let command =
        format!("echo here > file; echo home > ~/kept; (exec -a {mark} sleep 612 > /dev/null 2>&1 &)");
    let id = owner.play(json!([run(&command), { "text": "Done." }])).await;
    let slept = until(owner, &id, "sandbox.terminated").await;
    assert_eq!(of(&slept, "sandbox.terminated")[0]["body"]["reason"], "idle");
    let disks = scene.ground.sandboxes().data_dir.join("sandboxes");
    wait_until("nothing of the sandbox is left", || processes(&mark) == 0 && files(&disks) == 0).await;
    let mut shown = Value::Null;
    while shown["state"] != "hibernated" {
        shown = session(owner, &id).await["sandbox"].clone();
    }
    assert_eq!(blobs(&scene.ground), 1);
    let listed = owner.get(&format!("/sessions/{id}/checkpoints")).await.ok()["data"].clone();
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["id"]), (Some(1), &shown["checkpoint_id"]));
    assert_eq!(listed[0]["bytes"], of(&slept, "sandbox.checkpoint_created")[0]["body"]["bytes"]);

    for turns in 2..4 {
        let log = say(owner, &id, "cat file ~/kept", turns).await;
        assert_sound(&log);
        assert_eq!(outputs(&log)[turns - 1], "here\nhome\n");
        assert_eq!(of(&log, "sandbox.created").len(), turns);
        assert_eq!(of(&log, "sandbox.checkpoint_restored").len(), turns - 1);
        assert_eq!(of(&log, "sandbox.lost").len() + of(&log, "sandbox.files_lost").len(), 0);
        let slept = counted(owner, &id, "sandbox.terminated", turns).await;
        assert_eq!(of(&slept, "sandbox.checkpoint_created").len(), 1, "nothing has changed");
    }
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    wait_until("the checkpoints go with the session", || blobs(&scene.ground) == 0).await;
    assert_eq!(session(owner, &id).await["sandbox"], Value::Null);
    scene.close().await;
}

#[tokio::test]
async fn what_a_background_process_wrote_until_its_end_is_restored() {
    // Frozen until it is hibernated, so that the test can read the disk.
    let scene =
        Scene::open(&["--sandbox-freeze-after-seconds=0.15", "--sandbox-hibernate-after-seconds=10"]).await;
    let owner = &scene.owner;
    let writes = "(while :; do echo >> lines; done > /dev/null 2>&1 &)";
    let id = owner.play(json!([run(writes), { "text": "Done." }])).await;
    until(owner, &id, "sandbox.frozen").await;
    let lines = fs::metadata(workspace(&scene.ground).join("lines")).expect("the file of the process").len();
    until(owner, &id, "sandbox.terminated").await;
    let log = say(owner, &id, "wc -l < lines", 2).await;
    assert_eq!(outputs(&log)[1], format!("{lines}\n"));
    assert_eq!(of(&log, "sandbox.files_lost").len(), 0);
    scene.close().await;
}

#[tokio::test]
async fn a_running_command_is_never_stopped() {
    let scene = Scene::open(&HIBERNATED_SOON).await;
    let owner = &scene.owner;
    let id = owner.play(json!([run("sleep 1.5; echo whole"), { "text": "Done." }])).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(outputs(&log), ["whole\n"]);
    assert_eq!(of(&log, "sandbox.frozen").len() + of(&log, "sandbox.terminated").len(), 0);
    until(owner, &id, "sandbox.terminated").await;
    scene.close().await;
}

#[tokio::test]
async fn files_lost_with_a_disk_are_reported() {
    let ground = Ground::new().await;
    let service = ground.serve(&FROZEN_SOON).await;
    let owner = service.owner();
    let id = owner.play(json!([run("echo saved > a"), { "text": "Done." }])).await;
    let rested = until(&owner, &id, "sandbox.frozen").await;
    let saved_at = of(&rested, "sandbox.checkpoint_created")[0]["ts"].clone();
    service.stop().await;

    // While the session is idle, nothing is lost with its sandbox.
    destroy(&ground).await;
    let service = ground.serve(&NEVER_IDLE).await;
    let owner = service.owner();
    let back = say(&owner, &id, "cat a; echo new > b", 2).await;
    assert_eq!(outputs(&back)[1], "saved\n");
    assert_eq!((of(&back, "sandbox.lost").len(), of(&back, "sandbox.files_lost").len()), (1, 0));
    assert_eq!(of(&back, "sandbox.checkpoint_restored").len(), 1);

    // Files written since the checkpoint are lost.
    destroy(&ground).await;
    let lost = say(&owner, &id, "ls", 3).await;
    assert_sound(&lost);
    assert_eq!(outputs(&lost)[2], "a\n");
    assert_eq!(of(&lost, "sandbox.lost").len(), 2);
    let said = of(&lost, "sandbox.files_lost");
    assert_eq!(said.len(), 1);
    let seconds = |time: &Value| time.as_str().expect("a time")[..16].to_owned();
    assert_eq!(seconds(&said[0]["body"]["since"]), seconds(&saved_at));
    service.stop().await;
}

#[tokio::test]
async fn files_without_a_checkpoint_are_reported_lost() {
    let scene = Scene::open(&NEVER_IDLE).await;
    let owner = &scene.owner;
    let id = owner.play(json!([run("echo unsaved > a"), { "text": "Done." }])).await;
    owner.settled(&id, 1).await;
    destroy(&scene.ground).await;
    let log = say(owner, &id, "ls -A", 2).await;
    assert_eq!(ends(&log), ["completed", "completed"]);
    let said = of(&log, "sandbox.files_lost");
    assert_eq!((said.len(), &said[0]["body"]["since"]), (1, &Value::Null));
    scene.close().await;
}

#[tokio::test]
async fn a_sandbox_is_frozen_by_whichever_worker_runs() {
    let ground = Ground::new().await;
    let service = ground.serve(&NEVER_IDLE).await;
    let owner = service.owner();
    let id = owner.play(json!([run("echo here > file"), { "text": "Done." }])).await;
    owner.settled(&id, 1).await;
    service.stop().await;
    let service = ground.serve(&HIBERNATED_SOON).await;
    let owner = service.owner();
    // The job of the sandbox was due in ten minutes; its time is in the database.
    let mut superuser = ground.database.superuser().await;
    let moved =
        sqlx::query("update job set ready_at = now() where kind = 'idle'").execute(&mut superuser).await;
    assert_eq!(moved.expect("an update").rows_affected(), 1);
    until(&owner, &id, "sandbox.terminated").await;
    let log = say(&owner, &id, "cat file", 2).await;
    assert_eq!(outputs(&log)[1], "here\n");
    service.stop().await;
}

#[tokio::test]
async fn a_heartbeat_is_logged_once_and_delays_the_freeze() {
    let scene = Scene::open(&NEVER_IDLE).await;
    let owner = &scene.owner;
    let id = owner.play(json!([run("true"), { "text": "Done." }])).await;
    owner.settled(&id, 1).await;
    let mut superuser = scene.ground.database.superuser().await;
    sqlx::query("update sandbox set used_at = now() - interval '1 hour'")
        .execute(&mut superuser)
        .await
        .expect("an update");
    sqlx::query("update turn set completed_at = now() - interval '1 hour'")
        .execute(&mut superuser)
        .await
        .expect("an update");
    let path = format!("/sessions/{id}/heartbeat");
    let kept = owner.post(&path, json!({})).await.ok();
    assert_eq!((&kept["id"], &kept["sandbox"]["state"]), (&json!(id), &json!("running")));
    owner.post(&path, json!({})).await.ok();
    sqlx::query("update job set ready_at = now() where kind = 'idle'")
        .execute(&mut superuser)
        .await
        .expect("an update");
    let due =
        "select ready_at > now() + interval '1 minute' and worker_id is null from job where kind = 'idle'";
    let mut is_put_off = false;
    while !is_put_off {
        is_put_off = sqlx::query_scalar(due).fetch_one(&mut superuser).await.expect("an answer");
    }
    let settled = log(owner, &id).await;
    assert_eq!((of(&settled, "sandbox.heartbeat").len(), of(&settled, "sandbox.frozen").len()), (1, 0));
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    assert_eq!(owner.post(&path, json!({})).await.error(409)["code"], "archived");
    scene.close().await;
}
