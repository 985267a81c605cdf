//! Boxes on this machine: OCI containers run by `runc`.
//!
//! Made by the composition root, called through [`Sandbox`]; calls the runtime's
//! command line and, for everything inside a box, its init. All state is in the
//! file system and in the kernel, so any process of the service on this machine,
//! now or after a restart, finds and ends the same boxes. What a box can write is
//! never opened here: its files come through init, its disk is removed unread.

mod bundle;
mod cgroup;
mod checks;
mod freezer;
mod layout;
mod rootfs;
mod runtime;
mod seccomp;

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::process::{geteuid, test_kill_process};
use tokio::{process::Command, sync::mpsc, time::timeout};

pub use checks::{Check, checks};

use self::{
    bundle::Ingredients,
    cgroup::Cgroups,
    freezer::Gate,
    layout::{Disk, IdRange, Layout, remove_dir},
    runtime::{Runtime, last_words},
};
use super::{
    Capabilities, Door, Exec, Exit, Fault, FilePart, Files, Found, Grip, OutputRange, Reach, Sandbox, Spec,
    Stats, client::Init,
};
use crate::{
    base::limit,
    domain::{SandboxId, SessionId, TenantId},
};

/// How the local provider is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the sessions' disks are.
    pub data_dir: PathBuf,
    /// Sockets, bundles and the runtime's state; each parent open to all users.
    pub run_dir: PathBuf,
    /// The runtime: a name to look up, or an absolute path.
    pub runtime: String,
    /// A box ends itself when nobody called it for this long; never when `None`.
    pub orphan_after: Option<Duration>,
}

impl Config {
    /// `runc`, and `/run/sojourn/<hash of the data directory>`.
    pub fn new(data_dir: &Path) -> Self {
        let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self {
            run_dir: Layout::default_run_dir(&data_dir),
            data_dir,
            runtime: "runc".to_owned(),
            orphan_after: None,
        }
    }
}

/// The provider of boxes on this machine.
#[derive(Clone, Debug)]
pub struct Local {
    layout: Layout,
    runtime: Runtime,
    cgroups: Cgroups,
    rootfs: PathBuf,
    orphan_after: Option<Duration>,
}

impl Local {
    /// Looks whether boxes can be made here and lays what all of them share.
    ///
    /// # Errors
    /// `Unavailable` with one line that says what is missing: the runtime, root,
    /// cgroups, user ids, a writable directory.
    pub fn new(config: Config) -> Result<Self, Fault> {
        let layout = Layout::new(config.data_dir, config.run_dir);
        let runtime = Runtime::find(&config.runtime, layout.runtime_state())?;
        if !geteuid().is_root() {
            return Err(Fault::Unavailable("the local sandbox needs root to make containers".to_owned()));
        }
        let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if !maps_every_range(&uid_map) {
            let text = "the user ids 1879048192 to 2147287039 do not exist in this user namespace";
            return Err(Fault::Unavailable(text.to_owned()));
        }
        let cgroups = Cgroups::find()?.detect_swap();
        layout.prepare().map_err(|error| unavailable("its directories cannot be made", &error))?;
        let rootfs = rootfs::build(layout.run_dir())
            .map_err(|error| unavailable("its root file system cannot be made", &error))?;
        Ok(Self { layout, runtime, cgroups, rootfs, orphan_after: config.orphan_after })
    }

    fn init(&self, sandbox: SandboxId) -> Init {
        Init::at(self.layout.control(sandbox))
    }

