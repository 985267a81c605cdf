//! The real program as a process, for tests that cannot use a service inside the test process.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    service::{Ground, KEY},
    wait::WAIT_MAX,
};

/// The real program as a separate process that can be killed; killed on drop.
pub struct Program {
    child: Child,
    pub base: String,
}

impl Program {
    pub fn start(ground: &Ground, more: &[&str]) -> Self {
        Self::started(ground, more, Command::new(env!("CARGO_BIN_EXE_sojourn")))
    }

    /// The same, with `place` first in its `PATH`.
    pub fn with_programs(ground: &Ground, more: &[&str], place: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
        let path = env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", place.display()));
        Self::started(ground, more, command)
    }

    /// The same, with more environment variables.
    pub fn with_environment(ground: &Ground, more: &[&str], variables: Vec<(&str, String)>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
        command.envs(variables);
        Self::started(ground, more, command)
    }

    fn started(ground: &Ground, more: &[&str], mut command: Command) -> Self {
        let urls = ground.urls();
        let mut child = command
            .args(["serve", "--listen=127.0.0.1:0", "--allow-private-webhooks=on", "--allow-shared-host=on"])
            .args(more)
            .args([format!("--data-dir={}", ground.data_dir.path().display())])
            .args([format!("--database-url={}", urls.app), format!("--owner-database-url={}", urls.owner)])
            .args([format!("--system-database-url={}", urls.system), format!("--bootstrap-api-key={KEY}")])
            .args(["--first-session=off", "--master-key=a passphrase that is long enough for tests"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let base = lines
            .find_map(|line| {
                line.ok()?.strip_prefix("sojourn serves ").map(|address| format!("{address}/v3"))
            })
            .expect("it logs its address");
        // Keep reading, or a full pipe would block the process.
        thread::spawn(move || lines.count());
        Self { child, base }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process with SIGSTOP, as on a paused machine, and waits until it stands still.
    pub fn freeze(&self) {
        freeze(self.child.id());
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Ends the process with SIGTERM. Returns after how long.
    pub fn end(mut self) -> Duration {
        let began = Instant::now();
        self.signal(Signal::TERM);
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
        began.elapsed()
    }

    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A process that was killed before cannot be killed again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stops a process with SIGSTOP, as on a paused machine.
/// Returns once none of its threads runs any more: on a busy machine the signal is late.
pub fn freeze(process: u32) {
    let id = Pid::from_raw(i32::try_from(process).expect("a process id")).expect("a process id");
    kill_process(id, Signal::STOP).expect("it runs");
    let tasks = format!("/proc/{process}/task");
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    let until = Instant::now() + WAIT_MAX;
    while !fs::read_dir(&tasks).expect("it runs").flatten().all(is_stopped) {
        assert!(Instant::now() < until, "it is not frozen");
        thread::sleep(Duration::from_millis(1));
    }
}
