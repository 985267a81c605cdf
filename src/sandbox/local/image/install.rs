//! Packages over an image: a copy of it, in which the installers of Debian, Python and npm
//! run as the root of a container, and of that what is left.
//!
//! Called by `image` for the worker, which joins the container to a proxy. Packages are
//! code that strangers wrote: the container has a user namespace, the limits and the filter
//! of a sandbox, no way out but the proxy, and a file system of a limited size. The copy is read
//! again only when the container is gone.

use std::{
    fs::{self, File},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use sojourn_init::protocol::{INSTALL_ENDED, INSTALL_OUTPUT, PROGRAM};
use tokio::{process::Command, time::timeout};

use super::{Config, Images, Unmade, last_line, unpack::Tree};
use crate::{
    base::limit::{
        ROOTFS_BYTES_MAX, ROOTFS_MEMORY_BYTES, ROOTFS_OUTPUT_BYTES_MAX, ROOTFS_PIDS, ROOTFS_TIMEOUT,
        SANDBOX_START_POLL,
    },
    domain::{
        OrgId, SandboxId, SessionId,
        rootfs::{Packages, RootFs},
    },
    sandbox::{
        EgressSocket, Fault, SandboxLimits,
        local::{
            bundle::{Ingredients, Role},
            disk::Disk,
            engine::Engine,
            layout::{IdRange, make_dir},
            off_the_reactor,
            rootfs::Base,
            runtime, unavailable,
        },
    },
};

/// Another number installs otherwise.
pub const FORMAT: &str = "1";
/// What runs in the container.
const SCRIPT: &str = include_str!("install.sh");
/// The places where the sources of packages are, when the operator names none.
const PIP_INDEX: &str = "https://pypi.org/simple";
const NPM_REGISTRY: &str = "https://registry.npmjs.org";

/// An installation that is prepared. While it exists, nobody else makes the same.
pub struct Install {
    images: Images,
    engine: Arc<dyn Engine>,
    name: String,
    disk: Disk,
    container: SandboxId,
    packages: Packages,
    version: String,
    _lock: File,
}

impl Images {
    /// Prepares the installation of packages over an image that is there; `None` when that
    /// was done meanwhile. `container` is an id that nobody has.
    pub async fn begin_install(
        &self,
        rootfs: &RootFs,
        container: SandboxId,
    ) -> Result<Option<Install>, Unmade> {
        let names = self.names(rootfs)?;
        let Some(name) = names.whole else { return Err(Unmade::Busy) };
        if self.tree(&name).is_dir() {
            return Ok(None);
        }
        let lock = self.lock(&name)?;
        if self.tree(&name).is_dir() {
            return Ok(None);
        }
        let Some(volumes) = &self.inner.volumes else {
            let text = "packages need loop devices, which this node has not: name an image that has them";
            return Err(Unmade::Failed(text.to_owned()));
        };
        let failed = |fault: Fault| Unmade::Failed(fault.to_string());
        let engine = self.inner.installer.clone().map_err(failed)?;
        self.clear(&name).await?;
        let image = self.tree(&names.image);
        let version = fs::read_to_string(image.join("version"))?;
        let (work, place) = (self.work(&name), self.place(&name));
        make_dir(&self.inner.layout.installs(), 0o711)?;
        make_dir(&work, 0o700)?;
        make_dir(&place, 0o711)?;
        make_dir(&place.join("egress"), 0o755)?;
        let install = Install {
            images: self.clone(),
            engine,
            disk: self.disk(&name),
            name,
            container,
            packages: rootfs.packages.clone(),
            version,
            _lock: lock,
        };
        volumes.make(&install.disk, ROOTFS_BYTES_MAX).await.map_err(failed)?;
        copy(&image.join("root"), &install.disk.files).await?;
        fs::write(place.join("container"), container.to_string())?;
        Ok(Some(install))
    }
}

impl Install {
    /// Where the container's connections arrive.
    pub async fn egress_socket(&self) -> Result<EgressSocket, Unmade> {
        let place = self.images.place(&self.name);
        let (egress, owner) = (place.join("egress"), self.ids().first);
        let give = async |socket: &Path| {
            chown(socket, Some(owner), Some(owner))
                .map_err(|error| unavailable("its way out cannot be opened", &error))
        };
        EgressSocket::open(place, egress, give).await.map_err(|fault| Unmade::Failed(fault.to_string()))
    }

    /// Runs it and keeps what comes of it. What is left when the future is dropped is
    /// removed by the next one, or by `tidy`.
    pub async fn run(self) -> Result<(), Unmade> {
        let ended = timeout(ROOTFS_TIMEOUT, self.install()).await;
        let ended = ended.unwrap_or_else(|_| {
            Err(Unmade::Failed(format!("it did not end within {} s", ROOTFS_TIMEOUT.as_secs())))
        });
        let kept = match ended {
            Ok(()) => self.keep().await,
            Err(unmade) => Err(unmade),
        };
        self.images.clear(&self.name).await?;
        kept
    }

    async fn install(&self) -> Result<(), Unmade> {
        let failed = |fault: Fault| Unmade::Failed(fault.to_string());
        let (engine, place) = (&self.engine, self.images.place(&self.name));
        let skeleton = super::rootfs::of_host(&self.images.inner.layout.skeletons()?)?;
        let program = skeleton.rootfs.join(PROGRAM.trim_start_matches('/'));
        let base = Base {
            rootfs: self.disk.files.clone(),
            binds: vec![(program, PathBuf::from(PROGRAM))],
            tree: None,
        };
        let command = ["bash", "-c", SCRIPT, "install"].map(str::to_owned);
        let env = self.env();
        let nobody = uuid::Uuid::nil();
        let ingredients = Ingredients {
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
        };
        engine.run(self.container, &ingredients, &place).await.map_err(failed)?;
        let log = place.join("init.log");
        while engine.ended(self.container, &place).await.is_none() {
            let said = fs::metadata(&log).map_or(0, |meta| meta.len());
            if said > ROOTFS_OUTPUT_BYTES_MAX {
                return Err(Unmade::Failed("the installers say too much".to_owned()));
            }
            tokio::time::sleep(SANDBOX_START_POLL.1.max(std::time::Duration::from_millis(100))).await;
        }
        judge(&runtime::tail(&log, 16 << 10))
    }

    /// What the script is told. All of it was checked to be names.
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

    /// Copies what is left out of the file system of a limited size, once nothing runs in it.
    async fn keep(&self) -> Result<(), Unmade> {
        let place = self.images.place(&self.name);
        let removed = self.engine.remove(self.container, &place).await;
        removed.map_err(|fault| Unmade::Failed(fault.to_string()))?;
        let root = self.images.work(&self.name).join("root");
        let (to, first_id) = (root.clone(), self.ids().first);
        off_the_reactor(move || Tree::make(&to, first_id).map(drop)).await?;
        copy(&self.disk.files, &root).await?;
        off_the_reactor(move || Tree::open_at(&root, first_id)?.finish()).await?;
        self.images.keep(&self.name, &self.version).await
    }

    fn ids(&self) -> IdRange {
        IdRange { first: self.images.first_id() }
    }
}

/// Copies a root file system with rights, owners and times, following nothing.
async fn copy(from: &Path, to: &Path) -> Result<(), Unmade> {
    let mut command = Command::new("cp");
    command.args(["-a", "--reflink=auto", "--"]).arg(from.join(".")).arg(to);
    command.env_clear().env("PATH", runtime::PATH).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.stderr(Stdio::piped()).kill_on_drop(true).output();
    match timeout(ROOTFS_TIMEOUT, output).await {
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(Unmade::Failed(format!("the image cannot be copied: {}", last_line(&said))))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Unmade::Failed("the image cannot be copied in time".to_owned())),
    }
}

