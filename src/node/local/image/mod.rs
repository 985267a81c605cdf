//! Root file systems of images: created once on this node, shared read-only by its sandboxes.
//!
//! Created by `Local`. Called by `lifecycle`, which builds the images of environments, and by `Local` when it
//! creates a sandbox. Finished root file systems are in `trees`, named by their content and moved there by an
//! atomic rename. Unfinished ones are in `work`, under a file lock that is released when the process ends. A
//! tree never changes.

mod debian;
mod install;
mod reaper;
mod reference;
mod registry;
mod registry_auth;
mod source;
mod unpack;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
};

use sha2::{Digest, Sha256};

use self::{
    source::{Form, Layer, Packing, Registered},
    unpack::Tree,
};
use super::{
    engine::Engine,
    in_blocking_thread,
    layout::{IdRange, Layout, make_dir, remove_dir},
    rootfs::{self, Base},
    runtime, unavailable,
    volume::Volumes,
};
use crate::{
    base::text::hex,
    domain::rootfs::{DEBIAN, RootFs},
    sandbox::{BuildError, Fault},
};

pub(super) use registry_auth::check as check_registry_auth;
pub(super) use source::list_entries;

/// Version of the installation of packages (`install`). Change it when that changes.
const INSTALLATION: &str = "1";
/// File of a tree with packages: its size in bytes.
const SIZE: &str = "bytes";

/// Image configuration of the operator.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Directory of registered images.
    pub registered: Option<PathBuf>,
    /// File with the credentials for registries.
    pub registry_auth_file: Option<PathBuf>,
    /// Mirror of Debian packages; the next two are the indexes of Python and npm packages.
    pub apt_mirror: Option<String>,
    pub pip_index: Option<String>,
    pub npm_registry: Option<String>,
}

/// Builds and finds root file systems. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct LocalImages {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: Config,
    /// Directory of trees, work and locks.
    root: PathBuf,
    layout: Layout,
    /// Engine for the containers of installers, or the reason why it is unavailable.
    installer: Result<Arc<dyn Engine>, Fault>,
    volumes: Option<Volumes>,
    /// Skeletons created for trees, by tree name.
    laid: Mutex<BTreeMap<String, Base>>,
    /// Output of builds that have ended, by tree name, until it is recorded.
    logs: Mutex<BTreeMap<String, String>>,
}

/// Names of the trees of a root file system.
#[derive(Debug)]
struct Names {
    image: String,
    /// Tree with the packages; known once the image's tree exists.
    whole: Option<String>,
}

/// Whether an image of this name is built in or registered.
pub fn offers(registered: Option<&Path>, name: &str) -> bool {
    name == DEBIAN || registered.is_some_and(|directory| source::find(directory, name).is_some())
}

impl LocalImages {
    pub(super) fn new(
        config: Config,
        layout: &Layout,
        installer: Result<Arc<dyn Engine>, Fault>,
        volumes: Option<Volumes>,
    ) -> io::Result<Self> {
        let root = layout.images();
        for part in ["trees", "work", "locks"] {
            make_dir(&root.join(part), 0o700)?;
        }
        let (layout, laid, logs) = (layout.clone(), Mutex::default(), Mutex::default());
        Ok(Self { inner: Arc::new(Inner { config, root, layout, installer, volumes, laid, logs }) })
    }

    /// Whether sandboxes can be created on it now.
    pub(super) fn is_ready(&self, rootfs: &RootFs) -> bool {
        rootfs.is_host() || self.whole(rootfs).is_some()
    }

    /// Root of a sandbox on this root file system; `host` is the root for the image `host`.
    ///
    /// # Errors
    /// `Unavailable` while it does not exist.
    pub(super) fn base(&self, rootfs: &RootFs, host: &Base) -> Result<Base, Fault> {
        if rootfs.is_host() {
            return Ok(host.clone());
        }
        let Some(name) = self.whole(rootfs) else {
            return Err(Fault::Unavailable(format!("its image {} does not exist here", rootfs.image)));
        };
        self.base_of(name).map_err(|error| unavailable("its image cannot be used", &error))
    }

