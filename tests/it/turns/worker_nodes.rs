//! A worker with several nodes: where sandboxes are placed, and the loss of a node.

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};
use sojourn::base::limit::NODE_HEARTBEAT_TIMEOUT;

use super::{
    log,
    node_agent::{AgentProcess, has_no_disk, program},
    of, outputs,
    rootless::{Standalone, until_file},
    run, script, steer, until, wait_until,
};
use crate::support::service::Caller;

/// Capacity for one sandbox of the default size.
const ONE: &str = "--node-memory=3Gi";

/// Directories of a service and of two nodes on this machine.
struct Machines(tempfile::TempDir);

impl Machines {
    fn new() -> Self {
        assert!(geteuid().is_root(), "this test needs the privileges of a node");
        Self(tempfile::tempdir().unwrap())
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn node(&self, number: usize) -> PathBuf {
        self.0.path().join(format!("node-{number}"))
    }

    fn address(&self, number: usize) -> String {
        format!("unix:{}", self.0.path().join(format!("{number}.sock")).display())
    }

    fn agent(&self, number: usize, more: &[&str]) -> AgentProcess {
        let key = format!("--grant-key-file={}", self.data().join("grant-key").display());
        let listen = format!("--node-listen={}", self.address(number));
        let more = more.iter().map(|one| (*one).to_owned());
        AgentProcess::start(&self.node(number), &[vec![key, listen], more.collect()].concat())
    }

    fn service(&self, more: &[&str]) -> Standalone {
        let nodes = format!("--node={},{}", self.address(0), self.address(1));
        let own = ["--user=root", &nodes];
        Standalone::launch(Command::new(program()), &self.data(), &[&own, more].concat())
    }
}

async fn played(owner: &Caller, command: &str) -> String {
    owner.play(json!([run(command), { "text": "Done." }])).await
}

async fn archive(owner: &Caller, session: &str) {
    owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
}

fn shortage_and_position(log: &[Value]) -> (&str, i64) {
    let body = &of(log, "sandbox.waiting").last().expect("a wait")["body"];
    (body["shortage"].as_str().unwrap(), body["queue_position"].as_i64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_places_sandboxes_where_there_is_capacity() {
    let machines = Machines::new();
    let _first = machines.agent(0, &[ONE]);
    let service = machines.service(&["--sandbox-freeze-after-seconds=600"]);
    let owner = &service.owner;
    let holder = played(owner, "touch ready; sleep 600").await;
    until_file(owner, &holder, "ready").await;
    let other = played(owner, "touch ready; sleep 600").await;
    let waiting = until(owner, &other, "sandbox.waiting").await;
    assert_eq!(shortage_and_position(&waiting), ("node_memory", 1));
    // The other node joins, and is used.
    let _second = machines.agent(1, &[ONE]);
    until_file(owner, &other, "ready").await;
    assert!(!has_no_disk(&machines.node(0)) && !has_no_disk(&machines.node(1)));
    // Both are full: the next one waits for either.
    let third = played(owner, "echo there").await;
    let waiting = until(owner, &third, "sandbox.waiting").await;
    assert_eq!(shortage_and_position(&waiting), ("node_memory", 1));
    archive(owner, &other).await;
    assert_eq!(outputs(&owner.settled(&third, 1).await), ["there\n"]);
    // A session goes back to where its files are, although the other node has more capacity now.
    archive(owner, &holder).await;
    wait_until("the first node is free", || has_no_disk(&machines.node(0))).await;
    steer(owner, &third, &script(json!([run("echo again"), { "text": "Done." }]))).await;
    assert_eq!(outputs(&owner.settled(&third, 2).await).last(), Some(&"again\n"));
    assert!(has_no_disk(&machines.node(0)));
    archive(owner, &third).await;
    wait_until("the second node is free", || has_no_disk(&machines.node(1))).await;
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_a_lost_node_continue_on_another_from_their_checkpoint() {
    let machines = Machines::new();
    // So that a node is lost after a minute: what it says counts, not the setting of the worker.
    let orphan = ["--sandbox-orphan-seconds=30"];
    let mut agents = [machines.agent(0, &orphan), machines.agent(1, &orphan)];
    let short = ["--sandbox-freeze-after-seconds=0.5", orphan[0]];
    let service = machines.service(&short);
    let owner = &service.owner;
    let id = played(owner, "echo kept > note").await;
    until(owner, &id, "sandbox.frozen").await;
    let lost = usize::from(has_no_disk(&machines.node(0)));
    let endless = json!([run("touch begun; sleep 600"), { "text": "It is not known." }]);
    steer(owner, &id, &script(endless)).await;
    until_file(owner, &id, "begun").await;
    agents[lost].end(Signal::KILL);
    let began = Instant::now();
    // New sessions do not notice.
    let fresh = played(owner, "echo elsewhere").await;
    assert_eq!(outputs(&owner.settled(&fresh, 1).await), ["elsewhere\n"]);
    tokio::time::sleep((NODE_HEARTBEAT_TIMEOUT / 2).saturating_sub(began.elapsed())).await;
    assert!(of(&log(owner, &id).await, "sandbox.lost").is_empty(), "its sandbox might still run");
    // The turn goes on without the command, of which nobody knows what it did.
    let settled = owner.settled(&id, 2).await;
    let took = began.elapsed();
    assert_eq!(of(&settled, "sandbox.lost")[0]["body"]["reason"], "its node is gone", "{settled:?}");
    assert_eq!(of(&settled, "turn.started").len(), 2);
    assert_eq!(
        of(&settled, "tool.result").last().map(|one| &one["body"]["outcome"]),
        Some(&json!("unknown"))
    );
    assert!(took < NODE_HEARTBEAT_TIMEOUT + Duration::from_secs(45), "{took:?}");
    steer(owner, &id, &script(json!([run("cat note; ls begun"), { "text": "Done." }]))).await;
    let settled = owner.settled(&id, 3).await;
    assert!(outputs(&settled).last().is_some_and(|last| last.contains("kept\n")), "{settled:?}");
    assert!(!has_no_disk(&machines.node(1 - lost)));
    // It comes back, and what it had is removed.
    agents[lost] = machines.agent(lost, &orphan);
    service.stop();
    let service = machines.service(&short);
    wait_until("the node that came back is clean", || has_no_disk(&machines.node(lost))).await;
    for session in [&id, &fresh] {
        archive(&service.owner, session).await;
    }
    wait_until("the other one, too", || has_no_disk(&machines.node(1 - lost))).await;
    assert_eq!(of(&log(&service.owner, &id).await, "sandbox.lost").len(), 1);
    service.stop();
}
