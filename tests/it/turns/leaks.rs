//! Leftovers of a service that is killed during sandbox operations: none, after a restart and one sweep.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileTypeExt,
    path::Path,
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use sojourn::domain::{SandboxId, SessionId};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{run, script};
use crate::support::{
    program::Program,
    service::{Caller, Ground, KEY},
};

/// The whole life of a sandbox takes less than a second.
const HASTY: [&str; 4] = [
    "--lease-ms=1000",
    "--sandbox-freeze-after-seconds=0.1",
    "--sandbox-hibernate-after-seconds=0.2",
    "--max-concurrent-turns=4",
];

/// Number of resources of a ground's sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    cgroups: usize,
    containers: usize,
    mounts: usize,
    loops: usize,
    pub processes: usize,
    /// Directories of sandboxes: bundles, logs.
    sandboxes: usize,
    sockets: usize,
    disks: usize,
}

impl Left {
    pub async fn of(ground: &Ground) -> Self {
        let config = ground.sandboxes();
        let mut superuser = ground.database.superuser().await;
        let ids: Vec<Uuid> = sqlx::query_scalar("select sandbox_id from sandbox")
            .fetch_all(&mut superuser)
            .await
            .expect("all sandboxes ever created");
        let ids: BTreeSet<String> = ids.into_iter().map(|id| SandboxId::from_uuid(id).to_string()).collect();
        let of_ids = |directory: &Path| {
            let names = entries(directory)
                .into_iter()
                .filter(|name| ids.iter().any(|id| name.trim_start_matches('.').starts_with(id.as_str())));
            names.count()
        };
        let hierarchies = entries(Path::new("/sys/fs/cgroup"));
        let parents = hierarchies.iter().map(|name| Path::new("/sys/fs/cgroup").join(name).join("sojourn"));
        // A sandbox is in the cgroup of its organization.
        let organizations = parents.flat_map(|parent| {
            entries(&parent).into_iter().map(|name| parent.join(name)).collect::<Vec<_>>()
        });
        let data_dir = config.data_dir.to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let backing = entries(Path::new("/sys/block"))
            .into_iter()
            .filter_map(|device| fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).ok());
        let processes = entries(Path::new("/proc")).into_iter().filter(|pid| {
            let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            cgroups.lines().any(|line| ids.iter().any(|id| line.contains(id.as_str())))
        });
        let orgs = entries(&config.data_dir.join("sandboxes"));
        let disks = orgs.iter().map(|org| entries(&config.data_dir.join("sandboxes").join(org)).len());
        Self {
            cgroups: organizations.map(|organization| of_ids(&organization)).sum(),
            containers: of_ids(&config.run_dir.join("runtime")),
            mounts: mounts.lines().filter(|line| line.contains(&data_dir)).count(),
            loops: backing.filter(|file| file.contains(&data_dir)).count(),
            processes: processes.count(),
            sandboxes: entries(&config.run_dir.join("sandboxes")).len(),
            sockets: sockets(&config.run_dir),
            disks: disks.sum(),
        }
    }

    pub fn rows(&self) -> [(&'static str, usize); 8] {
        let Self { cgroups, containers, mounts, loops, processes, sandboxes, sockets, disks } = *self;
        [
            ("containers", containers),
            ("cgroups", cgroups),
            ("processes", processes),
            ("mounts", mounts),
            ("loop devices", loops),
            ("directories of sandboxes", sandboxes),
            ("sockets", sockets),
            ("disks", disks),
        ]
    }
}

/// Sockets below a directory; a sandbox cannot create one there.
fn sockets(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() && !entry.file_name().to_string_lossy().starts_with("rootfs") => {
            sockets(&entry.path())
        }
        Ok(kind) => usize::from(kind.is_socket()),
        Err(_) => 0,
    };
    entries.map(count).sum()
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// A session whose sandboxes are created, frozen, checkpointed, removed, restored and replaced.
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

