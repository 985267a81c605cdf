//! Sandbox provider of this process, from its settings.

use std::{path::Path, sync::Arc, time::Duration};

use url::Url;
use uuid::Uuid;

use crate::{
    config::{SandboxProvider, Settings},
    domain::{
        environment::NodeCapacity,
        rootfs::{HOST, RootFs},
    },
    http,
    lifecycle::Limits,
    node::local::{
        self, Check, Config, Local,
        capacity::Machine,
        docker,
        image::{self, offers},
    },
    sandbox::FreeSpace,
};

/// Creates the sandboxes of this machine. Blocks while it checks the requirements.
///
/// # Errors
/// One-line reason why sandboxes are not available.
pub(super) fn local(settings: &Settings, node: Uuid) -> Result<Local, String> {
    let machine = machine(settings)?;
    let config = Config {
        node,
        capacity: settings.capacity.node(machine),
        disk_kept_bytes: settings.capacity.node_disk_free,
        ..config(settings)?
    };
    Local::new(config).map_err(|fault| fault.to_string())
}

/// Waits until the service, the process `service_pid` on this machine, is gone, then removes its sandboxes.
pub async fn watch(settings: &Settings, service_pid: u32) -> anyhow::Result<()> {
    let local = Local::new(config(settings).map_err(anyhow::Error::msg)?);
    let ended = match local {
        Ok(local) => local.watch(service_pid).await,
        Err(fault) => Err(fault),
    };
    ended.map_err(|fault| anyhow::Error::msg(fault.to_string()))
}

/// Limits of admission.
pub(super) fn limits(settings: &Settings) -> Limits {
    let Settings { capacity, .. } = settings;
    Limits {
        organization: capacity.organization(),
        sandbox: capacity.sandbox(),
        wait: capacity.sandbox_wait_seconds,
        allows_shared_host: settings.allow_shared_host,
    }
}

/// The disk on which sandboxes, checkpoints and images are made.
pub(super) fn free_space(settings: &Settings) -> FreeSpace {
    FreeSpace { path: settings.database.data_dir.clone(), kept_bytes: settings.capacity.node_disk_free }
}

/// Image of environments that name none.
pub(super) fn default_image(settings: &Settings) -> String {
    let named = &settings.sandbox_image;
    // Any other name is an image of the Docker daemon, which replaces the machine's programs.
    if is_offered(settings, named) { named.clone() } else { HOST.to_owned() }
}

/// Images and packages that environments may use here.
pub(super) fn offer(settings: &Settings) -> http::Images {
    let (settings, default) = (settings.clone(), default_image(settings));
    let refuse = move |rootfs: &RootFs| {
        if !is_offered(&settings, &rootfs.image) {
            return Some(http::RootFsUnavailable::UnknownImage);
        }
        let words = "need an image that is not `host`, as in `debian`";
        (rootfs.is_host() && !rootfs.packages.is_empty()).then_some(http::RootFsUnavailable::Packages(words))
    };
    http::Images { default, refuse: Arc::new(refuse) }
}

fn is_offered(settings: &Settings, name: &str) -> bool {
    name == HOST || offers(settings.images.as_deref(), name)
}

/// Checks the requirements of sandboxes one by one. Blocks.
pub fn checks(settings: &Settings) -> Vec<Check> {
    match config(settings) {
        Ok(config) => {
            let mut checks = local::checks(&config);
            checks.push(Check { what: "capacity", found: capacity(settings) });
            checks
        }
        Err(problem) => vec![Check { what: "sandboxes", found: Err(problem) }],
    }
}

fn machine(settings: &Settings) -> Result<Machine, String> {
    let dir = &settings.database.data_dir;
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    Machine::of(there).map_err(|error| format!("{}: {error}", there.display()))
}

/// Memory and disk that the sandboxes of this machine may reserve together, each with what the machine has, in bytes.
pub struct Reservable {
    pub memory: (u64, u64),
    /// The machine's without the space that is kept free.
    pub disk: (u64, u64),
}

/// Reads what the sandboxes of this machine may reserve together.
pub fn reservable(settings: &Settings) -> Result<Reservable, String> {
    let machine = machine(settings)?;
    let node = settings.capacity.node(machine);
    Ok(Reservable {
        memory: (node.memory_bytes, machine.memory_bytes),
        disk: (node.disk_bytes, machine.disk_bytes.saturating_sub(settings.capacity.node_disk_free)),
    })
}

/// Resources of all sandboxes of this machine together, and of the machine.
fn capacity(settings: &Settings) -> Result<String, String> {
    let machine = machine(settings)?;
    let NodeCapacity { cpu_millis, memory_bytes, pids, disk_bytes } = settings.capacity.node(machine);
    let gib = |bytes: u64| bytes >> 30;
    Ok(format!(
        "sandboxes may have {} CPUs, {} GiB of memory, {pids} processes and {} GiB of disk together; the machine has {}, \
        {} GiB, {} and {} GiB",
        cpu_millis / 1_000,
        gib(memory_bytes),
        gib(disk_bytes),
        machine.cpus,
        gib(machine.memory_bytes),
        machine.pids,
        gib(machine.disk_bytes)
    ))
}

fn config(settings: &Settings) -> Result<Config, String> {
    let docker = match settings.sandbox_provider {
        SandboxProvider::Local if !is_offered(settings, &settings.sandbox_image) => {
            return Err(format!(
                "SOJOURN_SANDBOX_IMAGE names `{}`, which is neither host, debian nor in SOJOURN_IMAGES",
                settings.sandbox_image
            ));
        }
        SandboxProvider::Local => None,
        SandboxProvider::Docker => Some(docker::Config {
            socket: settings.docker_socket.clone(),
            image: Some(settings.sandbox_image.clone()).filter(|image| !is_offered(settings, image)),
        }),
    };
    let defaults = Config::new(&settings.database.data_dir);
    // Separate run directories, so that an engine does not treat another's sandboxes as its own.
    let run_dir =
        if docker.is_some() { defaults.run_dir.with_extension("docker") } else { defaults.run_dir.clone() };
    Ok(Config {
        docker,
        run_dir,
        runtime: settings.sandbox_runtime.clone(),
        images: image::Config {
            registered: settings.images.clone(),
            registry_auth_file: settings.registry_auth_file.clone(),
            apt_mirror: settings.apt_mirror.as_ref().map(address),
            pip_index: settings.pip_index.as_ref().map(address),
            npm_registry: settings.npm_registry.as_ref().map(address),
        },
        watcher: settings.watcher.clone(),
        orphan_after: Some(Duration::from_secs(settings.sandbox_orphan_seconds)),
        ..defaults
    })
}

/// URL in the form that installers expect.
fn address(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}