/// How it ended, by init's own line, which no installer can print.
fn judge(log: &str) -> Result<(), Unmade> {
    let code = log.lines().rev().find_map(|line| line.strip_prefix(INSTALL_ENDED));
    let said = output_of(log);
    match code.map(str::trim) {
        Some("0") => Ok(()),
        Some("137") => Err(Unmade::Failed(format!("the installers were killed: {}", last_line(&said)))),
        Some(_) => Err(Unmade::Failed(last_line(&said).to_owned())),
        None => Err(Unmade::Failed(format!("the container ended at once: {}", last_line(log)))),
    }
}

/// What the installers printed, without the marks; lines without one are left as they are.
pub fn output_of(log: &str) -> String {
    let lines = log.lines().filter(|line| !line.is_empty() && !line.starts_with(INSTALL_ENDED));
    let lines: Vec<_> = lines.map(|line| line.strip_prefix(INSTALL_OUTPUT).unwrap_or(line)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_what_init_says_and_not_what_an_installer_prints() {
        assert_eq!(judge("| all is well\n\nended 0\n"), Ok(()));
        let failed = |log: &str| judge(log).unwrap_err().to_string();
        assert_eq!(failed("| ended 0\n| E: no such package\n\nended 100\n"), "E: no such package");
        assert!(failed("| ended 0\n").starts_with("the container ended at once"));
        assert!(failed("| ended 0\n\nended 137\n").starts_with("the installers were killed"));
        assert_eq!(output_of("I: made\n| one\n\n| two\nended 0\n"), "I: made\none\ntwo");
    }
}
