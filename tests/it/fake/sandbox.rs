//! A sandbox for tests: real commands and files below a temporary directory.
//!
//! It keeps the guarantees of the port that tools rely on (a repeated start is the first one, commands
//! outlive their callers, old epochs are rejected). It can be lost, or fail at a chosen write.

use std::{
    collections::HashMap,
    fs,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use sojourn::{
    base::{Origin, Timestamp},
    domain::{OrgId, SandboxId, SessionId, content::FileRef, scheduled_wake::When},
    sandbox::{
        Capabilities, Cause, EgressSocket, Exec, Exit, Fault, FilePart, Files, Found, OutputRange,
        OutputStream, Reach, Sandbox, SandboxFence, ScanEntry, Signal, Spec, Stats,
    },
    tool::{
        Child, Fault as ToolFault, Page, SandboxHandle, Services, SessionEvents, SessionMessage,
        SessionReport, SessionWait, WORKSPACE,
    },
};

pub struct FakeSandbox {
    root: tempfile::TempDir,
    runs: Mutex<HashMap<String, Run>>,
    pub started: watch::Sender<usize>,
    pub is_lost: AtomicBool,
    pub epoch: AtomicI64,
    /// Number of writes that succeed before the sandbox stops responding.
    pub writes_left: AtomicUsize,
}

#[derive(Clone)]
struct Run {
    pid: i32,
    exit: watch::Receiver<Option<Exit>>,
    killed: Arc<AtomicBool>,
}

impl FakeSandbox {
    pub fn new() -> Arc<Self> {
        let root = tempfile::tempdir().expect("a temporary directory");
        for directory in ["workspace", "tmp", "run"] {
            fs::create_dir(root.path().join(directory)).expect("a fresh directory");
        }
        Arc::new(Self {
            root,
            runs: Mutex::default(),
            started: watch::channel(0).0,
            is_lost: AtomicBool::new(false),
            epoch: AtomicI64::new(1),
            writes_left: AtomicUsize::new(usize::MAX),
        })
    }

    pub fn handle(self: &Arc<Self>) -> SandboxHandle {
        let fence = SandboxFence {
            org: Origin::system().id(),
            session: Origin::system().id(),
            sandbox: Origin::system().id(),
            epoch: 1,
        };
        let env = vec![("GREETING".to_owned(), "hello".to_owned())];
        let sandbox = Arc::clone(self) as Arc<dyn Sandbox>;
        SandboxHandle { sandbox, fence, env, cwd: String::new(), services: Arc::new(FakeServices) }
    }

    /// Path on the machine for a path of the sandbox.
    pub fn on_host(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.on_host(&format!("{WORKSPACE}/{path}"));
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("directories");
        fs::write(path, content).expect("a file");
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.on_host(&format!("{WORKSPACE}/{path}"))).expect("a file")
    }

    fn check(&self, fence: SandboxFence) -> Result<(), Fault> {
        if self.is_lost.load(Ordering::SeqCst) {
            return Err(Fault::Gone);
        }
        if fence.epoch < self.epoch.load(Ordering::SeqCst) {
            return Err(Fault::Stale);
        }
        Ok(())
    }

    fn run(&self, id: &str) -> Result<Run, Fault> {
        let runs = self.runs.lock().expect("no holder panics");
        runs.get(id).cloned().ok_or_else(|| Fault::NotFound(format!("no command {id}")))
    }

    fn output_path(&self, id: &str, stream: OutputStream) -> PathBuf {
        self.root.path().join("run").join(format!("{id}.{stream:?}"))
    }

    fn spawn(&self, exec: &Exec) -> Run {
        let here = self.root.path().join("workspace").to_string_lossy().into_owned();
        let file = |stream| fs::File::create(self.output_path(&exec.id, stream)).expect("an output file");
        let argv: Vec<String> = exec.argv.iter().map(|word| word.replace(WORKSPACE, &here)).collect();
        let mut child = Command::new(&argv[0])
            .args(&argv[1..])
            .current_dir(self.on_host(&exec.cwd))
            .envs(exec.env.clone())
            .stdin(Stdio::null())
            .stdout(file(OutputStream::Stdout))
            .stderr(file(OutputStream::Stderr))
            .process_group(0)
            .spawn()
            .expect("a program");
        let (sender, exit) = watch::channel(None);
        let killed = Arc::new(AtomicBool::new(false));
        let run = Run { pid: child.id() as i32, exit, killed: Arc::clone(&killed) };
        let outputs =
            [OutputStream::Stdout, OutputStream::Stderr].map(|stream| self.output_path(&exec.id, stream));
        std::thread::spawn(move || {
            let start = Instant::now();
            let status = child.wait().expect("a child");
            let bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |data| data.len());
            sender.send_replace(Some(Exit {
                code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
                cause: if killed.load(Ordering::SeqCst) { Cause::Killed } else { Cause::Exited },
                stdout_bytes: bytes(&outputs[0]),
                stderr_bytes: bytes(&outputs[1]),
                duration: start.elapsed(),
            }));
        });
        run
    }
}

