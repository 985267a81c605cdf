//! Privileges of the processes of a service: root only in the node agent, secrets only in the service.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::json;
use sojourn::base::limit::NODE_AGENT_WAIT;

use super::{
    of, outputs,
    rootless::{RunDir, Standalone, data_dir, until_file},
    run, script, steer, wait_until,
};
use crate::support::{ordinary::OrdinaryUser, service::Ground, wait::wait_for};

const SECRET: &str = "SOJOURN_OPERATOR_KEY";
const VALUE: &str = "a-key-of-the-operator-for-this-test-alone";
/// A secret of an environment.
const TOKEN: &str = "a-token-of-an-environment-for-this-test-alone";

/// A process, from outside.
struct Seen(u32);

impl Seen {
    fn file(&self, name: &str) -> Vec<u8> {
        fs::read(format!("/proc/{}/{name}", self.0)).unwrap_or_default()
    }

    /// The four user ids, and the effective capabilities.
    fn status(&self) -> (Vec<u32>, u64) {
        let status = String::from_utf8(self.file("status")).unwrap();
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        let ids = field("Uid:").split_whitespace().map(|id| id.parse().unwrap()).collect();
        (ids, u64::from_str_radix(&field("CapEff:"), 16).unwrap())
    }

    fn knows_the_secret(&self) -> bool {
        let in_environment = contains(&self.file("environ"), VALUE) || contains(&self.file("cmdline"), VALUE);
        in_environment || self.memory_contains(VALUE)
    }

    /// Searches everything that the process can write.
    fn memory_contains(&self, text: &str) -> bool {
        use std::os::unix::fs::FileExt;
        let maps = String::from_utf8(self.file("maps")).unwrap();
        let memory = fs::File::open(format!("/proc/{}/mem", self.0)).unwrap();
        let mut read = 0;
        let is_there = maps.lines().filter(|line| line.contains(" rw")).any(|line| {
            let (from, to) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
            let at = |text| u64::from_str_radix(text, 16).unwrap();
            let mut bytes = vec![0; usize::try_from(at(to) - at(from)).unwrap()];
            // A region may have been unmapped meanwhile.
            let is_read = memory.read_exact_at(&mut bytes, at(from)).is_ok();
            read += if is_read { bytes.len() } else { 0 };
            is_read && contains(&bytes, text)
        });
        assert!(is_there || read > 1 << 20, "{read} bytes of its memory can be read");
        is_there
    }

    fn children(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).unwrap().flatten();
        let children =
            |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
        tasks
            .flat_map(|task| {
                children(task).split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<_>>()
            })
            .collect()
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

pub(super) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sojourn"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_starts_as_root_keeps_root_only_in_its_agent() {
    assert!(geteuid().is_root(), "this test needs root to give it up");
    let user = OrdinaryUser::new();
    let _run_dir = RunDir(PathBuf::from(format!("/tmp/sojourn-{}", user.uid())));
    // Where only root can replace it.
    let directory = open_directory();
    let data = directory.path().join("data");
    let launch = |more: &[&str]| {
        let mut command = user.known_to(program().to_str().unwrap());
        command.env(SECRET, VALUE);
        Standalone::launch(command, &data, &[&["--user=sojourn-test"], more].concat())
    };
    let service = launch(&["--sandbox-freeze-after-seconds=0.3", "--sandbox-hibernate-after-seconds=600"]);
    let agent = Seen(service.child.id());
    let (ids, capabilities) = agent.status();
    assert!(ids.iter().all(|id| *id == 0) && capabilities != 0, "{ids:?} {capabilities:x}");
    assert!(!agent.knows_the_secret(), "the agent has a secret");
    let of_service: Vec<_> =
        agent.children().into_iter().map(Seen).filter(|child| child.status().0[0] != 0).collect();
    let [of_service] = &of_service[..] else { panic!("one child is the service") };
    assert_eq!(of_service.status(), (vec![user.uid(); 4], 0));
    let status = String::from_utf8(of_service.file("status")).unwrap();
    let none = ["NoNewPrivs:\t1", "CapBnd:\t0000000000000000"];
    assert!(none.iter().all(|line| status.contains(line)), "it can gain none either: {status}");
    assert!(of_service.knows_the_secret(), "this test finds a secret where it is");