    fn base_of(&self, name: String) -> io::Result<Base> {
        // Rewriting the empty file updates its modification time.
        fs::write(self.tree(&name).join("used"), "")?;
        let laid = || self.inner.laid.lock().unwrap_or_else(PoisonError::into_inner);
        let known = laid().get(&name).filter(|base| base.rootfs.is_dir()).cloned();
        let base = match known {
            Some(base) => base,
            None => rootfs::of_image(&self.inner.layout.skeletons()?, &self.tree(&name).join("root"), &name)?,
        };
        laid().insert(name, base.clone());
        Ok(base)
    }

    /// Builds the image itself, without packages, unless it exists.
    pub(super) async fn make_image(&self, rootfs: &RootFs) -> Result<(), BuildError> {
        if self.inner.installer.as_ref().is_ok_and(|engine| engine.users().is_some()) {
            let text = "images need a service that runs as root: their files have ids that no sandbox uses";
            return Err(BuildError::Failed(text.to_owned()));
        }
        let name = self.names(rootfs)?.image;
        if self.tree(&name).is_dir() {
            return Ok(());
        }
        let _lock = self.lock(&name)?;
        if self.tree(&name).is_dir() {
            return Ok(());
        }
        self.clear(&name).await?;
        let work = self.work(&name);
        make_dir(&work, 0o700)?;
        let made = match self.fill(rootfs, &work).await {
            // The operator replaced it meanwhile: the next call builds the new one.
            Ok(_) if !self.names(rootfs).is_ok_and(|names| names.image == name) => Err(BuildError::Busy),
            Ok(version) => self.publish(&name, &version).await,
            Err(unmade) => Err(unmade),
        };
        self.keep_log(&name);
        self.clear(&name).await?;
        made
    }

    /// Unpacks an image into its work directory; returns its version.
    async fn fill(&self, rootfs: &RootFs, work: &Path) -> Result<String, BuildError> {
        let first_id = self.first_id();
        let (registered, version) = match rootfs.image == DEBIAN {
            true => (debian::make(self.inner.config.apt_mirror.as_deref(), work).await?, None),
            false => {
                let mut found = self.registered(&rootfs.image)?;
                let version = found.version.clone();
                if found.form == Form::Reference {
                    found =
                        registry::pull(&found, self.inner.config.registry_auth_file.as_deref(), work).await?;
                }
                (found, Some(version))
            }
        };
        let root = work.join("root");
        in_blocking_thread(move || {
            let mut tree = Tree::make(&root, first_id)?;
            if registered.form == Form::Directory {
                piped(&mut tree, tar_of(&registered.path))?;
            } else {
                for layer in source::layers(&registered)? {
                    unpacked(&mut tree, &layer)?;
                }
            }
            let version = match version {
                Some(version) => version,
                None => hex(&Sha256::digest(fs::read(root.join("var/lib/dpkg/status"))?)[..6]),
            };
            tree.finish()?;
            Ok(version)
        })
        .await
        .map_err(BuildError::from)
    }

    /// Moves the finished work directory to `trees`.
    async fn publish(&self, name: &str, version: &str) -> Result<(), BuildError> {
        let (work, tree, version) = (self.work(name), self.tree(name), version.to_owned());
        in_blocking_thread(move || {
            fs::write(work.join("version"), version)?;
            fs::write(work.join("used"), "")?;
            rustix::fs::syncfs(File::open(&work)?)?;
            for scratch in ["log", "image.tar", "tmp", "layout"] {
                let path = work.join(scratch);
                if path.is_dir() { remove_dir(&path)? } else { remove_file(&path)? }
            }
            fs::rename(work, tree)
        })
        .await
        .map_err(BuildError::from)
    }

    fn names(&self, rootfs: &RootFs) -> Result<Names, BuildError> {
        let image = match rootfs.image == DEBIAN {
            true => debian::name(),
            false => format!("{}-{}", rootfs.image, self.registered(&rootfs.image)?.version),
        };
        if rootfs.packages.is_empty() {
            return Ok(Names { whole: Some(image.clone()), image });
        }
        let version = fs::read_to_string(self.tree(&image).join("version")).ok();
        let whole = version.map(|version| {
            let packages = serde_json::to_string(&rootfs.packages).expect("strings serialize");
            let made_of = format!("{image}\n{version}\n{}\n{packages}", INSTALLATION);
            format!("{image}+{}", hex(&Sha256::digest(made_of.as_bytes())[..8]))
        });
        Ok(Names { image, whole })
    }

