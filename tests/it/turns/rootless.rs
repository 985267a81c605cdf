//! The whole service as an ordinary user, including its database, in a home that other users cannot enter: a
//! session runs, hibernates, is restored, and leaves nothing.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::json;

use super::{of, outputs, run, script, steer, until, wait_until};
use crate::support::{
    ordinary::OrdinaryUser,
    service::{Caller, KEY},
};

/// A service in processes of its own, with the embedded database.
pub struct Standalone {
    pub child: Child,
    pub owner: Caller,
}

impl Standalone {
    fn start(user: &OrdinaryUser, more: &[&str]) -> Self {
        Self::launch(user.command(Path::new(env!("CARGO_BIN_EXE_sojourn"))), &data_dir(user), more)
    }

    pub fn launch(mut command: Command, data_dir: &Path, more: &[&str]) -> Self {
        let mut child = command
            .args(["serve", "--listen=127.0.0.1:0", "--lease-ms=1000", "--first-session=off"])
            .args(more)
            .arg(format!("--data-dir={}", data_dir.display()))
            .arg(format!("--bootstrap-api-key={KEY}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut said = Vec::new();
        let base = lines.find_map(|line| {
            said.push(line.ok()?);
            said.last()?.strip_prefix("sojourn serves ").map(|address| format!("{address}/v3"))
        });
        let base = base.unwrap_or_else(|| panic!("it logs its address: {said:#?}"));
        thread::spawn(move || lines.for_each(|line| eprintln!("{}", line.unwrap_or_default())));
        Self { child, owner: Caller::new(&base, KEY) }
    }

    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// As on Ctrl-C: the database stops with it.
    pub fn stop(mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a number");
        kill_process(pid, Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

pub fn data_dir(user: &OrdinaryUser) -> PathBuf {
    user.home().join("data")
}

/// Disks, bundles, sockets and runtime state of sandboxes.
fn left(user: &OrdinaryUser) -> Vec<PathBuf> {
    let disks = data_dir(user).join("sandboxes");
    let run_dir = PathBuf::from(fs::read_to_string(disks.join("run")).expect("where it runs"));
    let entries =
        |place: PathBuf| fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    let disks = entries(disks).filter(|path| path.is_dir() && !path.ends_with("skeleton"));
    disks.chain(entries(run_dir.join("sandboxes"))).chain(entries(run_dir.join("runtime"))).collect()
}

/// Removes the service's files outside its home, which the machine itself would do.
pub struct RunDir(pub PathBuf);

impl Drop for RunDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            assert!(thread::panicking(), "{}: {error}", self.0.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_root_serves_sessions_and_leaves_nothing() {
    assert!(geteuid().is_root(), "this test needs root to be another user");
    let user = OrdinaryUser::new();
    let _run_dir = RunDir(PathBuf::from(format!("/tmp/sojourn-{}", user.uid())));
    // Frozen soon, never hibernated.
    let service = Standalone::start(
        &user,
        &["--sandbox-freeze-after-seconds=0.3", "--sandbox-hibernate-after-seconds=600"],
    );
    let owner = &service.owner;
    let work = "id -u; id -G; echo kept > note; mkfifo pipe; ln -s note link; echo home > ~/mark; chmod 000 ~/mark; \
        echo here > /tmp/mark; (sleep 617 > /dev/null 2>&1 &)";
    let id = owner.play(json!([run(work), { "text": "Done." }])).await;
    let frozen = until(owner, &id, "sandbox.frozen").await;
    assert_eq!(outputs(&frozen)[0], "1000\n1000\n");
    let memory = of(&frozen, "sandbox.frozen")[0]["body"]["memory_bytes"].as_u64();
    assert!(memory.expect("a number") > 0, "it is counted without a cgroup");
    steer(owner, &id, &script(json!([run("cat /tmp/mark; pgrep -c sleep"), { "text": "Done." }]))).await;
    let thawed = owner.settled(&id, 2).await;
    assert_eq!(outputs(&thawed)[1], "here\n1\n", "it resumes where it stopped");

    // Killed while a command runs; the next service finds the sandbox and the command alive.
    steer(owner, &id, &script(json!([run("touch started; sleep 3; echo over"), { "text": "Done." }]))).await;
    until_file(owner, &id, "started").await;
    service.kill();
    assert!(user.processes_of_sandboxes() > 0, "sandboxes outlive their service");
    let hasty = ["--sandbox-freeze-after-seconds=0.3", "--sandbox-hibernate-after-seconds=0.9"];
    let service = Standalone::start(&user, &hasty);
    let owner = &service.owner;
    let slept = until(owner, &id, "sandbox.terminated").await;
    assert_eq!(outputs(&slept)[2], "over\n");
    assert_eq!(of(&slept, "sandbox.terminated")[0]["body"]["reason"], "idle");
    wait_until("it sleeps as a file", || user.processes_of_sandboxes() == 0 && left(&user).is_empty()).await;

    steer(owner, &id, &script(json!([run("cat link; stat -c '%a %U' ~/mark pipe"), { "text": "Done." }])))
        .await;
    let woken = owner.settled(&id, 4).await;
    assert_eq!(outputs(&woken)[3], "kept\n0 agent\n644 agent\n");
    assert_eq!(of(&woken, "sandbox.checkpoint_restored").len(), 1);

    // A requirement that cannot be met is reported.
    let sized = owner.play_in(json!([run("true"), { "text": "Done." }]), json!({ "memory": "512Mi" })).await;
    let refused = owner.settled(&sized, 1).await;
    let end = &of(&refused, "turn.completed")[0]["body"];
    assert_eq!(end["error"]["code"], "sandbox_unavailable", "{end}");
    assert!(end["error"]["message"].as_str().expect("words").contains("`cpus` or `memory`"), "{end}");

    // Killed while creating and destroying sandboxes; the next start cleans up.
    for _ in 0..3 {
        steer(owner, &id, &script(json!([run("true"), { "text": "Done." }]))).await;
    }
    service.kill();
    let service = Standalone::start(&user, &hasty);
    for session in [&id, &sized] {
        service.owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
    }
    wait_until("everything of sandboxes is gone", || {
        user.processes_of_sandboxes() == 0 && left(&user).is_empty()
    })
    .await;
    service.stop();
    // The watcher looks every 5 s.
    wait_until("nothing of it runs", || user.processes().is_empty()).await;
}

pub async fn until_file(owner: &Caller, session: &str, path: &str) {
    loop {
        let found = owner.get(&format!("/sessions/{session}/files?path={path}")).await;
        if found.status.is_success() {
            return;
        }
    }
}
