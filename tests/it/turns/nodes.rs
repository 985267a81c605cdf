//! Two nodes: processes with separate data directories, on one database.

use std::time::Duration;

use serde_json::json;

use super::{of, outputs, processes, run, script, steer, until, wait_until};
use crate::support::{
    program::Program,
    service::{Caller, Ground, KEY, Service},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_never_has_sandboxes_on_two_nodes_at_once() {
    let ground = Ground::new().await;
    let first = Program::start(&ground, &["--lease-ms=1000", "--sandbox-orphan-seconds=12"]);
    let caller = Caller::new(&first.base, KEY);
    let mark = format!("node-{}", std::process::id());
    let command = format!("echo first > file; (exec -a {mark} sleep 613 > /dev/null 2>&1 &)");
    let id = caller.play(json!([run(&command), { "text": "Done." }])).await;
    caller.settled(&id, 1).await;
    // The sandbox is unused for longer than its orphan timeout: its node keeps it alive.
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert_eq!(processes(&mark), 1, "a sandbox of a live node is not removed");
    first.kill();

    // The machine is up, its service is not: another node waits as long as the sandbox may run.
    let other = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(ground.data_dir.path().join("blobs"), other.path().join("blobs")).unwrap();
    let second = Service::on(&ground.urls(), other.path(), &[]).await;
    let owner = second.owner();
    ground
        .sql(
            "update node set seen_at = now() - interval '35 seconds' where orphan_timeout = interval '42 seconds'",
        )
        .await;
    steer(&owner, &id, &script(json!([run("cat file; echo second > file"), { "text": "Done." }]))).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let waiting = owner.get(&format!("/sessions/{id}/events?limit=500")).await.ok();
    let waiting = waiting["data"].as_array().unwrap().clone();
    assert_eq!(of(&waiting, "turn.started").len(), 1, "the session still belongs to the lost node");
    wait_until("the sandbox ends by itself", || processes(&mark) == 0).await;
    ground
        .sql(
            "update node set seen_at = now() - interval '61 seconds' where orphan_timeout = interval '42 seconds'",
        )
        .await;
    let log = until(&owner, &id, "sandbox.lost").await;
    assert_eq!(of(&log, "sandbox.lost")[0]["body"]["reason"], "its node is gone");
    let log = owner.settled(&id, 2).await;
    assert_eq!(of(&log, "sandbox.created").len(), 2);
    assert!(
        outputs(&log)[1].contains("No such file"),
        "the files were on the lost node: {:?}",
        outputs(&log)
    );
    second.stop().await;
    let sandboxes = sojourn::node::local::Config::new(other.path());
    crate::support::sandboxes::sweep(sandboxes).await;
}
