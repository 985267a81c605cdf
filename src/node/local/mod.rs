//! Sandboxes on this machine: containers created by an OCI runtime or by Docker.
//!
//! Created by the composition root, called through [`Sandbox`]; calls an engine for the containers and, for
//! everything inside a sandbox, its init. All state is in the file system and in the kernel, so any process
//! of the service on this machine, also after a restart, finds and ends the same sandboxes. This module opens
//! no file that a sandbox can write: files are read through init, and a disk is removed without being read.

mod blocking;
mod bundle;
pub mod capacity;
mod cgroup;
mod checks;
mod config;
mod creation;
mod disk;
pub mod docker;
mod egress_socket;
mod engine;
mod freezer;
pub mod image;
mod layout;
mod loopback;
mod node;
mod oci;
mod removal;
mod rootfs;
mod rootless;
mod runtime;
mod seccomp;
mod texts;
mod user_namespace;
mod volume;
mod watcher;

use std::{
    fs,
    os::unix::fs::chown,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::process::geteuid;
use tokio::{sync::mpsc, time::timeout};
use uuid::Uuid;

pub use checks::{Check, checks};
pub use config::{Config, Disks, WatcherProgram};

use self::{
    blocking::{in_blocking_thread, unavailable},
    disk::{DISK_LOCKED, Disk},
    docker::Docker,
    engine::Engine,
    freezer::FreezeLock,
    image::LocalImages,
    layout::Layout,
    oci::Oci,
    rootfs::Base,
    rootless::{Rootless, Users},
    runtime::Runtime,
    texts::{refuse_bad_names, refuse_bad_text},
    volume::Volumes,
};
use crate::sandbox::{
    Capabilities, EgressSocket, Exec, Exit, Fault, FilePart, Files, Found, FreeSpace, OutputRange, Reach,
    Sandbox, SandboxFence, ScanEntry, Signal, Spec, Stats, client::Init, scan,
};
use crate::{
    base::limit,
    domain::{OrgId, SandboxId, SessionId, environment::NodeCapacity},
};

/// Provider of sandboxes on this machine.
#[derive(Clone, Debug)]
pub struct Local {
    layout: Layout,
    engine: Arc<dyn Engine>,
    /// Root file system of sandboxes on the image `host`.
    host: Base,
    images: LocalImages,
    /// `None` if init has to measure the size of disks periodically instead.
    volumes: Option<Volumes>,
    /// Disk of sandboxes and images.
    space: FreeSpace,
    node: Uuid,
    capacity: NodeCapacity,
    orphan_after: Option<Duration>,
    watcher: Option<WatcherProgram>,
}

impl Local {
    /// Checks the requirements and creates the files that all sandboxes share.
    ///
    /// # Errors
    /// `Unavailable` with a one-line reason: the runtime, user ids, cgroups, a writable directory.
    pub fn new(config: Config) -> Result<Self, Fault> {
        let space = FreeSpace { path: config.data_dir.clone(), kept_bytes: config.disk_kept_bytes };
        let layout = Layout::new(config.data_dir, config.run_dir);
        let prepare = || -> Result<Base, Fault> {
            layout.prepare().map_err(|error| unavailable("its directories cannot be created", &error))?;
            let skeletons = layout.skeletons();
            skeletons
                .and_then(|skeletons| rootfs::of_host(&skeletons))
                .map_err(|error| unavailable("its root file system cannot be created", &error))
        };
        let (engine, installer, host) = match config.docker {
            Some(_) if !geteuid().is_root() => {
                let text =
                    "the provider docker needs a service that runs as root: it changes owners of files";
                return Err(Fault::Unavailable(text.to_owned()));
            }
            Some(docker) => {
                let host = prepare()?;
                let engine = Arc::new(Docker::open(docker, host.rootfs.clone(), layout.run_dir())?);
                // The Docker daemon cannot create a container from a directory as its root, so packages need
                // an OCI runtime.
                let runtime = Runtime::find(&config.runtime, layout.runtime_state());
                let installer = runtime.and_then(|runtime| Oci::new(runtime, layout.clone()));
                let installer = installer.map(|oci| Arc::new(oci) as _);
                (engine as Arc<dyn Engine>, installer, host)
            }
            None => {
                let runtime = Runtime::find(&config.runtime, layout.runtime_state())?;
                let engine: Arc<dyn Engine> = match geteuid().is_root() {
                    true => Arc::new(Oci::new(runtime, layout.clone())?),
                    false => Arc::new(Rootless::new(runtime, Users::find()?, layout.clone())?),
                };
                (Arc::clone(&engine), Ok(engine), prepare()?)
            }
        };
        let volumes = match config.disks {
            Disks::Directories => None,
            Disks::Volumes => Volumes::find(layout.run_dir())
                .inspect_err(|reason| tracing::warn!(reason, "disk sizes are measured periodically"))
                .ok(),
        };
        let images = LocalImages::new(config.images, &layout, installer, volumes.clone())
            .map_err(|error| unavailable("its directories cannot be created", &error))?;
        let Config { orphan_after, watcher, node, capacity, .. } = config;
        Ok(Self { layout, engine, host, images, volumes, space, node, capacity, orphan_after, watcher })
    }

    fn init(&self, sandbox: SandboxId) -> Init {
        Init::at(self.layout.control(sandbox))
    }

    /// Sends the list of a session's files as it comes from init: the worker checks it.
    pub(crate) async fn scan_parts(
        &self,
        fence: SandboxFence,
        entries_max: u64,
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        self.init(fence.sandbox).scan(entries_max, parts).await
    }

    fn disk_of(&self, sandbox: SandboxId) -> Option<Disk> {
        self.layout.owner(sandbox).map(|(org, session)| self.layout.disk(org, session))
    }
}

#[async_trait]
impl Sandbox for Local {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reach: Reach::Node,
            enforces_size: self.engine.enforces_size(),
            has_own_kernel: self.engine.is_gvisor(),
        }
    }

    /// Dropping the future may leave remains; the next `create` with this id or `destroy` removes them.
    async fn create(&self, spec: &Spec, epoch: i64) -> Result<Files, Fault> {
        refuse_bad_names(&spec.env)?;
        let disk = self.layout.disk(spec.org, spec.session);
        let held = Arc::new(disk.lock().await?);
        match disk.latest_sandbox() {
            Some(latest) if latest != spec.sandbox => self.end_previous(latest, spec, epoch).await?,
            Some(_) | None => {}
        }
        if self.layout.sandbox(spec.sandbox).exists() {
            match self.attach(spec.fence(epoch)).await {
                Ok(()) => return Ok(Files::Kept),
                Err(Fault::Stale) => return Err(Fault::Stale),
                // Remains of a crash, or a sandbox that no longer answers.
                Err(_) => self.destroy(spec.sandbox).await?,
            }
        }
        let began = Instant::now();
        let files = self.ready(&disk, &held, spec).await?;
        tracing::debug!(sandbox.id = %spec.sandbox, disk_ms = millis(began), "sandbox disk prepared");
        let fault = match timeout(limit::SANDBOX_START_TIMEOUT, self.assemble(spec, epoch)).await {
            Ok(Ok(())) => return Ok(files),
            // It runs and a higher epoch has attached: that worker owns the sandbox now.
            Ok(Err(Fault::Stale)) => return Err(Fault::Stale),
            Ok(Err(fault)) => fault,
            Err(_) => Fault::Unavailable(format!("it did not start in {:?}", limit::SANDBOX_START_TIMEOUT)),
        };
        // A worker that was slow or suspended must not end a sandbox of a higher epoch. While this gate is
        // held, no epoch can attach.
        let gate = FreezeLock::pass(&self.layout.sandbox(spec.sandbox), epoch).await;
        if matches!(gate, Err(Fault::Stale)) {
            return Err(Fault::Stale);
        }
        self.destroy(spec.sandbox).await?;
        Err(fault)
    }

    async fn attach(&self, fence: SandboxFence) -> Result<(), Fault> {
        let _gate = FreezeLock::pass(&self.layout.sandbox(fence.sandbox), fence.epoch).await?;
        if self.disk_of(fence.sandbox).is_some_and(|disk| disk.is_incomplete()) {
            return Err(Fault::Unavailable("the restore of its files did not finish".to_owned()));
        }
        // Send the call before thawing, so that it waits in the socket: otherwise init might find that the
        // orphan timeout has passed and end itself.
        let init = self.init(fence.sandbox);
        let let_go = self.engine.freeze(fence.sandbox, false);
        let (greeted, let_go) = tokio::join!(init.hello(fence.epoch), let_go);
        let_go.and(greeted)
    }

    async fn running(&self, fence: SandboxFence) -> Result<u64, Fault> {
        self.init(fence.sandbox).running(fence.epoch).await
    }

    async fn freeze(&self, fence: SandboxFence) -> Result<(), Fault> {
        let _gate = FreezeLock::pass(&self.layout.sandbox(fence.sandbox), fence.epoch).await?;
        self.engine.freeze(fence.sandbox, true).await
    }

    async fn touch(&self, sandbox: SandboxId) -> Result<(), Fault> {
        self.init(sandbox).touch().await
    }

    async fn keep_alive(&self) -> Result<(), Fault> {
        self.record_heartbeat().await
    }

    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault> {
        match self.layout.sandbox(sandbox).exists() {
            true => self.engine.stats(sandbox).await,
            false => Err(Fault::Gone),
        }
    }

    async fn quiesce(&self, fence: SandboxFence) -> Result<(), Fault> {
        self.init(fence.sandbox).quiesce(fence.epoch).await
    }

    async fn pack(&self, fence: SandboxFence, parts: mpsc::Sender<Bytes>) -> Result<(), Fault> {
        self.init(fence.sandbox).pack(fence.epoch, parts).await
    }

    async fn unpack(
        &self,
        fence: SandboxFence,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.init(fence.sandbox).unpack(fence.epoch, parts).await?;
        let disk = self.disk_of(fence.sandbox).ok_or(Fault::Gone)?;
        disk.end_restore().map_err(|error| unavailable("its restore cannot be recorded", &error))
    }

    async fn start(&self, fence: SandboxFence, exec: &Exec) -> Result<(), Fault> {
        refuse_bad_text(exec)?;
        self.init(fence.sandbox).start(fence.epoch, exec).await
    }

    async fn wait(&self, fence: SandboxFence, exec_id: &str) -> Result<Exit, Fault> {
        self.init(fence.sandbox).wait(exec_id).await
    }

    async fn output(&self, fence: SandboxFence, exec_id: &str, range: OutputRange) -> Result<Vec<u8>, Fault> {
        self.init(fence.sandbox).output(exec_id, range).await
    }

    async fn write_input(
        &self,
        fence: SandboxFence,
        exec_id: &str,
        offset: u64,
        text: &str,
    ) -> Result<(), Fault> {
        self.init(fence.sandbox).write_input(fence.epoch, exec_id, offset, text).await
    }

    async fn read_input(
        &self,
        fence: SandboxFence,
        exec_id: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<u8>, Fault> {
        self.init(fence.sandbox).read_input(exec_id, offset, bytes_max).await
    }

    async fn kill(&self, fence: SandboxFence, exec_id: &str) -> Result<(), Fault> {
        self.init(fence.sandbox).kill(fence.epoch, exec_id).await
    }

    async fn signal(&self, fence: SandboxFence, exec_id: &str, signal: Signal) -> Result<(), Fault> {
        self.init(fence.sandbox).signal(fence.epoch, exec_id, signal).await
    }

    async fn read_file(
        &self,
        fence: SandboxFence,
        path: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<FilePart, Fault> {
        self.init(fence.sandbox).read_file(path, offset, bytes_max).await
    }

    async fn write_file(&self, fence: SandboxFence, path: &str, content: &[u8]) -> Result<(), Fault> {
        self.init(fence.sandbox).write_file(fence.epoch, path, content).await
    }

    async fn read_tree(
        &self,
        fence: SandboxFence,
        path: &str,
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        self.init(fence.sandbox).read_tree(path, parts).await
    }

    async fn scan(&self, fence: SandboxFence, entries_max: u64) -> Result<Vec<ScanEntry>, Fault> {
        scan::collect(entries_max, |parts| self.scan_parts(fence, entries_max, parts)).await
    }

    async fn fetch(
        &self,
        fence: SandboxFence,
        paths: &[Vec<u8>],
        parts: mpsc::Sender<Bytes>,
    ) -> Result<(), Fault> {
        self.init(fence.sandbox).fetch(paths, parts).await
    }

    async fn write_tree(
        &self,
        fence: SandboxFence,
        path: &str,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.init(fence.sandbox).write_tree(fence.epoch, path, parts).await
    }

    async fn write_skills(
        &self,
        fence: SandboxFence,
        parts: mpsc::Receiver<Result<Bytes, Fault>>,
    ) -> Result<(), Fault> {
        self.init(fence.sandbox).write_skills(fence.epoch, parts).await
    }

    async fn egress_socket(&self, fence: SandboxFence, certificates: &[u8]) -> Result<EgressSocket, Fault> {
        self.attach(fence).await?;
        let Some((_, session)) = self.layout.owner(fence.sandbox) else { return Err(Fault::Gone) };
        let owner = self.engine.ids(session).first;
        let give = async |socket: &Path| match self.engine.users() {
            Some(users) => users.give(socket, owner).await,
            None => chown(socket, Some(owner), Some(owner))
                .map_err(|error| unavailable("its egress socket cannot be opened", &error)),
        };
        egress_socket::open(&self.layout.egress(fence.sandbox), certificates, give).await
    }

    async fn destroy(&self, sandbox: SandboxId) -> Result<(), Fault> {
        let sandbox_dir = self.layout.sandbox(sandbox);
        self.engine.remove(sandbox, &sandbox_dir).await?;
        if !sandbox_dir.exists() {
            return Ok(());
        }
        let output = self.disk_of(sandbox).map(|disk| disk.output);
        // The sandbox's own directory is removed last: while it exists, the sandbox is listed.
        removal::directories(self.engine.users(), output.into_iter().chain([sandbox_dir]).collect()).await
    }

    async fn erase(&self, org: OrgId, session: SessionId) -> Result<(), Fault> {
        let disk = self.layout.disk(org, session);
        if !disk.root.exists() {
            return Ok(());
        }
        let held = disk.try_lock_disk().map_err(|error| unavailable("its disk cannot be locked", &error))?;
        let Some(_held) = held else { return Err(Fault::Unavailable(DISK_LOCKED.to_owned())) };
        if disk.latest_sandbox().is_some_and(|latest| self.layout.sandbox(latest).exists()) {
            return Err(Fault::Refused("a sandbox uses this disk: destroy it first".to_owned()));
        }
        volume::close(&disk).await?;
        removal::disk(self.engine.users(), &[self.layout.unclaimed(session), disk.root.clone()]).await?;
        // Removes the organization's directory if this was its last session.
        let _ = disk.root.parent().map(fs::remove_dir);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Fault> {
        let layout = self.layout.clone();
        let listed = in_blocking_thread(move || layout.list()).await;
        let mut listed = listed.map_err(|error| unavailable("its directories cannot be read", &error))?;
        for found in self.engine.list().await? {
            if !listed.iter().any(|known| known.sandbox == found.sandbox) {
                listed.push(found);
            }
        }
        Ok(listed)
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
