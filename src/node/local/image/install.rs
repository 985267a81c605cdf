//! Packages over an image: a copy of the image in which the installers of Debian, Python and npm run as the
//! root of a container, and which is stored as a new root file system.
//!
//! Called by `image` for `lifecycle`, which attaches the container to an egress proxy. Packages are untrusted
//! code: the container has a user namespace, the limits and the seccomp filter of a sandbox, no network but
//! the proxy, and a file system of limited size. The copy is read only after the container is gone.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, PoisonError},
};

use rustix::fs::statvfs;
use sojourn_init::protocol::{INSTALL_ENDED, INSTALL_OUTPUT, PROGRAM};
use tokio::{process::Command, time::timeout};

use super::{Config, LocalImages, SIZE, unpack::Tree};
use crate::{
    base::limit::{
        ROOTFS_BYTES_MAX, ROOTFS_LOG_BYTES_MAX, ROOTFS_MEMORY_BYTES, ROOTFS_OUTPUT_BYTES_MAX, ROOTFS_PIDS,
        ROOTFS_TIMEOUT, SANDBOX_START_POLL,
    },
    domain::{
        OrgId, SandboxId, SessionId,
        rootfs::{Packages, RootFs},
    },
    node::local::{
        bundle::{ContainerSpec, Role},
        disk::Disk,
        egress_socket,
        engine::Engine,
        in_blocking_thread,
        layout::{IdRange, make_dir},
        rootfs::Base,
        runtime, unavailable,
    },
    sandbox::{BuildError, EgressSocket, Fault, SandboxLimits},
};

/// Script that runs in the container.
const SCRIPT: &str = include_str!("install.sh");
/// Package indexes used when the operator configures none.
const PIP_INDEX: &str = "https://pypi.org/simple";
const NPM_REGISTRY: &str = "https://registry.npmjs.org";

/// Reason why an installation does not begin.
const FULL: &str = "the root file systems with packages of the organization take as much of the disk of this node \
    as they may, and sandboxes used them within the last hour: retry later, or use fewer of them";

/// A prepared installation. While it exists, no other process prepares the same.
pub(crate) struct Installation {
    images: LocalImages,
    engine: Arc<dyn Engine>,
    name: String,
    disk: Disk,
    container: SandboxId,
    packages: Packages,
    version: String,
    /// Maximum size of the result.
    bytes_max: Option<u64>,
    _lock: File,
}

impl LocalImages {
    /// Prepares the installation of packages over an image that exists. Returns `None` if another process has
    /// finished it meanwhile. `container` is a new, unique id. A result of more than `bytes_max` is removed.
    pub(crate) async fn begin_install(
        &self,
        rootfs: &RootFs,
        container: SandboxId,
        bytes_max: Option<u64>,
    ) -> Result<Option<Installation>, BuildError> {
        let names = self.names(rootfs)?;
        let Some(name) = names.whole else { return Err(BuildError::Busy) };
        if self.tree(&name).is_dir() {
            return Ok(None);
        }
        let lock = self.lock(&name)?;
        if self.tree(&name).is_dir() {
            return Ok(None);
        }
        // Only here: what another process builds, or has built, is refused to nobody.
        if bytes_max == Some(0) {
            return Err(BuildError::Failed(FULL.to_owned()));
        }
        let Some(volumes) = &self.inner.volumes else {
            let text = "packages need loop devices, which this node lacks: use an image that has them";
            return Err(BuildError::Failed(text.to_owned()));
        };
        let failed = |fault: Fault| BuildError::Failed(fault.to_string());
        let engine = self.inner.installer.clone().map_err(failed)?;
        self.clear(&name).await?;
        let image = self.tree(&names.image);
        let version = fs::read_to_string(image.join("version"))?;
        let (work, place) = (self.work(&name), self.place(&name));
        make_dir(&self.inner.layout.installs(), 0o711)?;
        make_dir(&work, 0o700)?;
        make_dir(&place, 0o711)?;
        make_dir(&place.join("egress"), 0o755)?;
        let install = Installation {
            images: self.clone(),
            engine,
            disk: self.disk(&name),
            name,
            container,
            packages: rootfs.packages.clone(),
            version,
            bytes_max,
            _lock: lock,
        };
        volumes.make(&install.disk, ROOTFS_BYTES_MAX, ()).await.map_err(failed)?;
        copy(&image.join("root"), &install.disk.files).await?;
        fs::write(place.join("container"), container.to_string())?;
        Ok(Some(install))
    }
}

