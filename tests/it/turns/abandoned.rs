//! Sandboxes of a service that does not come back: nothing of them is left but their files, also of frozen ones.

use std::process::Stdio;

use serde_json::json;
use tokio::{process::Command, time::timeout};

use super::{leaks::Left, outputs, run, script, steer, until};
use crate::support::{
    program::Program,
    service::{Caller, Ground, KEY},
    wait::{WAIT_MAX, wait_for},
};

const SETTINGS: [&str; 4] = [
    "--lease-ms=1000",
    "--sandbox-orphan-seconds=12",
    "--sandbox-freeze-after-seconds=0.2",
    "--sandbox-hibernate-after-seconds=600",
];

/// Starts a session whose sandbox is frozen, and one whose sandbox runs a command; returns the first one.
async fn occupy(caller: &Caller) -> String {
    let busy = caller.play(json!([run("echo begun; sleep 600"), { "text": "Done." }])).await;
    let idle = caller
        .play(json!([run("sleep 601 > /dev/null 2>&1 & echo written > file"), { "text": "Done." }]))
        .await;
    until(caller, &idle, "sandbox.frozen").await;
    until(caller, &busy, "tool.call").await;
    idle
}

/// Waits until only disks are left.
async fn nothing_is_left(ground: &Ground) {
    let is_gone = async || {
        let left = Left::of(ground).await.rows();
        left.iter().all(|(what, count)| *what == "disks" || *count == 0).then_some(())
    };
    wait_for("the end of every sandbox, mount and loop device", is_gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_and_never_starts_again_leaves_only_files() {
    let ground = Ground::new().await;
    let program = Program::start(&ground, &SETTINGS);
    let idle = occupy(&Caller::new(&program.base, KEY)).await;
    let before = Left::of(&ground).await;
    assert!(before.processes >= 4, "{before:?}");
    program.kill();
    nothing_is_left(&ground).await;
    // It starts again after all: the session continues with its files.
    let program = Program::start(&ground, &SETTINGS);
    let caller = Caller::new(&program.base, KEY);
    steer(&caller, &idle, &script(json!([run("cat file"), { "text": "Done." }]))).await;
    let log = caller.settled(&idle, 2).await;
    assert_eq!(outputs(&log).last(), Some(&"written\n"));
    program.kill();
    nothing_is_left(&ground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_frozen_itself_has_no_frozen_sandboxes_for_long() {
    let ground = Ground::new().await;
    let program = Program::start(&ground, &SETTINGS);
    occupy(&Caller::new(&program.base, KEY)).await;
    program.freeze();
    nothing_is_left(&ground).await;
    program.thaw();
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_starts_again_in_time_keeps_its_sandboxes() {
    let ground = Ground::new().await;
    let settings = ["--lease-ms=1000", "--sandbox-orphan-seconds=30", SETTINGS[2], SETTINGS[3]];
    let program = Program::start(&ground, &settings);
    let idle = occupy(&Caller::new(&program.base, KEY)).await;
    let before = ground.count("select count(*) from sandbox where state <> 'ended'").await;
    program.kill();
    let program = Program::start(&ground, &settings);
    let caller = Caller::new(&program.base, KEY);
    steer(&caller, &idle, &script(json!([run("pgrep -f 'sleep 601' | wc -l"), { "text": "Done." }]))).await;
    let log = caller.settled(&idle, 2).await;
    assert_ne!(outputs(&log).last(), Some(&"0\n"), "the process in the frozen sandbox goes on");
    assert_eq!(before, 2);
    program.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_starts_after_its_service_ended_does_not_stay() {
    let data_dir = tempfile::tempdir().expect("a directory");
    let mut service = Command::new("true").spawn().expect("it runs");
    let service_pid = service.id().expect("it was not waited for");
    service.wait().await.expect("it ends");
    let watcher = Command::new(env!("CARGO_BIN_EXE_sojourn"))
        .args(["watch-sandboxes".to_owned(), format!("--service-pid={service_pid}")])
        .arg(format!("--data-dir={}", data_dir.path().display()))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = timeout(WAIT_MAX, watcher).await.expect("it ends").expect("it runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