    let owner = &service.owner;
    let secrets = json!([{ "name": "TOKEN", "value": TOKEN, "hosts": ["api.example"] }]);
    let config = json!({ "network": { "allow": [{ "host": "api.example" }] } });
    let environment = json!({ "name": "with-a-secret", "config": config, "secrets": secrets });
    owner.post("/environments", environment).await.ok();
    let steps = json!([run("id -u; echo kept > note; test -n \"$TOKEN\""), { "text": "Done." }]);
    let id = owner.play_in(steps, json!("with-a-secret")).await;
    assert_eq!(outputs(&owner.settled(&id, 1).await)[0], "1000\n");
    for secret in [VALUE, TOKEN, &owner.key] {
        assert!(!agent.memory_contains(secret), "the agent has a secret after a turn");
    }
    // The service cannot replace what its agent uses as root.
    for place in ["sandboxes", "images"] {
        let place = data.join(place);
        let moved =
            user.command(Path::new("mv")).arg(&place).arg(place.with_extension("moved")).output().unwrap();
        assert!(!moved.status.success(), "{} was moved", place.display());
        let listed = user.command(Path::new("ls")).arg(&place).output().unwrap();
        assert!(!listed.status.success(), "{} can be read", place.display());
    }

    // The agent is killed: its service ends too, and both start again on what is there.
    let left = Seen(of_service.0);
    service.kill();
    wait_until("the service ends with its agent", || left.file("status").is_empty()).await;
    let service = launch(&["--sandbox-freeze-after-seconds=0.3", "--sandbox-hibernate-after-seconds=0.9"]);
    let owner = &service.owner;
    steer(owner, &id, &script(json!([run("cat note"), { "text": "Done." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(outputs(&log)[1], "kept\n");
    assert_eq!(of(&log, "sandbox.lost").len(), 0);
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    wait_until("its disk is gone", || has_no_disk(&data)).await;
    service.stop();
    wait_until("nothing of it runs", || user.processes().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_that_root_made_is_handed_over() {
    assert!(geteuid().is_root(), "this test needs root to give it up");
    let directory = open_directory();
    let data = directory.path().join("data");
    let launch =
        |user: &str| Standalone::launch(Command::new(program()), &data, &[&format!("--user={user}")]);
    let service = launch("root");
    let id = service.owner.play(json!([run("echo kept > note"), { "text": "Done." }])).await;
    service.owner.settled(&id, 1).await;
    service.stop();
    // The user of the embedded database of root.
    let service = launch("sojourn");
    let owner = &service.owner;
    steer(owner, &id, &script(json!([run("cat note"), { "text": "Done." }]))).await;
    assert_eq!(outputs(&owner.settled(&id, 2).await)[1], "kept\n");
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    wait_until("its disk is gone", || has_no_disk(&data)).await;
    service.stop();
    // Another user has no right to the cluster.
    let mut refused = Command::new(program());
    refused.args(["serve", "--user=nobody"]).arg(format!("--data-dir={}", data.display()));
    let said = String::from_utf8(refused.output().unwrap().stderr).unwrap();
    assert!(said.contains("set SOJOURN_USER to that user"), "{said}");
}

pub(super) fn has_no_disk(data_dir: &Path) -> bool {
    fs::read_dir(data_dir.join("sandboxes")).unwrap().flatten().all(|entry| !entry.path().is_dir())
}

/// A directory that every user may pass.
fn open_directory() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o711)).tempdir().unwrap()
}

#[tokio::test]
async fn a_worker_that_waits_for_its_agent_can_be_stopped() {
    let ground = Ground::new().await;
    let urls = ground.urls();
    let mut worker = Command::new(program())
        .args(["serve", "--role=worker", "--node=unix:/run/sojourn/no-such-agent.sock"])
        .arg(format!("--data-dir={}", ground.data_dir.path().display()))
        .args([format!("--database-url={}", urls.app), format!("--owner-database-url={}", urls.owner)])
        .arg(format!("--system-database-url={}", urls.system))
        .arg("--master-key=a passphrase that is long enough for tests")
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = BufReader::new(worker.stderr.take().expect("piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("waiting for the node agent"))));
    kill_process(Pid::from_child(&worker), Signal::TERM).expect("it runs");
    let told = Instant::now();
    assert!(worker.wait().expect("it ends").success());
    assert!(told.elapsed() < NODE_AGENT_WAIT / 4, "{:?}", told.elapsed());
}

/// A node agent in a process of its own.
pub(super) struct AgentProcess(Child);

impl AgentProcess {
    pub(super) fn start(data_dir: &Path, more: &[String]) -> Self {
        let mut command = Command::new(program());
        command.args(["serve", "--role=node"]).arg(format!("--data-dir={}", data_dir.display())).args(more);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let is_serving = |line: std::io::Result<String>| {
            line.is_ok_and(|line| line.starts_with("sojourn makes sandboxes"))
        };
        assert!(lines.any(is_serving), "it serves");
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{}", line.unwrap_or_default())));
        Self(child)
    }

    pub(super) fn end(&mut self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id().cast_signed()).expect("a number");
        kill_process(pid, signal).expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_root_uses_an_agent_that_is_replaced_beside_it() {
    assert!(geteuid().is_root(), "this test needs root to be another user");
    let user = OrdinaryUser::new();
    let _run_dir = RunDir(PathBuf::from(format!("/tmp/sojourn-{}", user.uid())));
    let directory = open_directory();
    let address = format!("unix:{}", directory.path().join("node.sock").display());
    let agent = || {
        let more = [
            format!("--node-listen={address}"),
            format!("--node-socket-user={}", user.uid()),
            format!("--grant-key-file={}", data_dir(&user).join("grant-key").display()),
        ];
        AgentProcess::start(&directory.path().join("node"), &more)
    };
    let mut first = agent();
    let node = format!("--node={address}");
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let service = Standalone::launch(
        user.command(program()),
        &data_dir(&user),
        &[
            &node,
            &format!("--metrics-listen={metrics}"),
            "--sandbox-freeze-after-seconds=0.5",
            "--sandbox-hibernate-after-seconds=600",
        ],
    );
    let owner = &service.owner;
    let id = owner
        .play(json!([run("echo kept > note; (sleep 611 >/dev/null 2>&1 &)"), { "text": "Done." }]))
        .await;
    owner.settled(&id, 1).await;
    first.end(Signal::KILL);
    let mut second = agent();
    steer(owner, &id, &script(json!([run("cat note; pgrep -c sleep"), { "text": "Done." }]))).await;
    let log = owner.settled(&id, 2).await;
    assert_eq!(outputs(&log)[1], "kept\n1\n", "the sandbox and its processes outlive the agent");
    // The agent is replaced while a command runs: nobody notices.
    steer(owner, &id, &script(json!([run("touch begun; sleep 3; echo over"), { "text": "Done." }]))).await;
    until_file(owner, &id, "begun").await;
    second.end(Signal::TERM);
    let mut third = agent();
    let log = owner.settled(&id, 3).await;
    assert_eq!(outputs(&log).last(), Some(&"over\n"));
    assert_eq!(of(&log, "turn.started").len(), 3, "no turn was begun again");
    assert_eq!(of(&log, "sandbox.lost").len(), 0);
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    wait_until("its disk is gone", || has_no_disk(&directory.path().join("node"))).await;
    // A node that does not answer sends no heartbeat: it counts as lost a minute later.
    let is_up = async || {
        let text = reqwest::get(format!("http://{metrics}/metrics")).await.ok()?.text().await.ok()?;
        let line = text.lines().find(|line| line.starts_with("sojourn_node_up{"))?;
        Some(line.ends_with(" 1"))
    };
    assert_eq!(is_up().await, Some(true));
    third.end(Signal::TERM);
    wait_for("the worker misses its node", async || (!is_up().await?).then_some(())).await;
    service.stop();
}