    /// The bundle, the container, its first answer. Leaves its remains to the caller.
    async fn assemble(&self, spec: &Spec, epoch: i64) -> Result<(), Fault> {
        let bundle = self.lay_out(spec)?;
        let pid = self.runtime.run(spec.sandbox, &bundle).await?;
        let init = self.init(spec.sandbox);
        let (mut pause, longest) = limit::SANDBOX_START_POLL;
        loop {
            match init.hello(epoch).await {
                Err(Fault::Gone) if test_kill_process(pid).is_ok() => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(longest);
                }
                Err(Fault::Gone) => {
                    return Err(Fault::Unavailable(format!("it ended at once: {}", last_words(&bundle))));
                }
                answered => return answered,
            }
        }
    }

    /// Everything on disk that the runtime needs. Returns the bundle's directory.
    fn lay_out(&self, spec: &Spec) -> Result<PathBuf, Fault> {
        let ids = IdRange::of(spec.session);
        let disk = self.layout.disk(spec.tenant, spec.session);
        let on_disk = || -> io::Result<PathBuf> {
            disk.note_box(spec.sandbox)?;
            remove_dir(&disk.output)?;
            disk.prepare(ids)?;
            self.layout.claim(spec.sandbox, spec.tenant, spec.session)?;
            self.cgroups.make(spec.sandbox)
        };
        let oom_counter = on_disk().map_err(|error| unavailable("its files cannot be made", &error))?;
        let bundle = self.layout.sandbox(spec.sandbox);
        let configuration = bundle::spec(&Ingredients {
            rootfs: &self.rootfs,
            disk: &disk,
            control_dir: &self.layout.control(spec.sandbox),
            egress_dir: &self.layout.egress(spec.sandbox),
            oom_counter: &oom_counter,
            cgroups_path: &Cgroups::path(spec.sandbox),
            limits_swap: self.cgroups.limits_swap,
            ids,
            limits: spec.limits,
            env: &spec.env,
            orphan_seconds: self.orphan_after.map(|after| after.as_secs().max(1)),
        });
        configuration
            .and_then(|configuration| configuration.save(bundle.join("config.json")))
            .map_err(|error| Fault::Unavailable(format!("its configuration cannot be written: {error}")))?;
        Ok(bundle)
    }

    /// Ends the box that was last made on a session's disk, if it is another one:
    /// two boxes never share a disk. A box that a higher epoch holds stays.
    async fn displace(&self, latest: SandboxId, epoch: i64) -> Result<(), Fault> {
        if !self.layout.sandbox(latest).exists() {
            return Ok(());
        }
        match self.attach(Grip { sandbox: latest, epoch }).await {
            Err(Fault::Stale) => Err(Fault::Stale),
            Ok(()) | Err(_) => self.destroy(latest).await,
        }
    }

    /// Makes the disk ready for the box: what another box than the session's last one
    /// left is removed.
    async fn ready(&self, disk: &Disk, spec: &Spec) -> Result<Files, Fault> {
        let mut writers = spec.previous.clone();
        writers.push(spec.sandbox);
        if disk.is_left_by(&writers) {
            return Ok(Files::Kept);
        }
        remove_disk(&disk.parts()).await?;
        if spec.restores {
            disk.begin_restore().map_err(|error| unavailable("its restore cannot be noted", &error))?;
        }
        Ok(Files::Fresh)
    }

    fn disk_of(&self, sandbox: SandboxId) -> Option<Disk> {
        self.layout.owner(sandbox).map(|(tenant, session)| self.layout.disk(tenant, session))
    }

    /// Lets a frozen box go on; one that cannot be frozen is not.
    async fn let_go(&self, sandbox: SandboxId) -> Result<(), Fault> {
        match self.cgroups.freezer(sandbox) {
            Some(freezer) if freezer.is_frozen() => freezer.set(false).await,
            Some(_) | None => Ok(()),
        }
    }
}

#[async_trait]
impl Sandbox for Local {
    fn capabilities(&self) -> Capabilities {
        Capabilities { reach: Reach::Node }
    }

    /// Dropping the future may leave remains; the next `create` with this id or
    /// `destroy` removes them.
    async fn create(&self, spec: &Spec, epoch: i64) -> Result<Files, Fault> {
        refuse_bad_names(&spec.env)?;
        let disk = self.layout.disk(spec.tenant, spec.session);
        disk.make_root().map_err(|error| unavailable("the session's disk cannot be made", &error))?;
        let _lock = lock(&disk.lock())?;
        match disk.latest_box() {
            Some(latest) if latest != spec.sandbox => self.displace(latest, epoch).await?,
            Some(_) | None => {}
        }
        if self.layout.sandbox(spec.sandbox).exists() {
            match self.attach(Grip { sandbox: spec.sandbox, epoch }).await {
                Ok(()) => return Ok(Files::Kept),
                Err(Fault::Stale) => return Err(Fault::Stale),
                // The remains of a crash, or a box that does not answer any more.
                Err(_) => self.destroy(spec.sandbox).await?,
            }
        }
        let files = self.ready(&disk, spec).await?;
        let fault = match timeout(limit::SANDBOX_START_TIMEOUT, self.assemble(spec, epoch)).await {
            Ok(Ok(())) => return Ok(files),
            // It is up and a later epoch has greeted it: it is that one's box now.
            Ok(Err(Fault::Stale)) => return Err(Fault::Stale),
            Ok(Err(fault)) => fault,
            Err(_) => Fault::Unavailable(format!("it did not start in {:?}", limit::SANDBOX_START_TIMEOUT)),
        };
        self.destroy(spec.sandbox).await?;
        Err(fault)
    }