    /// Name of the tree with packages, if it exists.
    fn whole(&self, rootfs: &RootFs) -> Option<String> {
        self.names(rootfs).ok()?.whole.filter(|name| self.tree(name).is_dir())
    }

    fn registered(&self, name: &str) -> Result<Registered, BuildError> {
        let directory = self.inner.config.registered.as_deref();
        directory.and_then(|directory| source::find(directory, name)).ok_or_else(|| {
            BuildError::Failed(format!("there is no image `{name}` on this node (SOJOURN_IMAGES)"))
        })
    }

    /// Host id of the root user in every tree.
    fn first_id(&self) -> u32 {
        let is_gvisor = self.inner.installer.as_ref().is_ok_and(|engine| engine.is_gvisor());
        if is_gvisor { IdRange::HOST.first } else { IdRange::IMAGES.first }
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.inner.root.join("trees").join(name)
    }

    fn work(&self, name: &str) -> PathBuf {
        self.inner.root.join("work").join(name)
    }

    /// Directory of an installer's container.
    fn place(&self, name: &str) -> PathBuf {
        self.inner.layout.installs().join(name)
    }

    /// Locks the tree of that name for building. There are at most 256 lock files, because a file that was
    /// locked must never be removed.
    fn lock(&self, name: &str) -> Result<File, BuildError> {
        let file = hex(&Sha256::digest(name.as_bytes())[..1]);
        let path = self.inner.root.join("locks").join(file);
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(BuildError::Busy),
            Err(fs::TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Replaces the host names of mirrors, which are not shown to organizations.
    fn without_hosts(&self, text: &str) -> String {
        let Config { apt_mirror, pip_index, npm_registry, .. } = &self.inner.config;
        let named = [(apt_mirror, "apt-mirror"), (pip_index, "pip-index"), (npm_registry, "npm-registry")];
        let mut text = text.to_owned();
        for (url, word) in named {
            let host = url.as_deref().and_then(|url| url.split("://").nth(1)?.split('/').next());
            if let Some(host) = host.filter(|host| !host.is_empty()) {
                text = text.replace(host, word);
            }
        }
        text
    }
}

/// Command that writes a directory as a tar archive.
fn tar_of(path: &Path) -> std::process::Command {
    let mut tar = std::process::Command::new("tar");
    tar.arg("-C").arg(path).args(["--one-file-system", "-cf", "-", "."]);
    tar
}

fn unpacked(tree: &mut Tree, layer: &Layer) -> io::Result<()> {
    if let Some(digest) = &layer.digest {
        let (mut file, mut sha, mut chunk) = (File::open(&layer.path)?, Sha256::new(), vec![0; 64 << 10]);
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                length => sha.update(&chunk[..length]),
            }
        }
        if hex(&sha.finalize()) != *digest {
            return Err(io::Error::other(format!("the layer {digest} does not match its digest")));
        }
    }
    match layer.packing {
        Packing::None => tree.layer(io::BufReader::new(File::open(&layer.path)?)),
        Packing::Zstd => tree.layer(zstd::stream::read::Decoder::new(File::open(&layer.path)?)?),
        Packing::Gzip => {
            let mut gzip = std::process::Command::new("gzip");
            gzip.args(["-dc", "--"]).arg(&layer.path);
            piped(tree, gzip)
        }
    }
}

/// Unpacks the output of a program as a layer.
fn piped(tree: &mut Tree, mut program: std::process::Command) -> io::Result<()> {
    program.env_clear().env("PATH", runtime::PATH).stdin(Stdio::null());
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let unpacked = child.stdout.take().map_or(Ok(()), |output| tree.layer(io::BufReader::new(output)));
    if unpacked.is_err() {
        let _ = child.kill();
    }
    let ended = child.wait()?;
    unpacked?;
    if ended.success() { Ok(()) } else { Err(io::Error::other(format!("it cannot be read: {ended}"))) }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