/// No tool calls this.
fn never() -> Fault {
    Fault::Refused("this sandbox does not rest".to_owned())
}

fn refused(error: &std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::NotFound => Fault::NotFound("no such file".to_owned()),
        _ => Fault::Refused(error.to_string()),
    }
}

/// A web with one page.
struct FakeServices;

#[async_trait]
impl Services for FakeServices {
    async fn fetch(&self, url: &str) -> Result<Page, String> {
        if url != "https://docs.example/" {
            return Err(format!("{url} is not allowed"));
        }
        Ok(Page {
            url: url.to_owned(),
            status: 200,
            content_type: "text/plain".to_owned(),
            content: b"the only page".to_vec(),
            is_cut: false,
        })
    }

    async fn store_image(&self, path: &str, _: Bytes) -> Result<FileRef, ToolFault> {
        Err(ToolFault::TellModel(format!("{path} cannot be stored here.")))
    }

    async fn schedule_wake(&self, _: &str, _: When, _: &str) -> Result<Timestamp, ToolFault> {
        Err(ToolFault::TellModel("No wake can be scheduled here.".to_owned()))
    }

    async fn start_session(&self, _: &str, _: Child<'_>) -> Result<SessionId, ToolFault> {
        Err(ToolFault::TellModel("No session can be started here.".to_owned()))
    }

    async fn wait_for_sessions(
        &self,
        _: &str,
        _: SessionWait<'_>,
    ) -> Result<(Vec<SessionReport>, bool), ToolFault> {
        Err(no_sessions())
    }

    async fn read_session(&self, _: &str, _: i64) -> Result<SessionEvents, ToolFault> {
        Err(no_sessions())
    }

    async fn message_session(&self, _: &str, _: SessionMessage<'_>) -> Result<String, ToolFault> {
        Err(no_sessions())
    }

    async fn cancel_session(&self, _: &str, _: &str) -> Result<String, ToolFault> {
        Err(no_sessions())
    }
}