    async fn attach(&self, grip: Grip) -> Result<(), Fault> {
        let _gate = Gate::pass(&self.layout.sandbox(grip.sandbox), grip.epoch).await?;
        if self.disk_of(grip.sandbox).is_some_and(|disk| disk.is_incomplete()) {
            return Err(Fault::Unavailable("its files were not restored to their end".to_owned()));
        }
        // The call waits at the door before the box goes on: init must not find that
        // it was alone for too long.
        let init = self.init(grip.sandbox);
        let (greeted, let_go) = tokio::join!(init.hello(grip.epoch), self.let_go(grip.sandbox));
        let_go.and(greeted)
    }

    async fn running(&self, grip: Grip) -> Result<u64, Fault> {
        self.init(grip.sandbox).running(grip.epoch).await
    }

    async fn freeze(&self, grip: Grip) -> Result<(), Fault> {
        let _gate = Gate::pass(&self.layout.sandbox(grip.sandbox), grip.epoch).await?;
        match self.cgroups.freezer(grip.sandbox) {
            Some(freezer) => freezer.set(true).await,
            None => Err(Fault::Refused("there is no cgroup here that can be frozen".to_owned())),
        }
    }

    async fn thaw(&self, grip: Grip) -> Result<(), Fault> {
        let _gate = Gate::pass(&self.layout.sandbox(grip.sandbox), grip.epoch).await?;
        self.let_go(grip.sandbox).await
    }

    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault> {
        match self.layout.sandbox(sandbox).exists() {
            true => Ok(self.cgroups.stats(sandbox)),
            false => Err(Fault::Gone),
        }
    }

    async fn pack(&self, grip: Grip, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.init(grip.sandbox).pack(grip.epoch, parts).await
    }

    async fn unpack(&self, grip: Grip, parts: mpsc::Receiver<Result<Bytes, Fault>>) -> Result<(), Fault> {
        self.init(grip.sandbox).unpack(grip.epoch, parts).await?;
        let disk = self.disk_of(grip.sandbox).ok_or(Fault::Gone)?;
        disk.end_restore().map_err(|error| unavailable("its restore cannot be noted", &error))
    }

    async fn start(&self, grip: Grip, exec: &Exec) -> Result<(), Fault> {
        refuse_bad_names(&exec.env)?;
        if exec.argv.iter().chain([&exec.cwd]).any(|text| text.contains('\0')) {
            return Err(Fault::Refused("a command holds no zero byte".to_owned()));
        }
        self.init(grip.sandbox).start(grip.epoch, exec).await
    }

    async fn wait(&self, grip: Grip, exec_id: &str) -> Result<Exit, Fault> {
        self.init(grip.sandbox).wait(exec_id).await
    }

    async fn output(&self, grip: Grip, exec_id: &str, range: OutputRange) -> Result<Vec<u8>, Fault> {
        self.init(grip.sandbox).output(exec_id, range).await
    }

    async fn kill(&self, grip: Grip, exec_id: &str) -> Result<(), Fault> {
        self.init(grip.sandbox).kill(grip.epoch, exec_id).await
    }