impl Installation {
    /// Opens the socket on which the container's connections arrive.
    pub(crate) async fn egress_socket(&self, certificates: &[u8]) -> Result<EgressSocket, BuildError> {
        let (egress, owner) = (self.images.place(&self.name).join("egress"), self.ids().first);
        let give = async |socket: &Path| {
            chown(socket, Some(owner), Some(owner))
                .map_err(|error| unavailable("its egress socket cannot be opened", &error))
        };
        let opened = egress_socket::open(&egress, certificates, give).await;
        opened.map_err(|fault| BuildError::Failed(fault.to_string()))
    }

    /// Runs the installers and stores the result. If the future is dropped, the remains are removed by the
    /// next installation of the same packages, or by `reap`.
    pub(crate) async fn run(self) -> Result<(), BuildError> {
        let ended = timeout(ROOTFS_TIMEOUT, self.install()).await;
        let ended = ended.unwrap_or_else(|_| {
            Err(BuildError::Failed(format!(
                "the installation did not end within {} s",
                ROOTFS_TIMEOUT.as_secs()
            )))
        });
        let kept = match ended {
            Ok(()) => self.publish().await,
            Err(unmade) => Err(unmade),
        };
        self.images.keep_log(&self.name);
        self.images.clear(&self.name).await?;
        kept
    }

    async fn install(&self) -> Result<(), BuildError> {
        let failed = |fault: Fault| BuildError::Failed(fault.to_string());
        let (engine, place) = (&self.engine, self.images.place(&self.name));
        let skeleton = super::rootfs::of_host(&self.images.inner.layout.skeletons()?)?;
        let base = Base {
            rootfs: self.disk.files.clone(),
            binds: vec![(skeleton.init(), PathBuf::from(PROGRAM))],
            tree: None,
        };
        let command = ["bash", "-c", SCRIPT, "install"].map(str::to_owned);
        let env = self.env();
        let nobody = uuid::Uuid::nil();
        let ingredients = ContainerSpec {
            base: &base,
            disk: &self.disk,
            control_dir: &place,
            egress_dir: &place.join("egress"),
            org: OrgId::from_uuid(nobody),
            session: SessionId::from_uuid(nobody),
            ids: self.ids(),
            is_gvisor: engine.is_gvisor(),
            limits: SandboxLimits {
                memory_bytes: ROOTFS_MEMORY_BYTES,
                pids: ROOTFS_PIDS,
                disk_bytes: ROOTFS_BYTES_MAX,
                ..SandboxLimits::default()
            },
            env: &env,
            orphan_seconds: None,
            disk_bytes: None,
            role: Role::Install(&command),
            user_namespace: None,
        };
        engine.run(self.container, &ingredients, &place).await.map_err(failed)?;
        let log = place.join("init.log");
        while engine.ended(self.container, &place).await.is_none() {
            let said = fs::metadata(&log).map_or(0, |meta| meta.len());
            if said > ROOTFS_OUTPUT_BYTES_MAX {
                return Err(BuildError::Failed("the installers print too much output".to_owned()));
            }
            tokio::time::sleep(SANDBOX_START_POLL.1.max(std::time::Duration::from_millis(100))).await;
        }
        outcome_of(&runtime::tail(&log, 16 << 10))
    }