fn no_sessions() -> ToolFault {
    ToolFault::TellModel("There are no sessions here.".to_owned())
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn capabilities(&self) -> Capabilities {
        Capabilities { reach: Reach::Node, enforces_size: true, has_own_kernel: true }
    }

    async fn create(&self, _: &Spec, _: i64) -> Result<Files, Fault> {
        Ok(Files::Kept)
    }

    async fn running(&self, fence: SandboxFence) -> Result<u64, Fault> {
        self.check(fence)?;
        let runs = self.runs.lock().expect("no holder panics");
        Ok(runs.values().filter(|run| run.exit.borrow().is_none()).count() as u64)
    }

    async fn freeze(&self, _: SandboxFence) -> Result<(), Fault> {
        Err(never())
    }

    async fn touch(&self, _: SandboxId) -> Result<(), Fault> {
        Ok(())
    }

    async fn stats(&self, _: SandboxId) -> Result<Stats, Fault> {
        Err(never())
    }

    async fn quiesce(&self, _: SandboxFence) -> Result<(), Fault> {
        Err(never())
    }

    async fn pack(&self, _: SandboxFence, _: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        Err(never())
    }

    async fn unpack(&self, _: SandboxFence, _: mpsc::Receiver<Result<Bytes, Fault>>) -> Result<(), Fault> {
        Err(never())
    }

    async fn attach(&self, fence: SandboxFence) -> Result<(), Fault> {
        self.check(fence)
    }

    async fn start(&self, fence: SandboxFence, exec: &Exec) -> Result<(), Fault> {
        self.check(fence)?;
        let mut runs = self.runs.lock().expect("no holder panics");
        if !runs.contains_key(&exec.id) {
            runs.insert(exec.id.clone(), self.spawn(exec));
            self.started.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    async fn wait(&self, fence: SandboxFence, exec_id: &str) -> Result<Exit, Fault> {
        self.check(fence)?;
        let mut exit = self.run(exec_id)?.exit;
        let exit = exit.wait_for(Option::is_some).await.map_err(|_| Fault::Gone)?;
        Ok(exit.clone().expect("it was waited for"))
    }

    async fn output(&self, fence: SandboxFence, exec_id: &str, range: OutputRange) -> Result<Vec<u8>, Fault> {
        self.check(fence)?;
        self.run(exec_id)?;
        let all = fs::read(self.output_path(exec_id, range.stream)).expect("an output file");
        let start = (range.offset as usize).min(all.len());
        // A short read is allowed: callers must read again.
        let end = (start + range.bytes_max.min(10_000)).min(all.len());
        Ok(all[start..end].to_vec())
    }

    async fn write_input(&self, _: SandboxFence, _: &str, _: u64, _: &str) -> Result<(), Fault> {
        Err(never())
    }

    async fn read_input(&self, _: SandboxFence, _: &str, _: u64, _: usize) -> Result<Vec<u8>, Fault> {
        Err(never())
    }

    async fn kill(&self, fence: SandboxFence, exec_id: &str) -> Result<(), Fault> {
        self.check(fence)?;
        let mut run = self.run(exec_id)?;
        run.killed.store(true, Ordering::SeqCst);
        let group = rustix::process::Pid::from_raw(run.pid).expect("a child has a pid");
        // The process group may have ended already.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        run.exit.wait_for(Option::is_some).await.map_err(|_| Fault::Gone)?;
        Ok(())
    }

    async fn signal(&self, _: SandboxFence, _: &str, _: Signal) -> Result<(), Fault> {
        Err(never())
    }

    async fn read_file(
        &self,
        fence: SandboxFence,
        path: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<FilePart, Fault> {
        self.check(fence)?;
        let all = fs::read(self.on_host(path)).map_err(|error| refused(&error))?;
        let start = (offset as usize).min(all.len());
        let end = (start + bytes_max.min(300_000)).min(all.len());
        Ok(FilePart { content: all[start..end].to_vec(), size: all.len() as u64 })
    }

    async fn write_file(&self, fence: SandboxFence, path: &str, content: &[u8]) -> Result<(), Fault> {
        self.check(fence)?;
        let left = self.writes_left.load(Ordering::SeqCst);
        if left == 0 {
            return Err(Fault::Unavailable("the worker died here".to_owned()));
        }
        self.writes_left.store(left - 1, Ordering::SeqCst);
        let host = self.on_host(path);
        fs::create_dir_all(host.parent().expect("a file has a directory"))
            .map_err(|error| refused(&error))?;
        fs::write(host, content).map_err(|error| refused(&error))
    }

    async fn read_tree(&self, _: SandboxFence, _: &str, _: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        Err(never())
    }

    async fn scan(&self, _: SandboxFence, _: u64) -> Result<Vec<ScanEntry>, Fault> {
        Err(never())
    }

    async fn fetch(&self, _: SandboxFence, _: &[Vec<u8>], _: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        Err(never())
    }

    async fn write_tree(
        &self,
        _: SandboxFence,
        _: &str,
        _: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        Err(never())
    }

    async fn write_skills(
        &self,
        _: SandboxFence,
        _: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        Err(never())
    }

    async fn egress_socket(&self, _: SandboxFence, _: &[u8]) -> Result<EgressSocket, Fault> {
        Err(Fault::Refused("this sandbox has no way out".to_owned()))
    }

    async fn destroy(&self, _: SandboxId) -> Result<(), Fault> {
        Ok(())
    }

    async fn erase(&self, _: OrgId, _: SessionId) -> Result<(), Fault> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Fault> {
        Ok(Vec::new())
    }
}