    async fn read_file(
        &self,
        grip: Grip,
        path: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<FilePart, Fault> {
        self.init(grip.sandbox).read_file(path, offset, bytes_max).await
    }

    async fn write_file(&self, grip: Grip, path: &str, content: &[u8]) -> Result<(), Fault> {
        self.init(grip.sandbox).write_file(grip.epoch, path, content).await
    }

    async fn read_tree(&self, grip: Grip, path: &str, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.init(grip.sandbox).read_tree(path, parts).await
    }

    async fn write_tree(
        &self,
        grip: Grip,
        path: &str,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.init(grip.sandbox).write_tree(grip.epoch, path, parts).await
    }

    async fn door(&self, grip: Grip) -> Result<Door, Fault> {
        self.attach(grip).await?;
        let Some((_, session)) = self.layout.owner(grip.sandbox) else { return Err(Fault::Gone) };
        let (private, shown) = (self.layout.sandbox(grip.sandbox), self.layout.egress(grip.sandbox));
        Door::open(private, shown, IdRange::of(session).first)
            .map_err(|error| unavailable("its way out cannot be opened", &error))
    }

    async fn destroy(&self, sandbox: SandboxId) -> Result<(), Fault> {
        let box_dir = self.layout.sandbox(sandbox);
        if !box_dir.exists() {
            return Ok(());
        }
        // Dead first: to end a live one itself the runtime takes 100 ms steps. And
        // whatever it says, the cgroup is the last word on the processes.
        self.cgroups.kill(sandbox);
        let deleted = self.runtime.delete(sandbox, &box_dir).await;
        self.cgroups.remove(sandbox).await?;
        if self.runtime.knows(sandbox) {
            deleted?;
            self.runtime
                .forget(sandbox)
                .map_err(|error| unavailable("its state cannot be removed", &error))?;
        }
        let output = self.disk_of(sandbox).map(|disk| disk.output);
        let removed = off_the_reactor(move || {
            // The box's own directory goes last: while it is there, the box is listed.
            output.map_or(Ok(()), |output| remove_dir(&output))?;
            remove_dir(&box_dir)
        });
        removed.await.map_err(|error| unavailable("its files cannot be removed", &error))
    }

    async fn erase(&self, tenant: TenantId, session: SessionId) -> Result<(), Fault> {
        let disk = self.layout.disk(tenant, session);
        if !disk.root.exists() {
            return Ok(());
        }
        let _lock = lock(&disk.lock())?;
        if disk.latest_box().is_some_and(|latest| self.layout.sandbox(latest).exists()) {
            return Err(Fault::Refused("a sandbox is alive on this disk: destroy it first".to_owned()));
        }
        remove_disk(std::slice::from_ref(&disk.root)).await?;
        // The tenant's directory goes with the last session; another may be there.
        let _ = disk.root.parent().map(fs::remove_dir);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Fault> {
        let layout = self.layout.clone();
        let listed = off_the_reactor(move || layout.list()).await;
        listed.map_err(|error| unavailable("its directories cannot be read", &error))
    }
}

/// File work that may take longer than a few system calls.
async fn off_the_reactor<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Removes what a box wrote. The tree may be deeper than a recursion or the open
/// files of this process allow; `rm` is made for that and follows no link.
async fn remove_disk(parts: &[PathBuf]) -> Result<(), Fault> {
    let removal = Command::new("/bin/rm")
        .args(["-rf", "--one-file-system", "--"])
        .args(parts)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status();
    match timeout(limit::DISK_REMOVE_TIMEOUT, removal).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(_)) => Err(Fault::Unavailable("the session's disk cannot be removed".to_owned())),
        Ok(Err(error)) => Err(unavailable("the session's disk cannot be removed", &error)),
        Err(_) => Err(Fault::Unavailable("removing the session's disk takes too long".to_owned())),
    }
}

/// Who holds this makes or erases on the disk; another process of the service, or
/// a worker that lost the session and does not know it yet, does not.
fn lock(path: &Path) -> Result<File, Fault> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(|error| unavailable("the session's disk cannot be locked", &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Fault::Unavailable("a sandbox is being made on the same disk".to_owned()))
        }
        Err(TryLockError::Error(error)) => Err(unavailable("the session's disk cannot be locked", &error)),
    }
}

/// The kernel would take `A=B` as the name `A`.
fn refuse_bad_names(env: &[(String, String)]) -> Result<(), Fault> {
    let bad = |(name, value): &&(String, String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    match env.iter().find(bad) {
        Some((name, _)) => Err(Fault::Refused(format!("not a name or value of a variable: {name:?}"))),
        None => Ok(()),
    }
}

/// Whether a `uid_map` (first inside, first outside, count) has the boxes' ids.
fn maps_every_range(uid_map: &str) -> bool {
    uid_map.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u64>().unwrap_or(0));
        let (first, _, count) = (fields.next(), fields.next(), fields.next());
        match (first, count) {
            (Some(first), Some(count)) => {
                first <= u64::from(IdRange::FIRST) && u64::from(IdRange::END) <= first + count
            }
            _ => false,
        }
    })
}

fn unavailable(what: &str, error: &io::Error) -> Fault {
    Fault::Unavailable(format!("{what}: {error}"))
}