/// A session whose sandbox is replaced in the middle of its turns.
async fn keep_replacing(caller: &Caller, agent: &str, mut superuser: PgConnection) -> Result<(), ()> {
    let created = caller.request(Method::POST, "/sessions").json(&json!({ "agent": agent }));
    let created: Value = created.send().await.map_err(drop)?.json().await.map_err(drop)?;
    let id = created["session"]["id"].as_str().ok_or(())?.to_owned();
    // Shorter than the API allows.
    let short = json!({ "environment_id": null, "name": null, "config": {
        "timeout_seconds": 2, "rotation": { "pre_rotate_buffer_seconds": 2 },
    } });
    sqlx::query("update session set environment = $1::json where session_id = $2")
        .bind(short.to_string())
        .bind(id.parse::<SessionId>().map_err(drop)?.uuid())
        .execute(&mut superuser)
        .await
        .map_err(drop)?;
    loop {
        let step = run("echo more >> file; sleep 0.05");
        let turn = script(json!([step, step, step, step, { "text": "Done." }]));
        let steer = caller.request(Method::POST, &format!("/sessions/{id}/messages"));
        steer.json(&json!({ "text": turn })).send().await.map_err(drop)?;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}

/// A session whose caller uses the sandbox: checkpoint, restore, stop, start.
async fn keep_using(caller: &Caller) -> Result<(), ()> {
    let ask = async |path: &str, body: Value| {
        let asked = caller.request(Method::POST, path).header("Prefer", "wait=1").json(&body);
        asked.send().await.map_err(drop)?.json::<Value>().await.map_err(drop)
    };
    let created = ask("/sessions", json!({})).await?;
    let path = format!("/sessions/{}", created["session"]["id"].as_str().ok_or(())?);
    loop {
        ask(&format!("{path}/exec"), json!({ "command": "head -c 1M /dev/urandom >> file" })).await?;
        let saved = ask(&format!("{path}/checkpoints"), json!({})).await?;
        ask(&format!("{path}/restore"), json!({ "checkpoint_id": saved["id"] })).await?;
        ask(&format!("{path}/exec"), json!({ "command": "ls -l" })).await?;
        ask(&format!("{path}/stop"), json!({})).await?;
        ask(&format!("{path}/start"), json!({})).await?;
    }
}

/// Counts the current states of the sandboxes, from their rows.
async fn moments(superuser: &mut PgConnection, seen: &mut BTreeMap<String, usize>) {
    let now: Vec<String> = sqlx::query_scalar(
        "select distinct case
             when state = 'live' and not is_announced then 'being made'
             when state = 'live' then 'running'
             when state = 'frozen' then 'frozen'
             when ending = 'rotated' then 'being replaced'
             else 'being removed'
         end
         from sandbox
         where state <> 'ended'",
    )
    .fetch_all(superuser)
    .await
    .expect("the existing sandboxes");
    for moment in now {
        *seen.entry(moment).or_default() += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_again_and_again_leaves_nothing() {
    let kills: u64 = if std::env::var_os("SOJOURN_TEST_FULL").is_some() { 200 } else { 10 };
    let ground = Ground::new().await;
    let before = Left::of(&ground).await;
    let (mut most, mut seen) = ([0; 8], BTreeMap::new());
    for kill in 0..kills {
        let program = Program::start(&ground, &HASTY);
        let caller = Caller::new(&program.base, KEY);
        let agent = caller.inline_agent().await;
        let busy = (0..2).map(|_| {
            let (caller, agent) = (caller.clone(), agent.clone());
            tokio::spawn(async move { keep_busy(&caller, &agent).await })
        });
        let mut busy: Vec<_> = busy.collect();
        let superuser = ground.database.superuser().await;
        let (own, using) = (caller.clone(), caller.clone());
        busy.push(tokio::spawn(async move { keep_replacing(&own, &agent, superuser).await }));
        busy.push(tokio::spawn(async move { keep_using(&using).await }));
        // Spread over the whole life of a sandbox, in irregular steps.
        tokio::time::sleep(Duration::from_millis(150 + kill * 137 % 1_400)).await;
        program.kill();
        for task in busy {
            task.abort();
        }
        moments(&mut ground.database.superuser().await, &mut seen).await;
        let left = Left::of(&ground).await.rows();
        most = std::array::from_fn(|at| most[at].max(left[at].1));
    }
    assert!(most.iter().all(|count| *count > 0), "it was never killed with resources present: {most:?}");
    // No sandbox is needed any more. The service is killed during the cleanup, too.
    let program = Program::start(&ground, &HASTY);
    let caller = Caller::new(&program.base, KEY);
    let mut superuser = ground.database.superuser().await;
    let sessions: Vec<Uuid> = sqlx::query_scalar("select session_id from session")
        .fetch_all(&mut superuser)
        .await
        .expect("the sessions");
    for session in sessions {
        let id = SessionId::from_uuid(session);
        caller.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    }
    program.kill();
    let program = Program::start(&ground, &HASTY);
    let mut left = Left::of(&ground).await;
    for _ in 0..600 {
        if left == before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        left = Left::of(&ground).await;
    }
    program.kill();
    println!(
        "kills while a sandbox was: {seen:?}\n| {kills} kills | before | at most | in the end |\n|---|---|---|---|"
    );
    for (at, (what, count)) in left.rows().into_iter().enumerate() {
        println!("| {what} | {} | {} | {count} |", before.rows()[at].1, most[at]);
    }
    assert_eq!(left, before);
}