    /// Environment of the script. All package names were validated.
    fn env(&self) -> Vec<(String, String)> {
        let Config { apt_mirror, pip_index, npm_registry, .. } = &self.images.inner.config;
        let or = |url: &Option<String>, default: &str| url.clone().unwrap_or_else(|| default.to_owned());
        let Packages { apt, pip, npm } = &self.packages;
        [
            ("APT_PACKAGES", apt.join(" ")),
            ("PIP_PACKAGES", pip.join(" ")),
            ("NPM_PACKAGES", npm.join(" ")),
            ("APT_MIRROR", or(apt_mirror, "")),
            ("PIP_INDEX", or(pip_index, PIP_INDEX)),
            ("NPM_REGISTRY", or(npm_registry, NPM_REGISTRY)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Copies the result out of the size-limited file system, once the container is removed.
    async fn publish(&self) -> Result<(), BuildError> {
        let place = self.images.place(&self.name);
        let removed = self.engine.remove(self.container, &place).await;
        removed.map_err(|fault| BuildError::Failed(fault.to_string()))?;
        let bytes = self.size()?;
        if let Some(max) = self.bytes_max.filter(|max| bytes > *max) {
            let (mib, max) = (bytes.div_ceil(1 << 20), max >> 20);
            return Err(BuildError::Failed(format!(
                "it has {mib} MiB, and the root file systems with packages of the organization may take only {max} MiB \
                 more of the disk of this node: retry later, or use fewer packages"
            )));
        }
        let work = self.images.work(&self.name);
        let root = work.join("root");
        let (to, first_id) = (root.clone(), self.ids().first);
        in_blocking_thread(move || Tree::make(&to, first_id).map(drop)).await?;
        copy(&self.disk.files, &root).await?;
        in_blocking_thread(move || Tree::open_at(&root, first_id)?.finish()).await?;
        fs::write(work.join(SIZE), bytes.to_string())?;
        self.images.publish(&self.name, &self.version).await
    }

    /// Bytes of all files, as the size-limited file system has counted them.
    fn size(&self) -> io::Result<u64> {
        let disk = statvfs(&self.disk.files)?;
        Ok(disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize))
    }

    fn ids(&self) -> IdRange {
        IdRange { first: self.images.first_id() }
    }
}

/// Copies a root file system with modes, owners and times, without following links.
async fn copy(from: &Path, to: &Path) -> Result<(), BuildError> {
    let mut command = Command::new("cp");
    command.args(["-a", "--reflink=auto", "--"]).arg(from.join(".")).arg(to);
    command.env_clear().env("PATH", runtime::PATH).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.stderr(Stdio::piped()).kill_on_drop(true).output();
    match timeout(ROOTFS_TIMEOUT, output).await {
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(BuildError::Failed(format!("the image cannot be copied: {}", runtime::last_line(&said))))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(BuildError::Failed("the image cannot be copied in time".to_owned())),
    }
}

impl LocalImages {
    /// Latest output of the process that builds it.
    pub(crate) fn said(&self, rootfs: &RootFs) -> String {
        let Ok(names) = self.names(rootfs) else { return String::new() };
        self.read_log(&names.whole.unwrap_or(names.image))
    }

    fn read_log(&self, name: &str) -> String {
        let logs = [self.work(name).join("log"), self.place(name).join("init.log")];
        let said: Vec<_> = logs.iter().map(|path| runtime::tail(path, ROOTFS_LOG_BYTES_MAX as u64)).collect();
        self.without_hosts(&output_of(&said.concat()))
    }

    /// Keeps the output of a build that has ended, whose files are about to be removed.
    pub(super) fn keep_log(&self, name: &str) {
        let log = self.read_log(name);
        self.inner.logs.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), log);
    }

    /// Takes the output of a build that has ended: of the installation, else of the image.
    pub(crate) fn take_log(&self, rootfs: &RootFs) -> String {
        let Ok(names) = self.names(rootfs) else { return String::new() };
        let mut logs = self.inner.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let of_image = logs.remove(&names.image);
        names.whole.and_then(|whole| logs.remove(&whole)).or(of_image).unwrap_or_default()
    }
}

/// Result of the installation, from the line that init writes. No installer can print that line.
fn outcome_of(log: &str) -> Result<(), BuildError> {
    let code = log.lines().rev().find_map(|line| line.strip_prefix(INSTALL_ENDED));
    let said = output_of(log);
    match code.map(str::trim) {
        Some("0") => Ok(()),
        Some("137") => {
            Err(BuildError::Failed(format!("the installers were killed: {}", runtime::last_line(&said))))
        }
        Some(_) => Err(BuildError::Failed(runtime::last_line(&said).to_owned())),
        None => Err(BuildError::Failed(format!("the container ended at once: {}", runtime::last_line(log)))),
    }
}

/// Output of the installers without init's line prefix; lines without the prefix are unchanged.
fn output_of(log: &str) -> String {
    let lines = log.lines().filter(|line| !line.is_empty() && !line.starts_with(INSTALL_ENDED));
    let lines: Vec<_> = lines.map(|line| line.strip_prefix(INSTALL_OUTPUT).unwrap_or(line)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_read_from_init_and_not_from_installers() {
        assert_eq!(outcome_of("| all is well\n\nended 0\n"), Ok(()));
        let failed = |log: &str| outcome_of(log).unwrap_err().to_string();
        assert_eq!(failed("| ended 0\n| E: no such package\n\nended 100\n"), "E: no such package");
        assert!(failed("| ended 0\n").starts_with("the container ended at once"));
        assert!(failed("| ended 0\n\nended 137\n").starts_with("the installers were killed"));
        assert_eq!(output_of("I: made\n| one\n\n| two\nended 0\n"), "I: made\none\ntwo");
    }
}
