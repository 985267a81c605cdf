//! What a service leaves that is killed in the middle of whatever it does to sandboxes:
//! nothing, after it was started again and has looked once.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{run, script};
use crate::{
    drill::Program,
    support::service::{Caller, Ground, KEY},
};

/// Everything in the life of a box happens within a second.
const HASTY: [&str; 4] = ["--lease-ms=1000", "--box-freeze-ms=100", "--box-hibernate-ms=200", "--workers=4"];

/// What of a ground's boxes there is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    cgroups: usize,
    containers: usize,
    mounts: usize,
    loops: usize,
    processes: usize,
    /// Of boxes: bundles, logs, sockets.
    boxes: usize,
    disks: usize,
}

impl Left {
    async fn of(ground: &Ground) -> Self {
        let config = ground.boxes();
        let mut superuser = ground.database.superuser().await;
        let ids: Vec<Uuid> = sqlx::query_scalar("select sandbox_id from sandbox")
            .fetch_all(&mut superuser)
            .await
            .expect("the boxes that were ever made");
        let ids: BTreeSet<String> =
            ids.into_iter().map(|id| sojourn::domain::SandboxId::from_uuid(id).to_string()).collect();
        let of_ids = |directory: &Path| {
            let names = entries(directory)
                .into_iter()
                .filter(|name| ids.iter().any(|id| name.trim_start_matches('.').starts_with(id.as_str())));
            names.count()
        };
        let hierarchies = entries(Path::new("/sys/fs/cgroup"));
        let hierarchies = hierarchies.iter().map(|name| Path::new("/sys/fs/cgroup").join(name));
        let data_dir = config.data_dir.to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let backing = entries(Path::new("/sys/block"))
            .into_iter()
            .filter_map(|device| fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).ok());
        let processes = entries(Path::new("/proc")).into_iter().filter(|pid| {
            let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            cgroups.lines().any(|line| ids.iter().any(|id| line.contains(id.as_str())))
        });
        let tenants = entries(&config.data_dir.join("boxes"));
        let disks = tenants.iter().map(|tenant| entries(&config.data_dir.join("boxes").join(tenant)).len());
        Self {
            cgroups: hierarchies.map(|hierarchy| of_ids(&hierarchy.join("sojourn"))).sum(),
            containers: of_ids(&config.run_dir.join("runtime")),
            mounts: mounts.lines().filter(|line| line.contains(&data_dir)).count(),
            loops: backing.filter(|file| file.contains(&data_dir)).count(),
            processes: processes.count(),
            boxes: entries(&config.run_dir.join("boxes")).len(),
            disks: disks.sum(),
        }
    }
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Sessions whose boxes are made, frozen, saved, removed, woken and replaced.
async fn keep_busy(caller: &Caller, agent: &str) -> Result<(), ()> {
    let steps = json!([run("head -c 2M /dev/urandom > file"), run("echo more >> file; sleep 0.1"), { "text": "Done." }]);
    let body = json!({ "agent": agent, "input": { "script": steps } });
    let created =
        caller.request(reqwest::Method::POST, "/sessions").json(&body).send().await.map_err(drop)?;
    let created: Value = created.json().await.map_err(drop)?;
    let id = created["session"]["id"].as_str().ok_or(())?.to_owned();
    loop {
        tokio::time::sleep(Duration::from_millis(350)).await;
        let again = script(json!([run("echo again >> file"), { "text": "Done." }]));
        let steer = caller.request(reqwest::Method::POST, &format!("/sessions/{id}/messages"));
        steer.json(&json!({ "text": again })).send().await.map_err(drop)?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_again_and_again_leaves_nothing() {
    let kills: u64 = if std::env::var_os("SOJOURN_TEST_FULL").is_some() { 200 } else { 10 };
    let ground = Ground::new().await;
    let mut most = Left::default();
    for kill in 0..kills {
        let program = Program::start(&ground, &HASTY);
        let caller = Caller::new(&program.base, KEY);
        let agent = caller.inline_agent().await;
        let busy = (0..3).map(|_| {
            let (caller, agent) = (caller.clone(), agent.clone());
            tokio::spawn(async move { keep_busy(&caller, &agent).await })
        });
        let busy: Vec<_> = busy.collect();
        // Over the whole life of a box, in steps that fall on no beat.
        tokio::time::sleep(Duration::from_millis(150 + kill * 137 % 1_400)).await;
        program.kill();
        for task in busy {
            task.abort();
        }
        let left = Left::of(&ground).await;
        most.boxes = most.boxes.max(left.boxes);
        most.mounts = most.mounts.max(left.mounts);
        most.processes = most.processes.max(left.processes);
    }
    assert!(most.boxes > 0 && most.mounts > 0 && most.processes > 0, "it was killed in the middle: {most:?}");
    // Nothing is needed any more. The service is killed while it cleans up, too.
    let program = Program::start(&ground, &HASTY);
    let caller = Caller::new(&program.base, KEY);
    let mut superuser = ground.database.superuser().await;
    let sessions: Vec<Uuid> = sqlx::query_scalar("select session_id from session")
        .fetch_all(&mut superuser)
        .await
        .expect("the sessions");
    for session in sessions {
        let id = sojourn::domain::SessionId::from_uuid(session);
        caller.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    }
    program.kill();
    let program = Program::start(&ground, &HASTY);
    let mut left = Left::of(&ground).await;
    for _ in 0..600 {
        if left == Left::default() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        left = Left::of(&ground).await;
    }
    program.kill();
    println!("after {kills} kills, at most {most:?}; in the end {left:?}");
    assert_eq!(left, Left::default());
}
