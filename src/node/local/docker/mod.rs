//! Containers created by a Docker daemon on this machine.
//!
//! Called by `local` as an engine. A container is named by its sandbox's id and labeled with its owner. Its
//! permissions are the same as with an OCI runtime: the same configuration, translated for the daemon
//! (`body`). Files, init's socket and the egress socket are shared as directories, so the daemon must see the
//! file system of the service.

mod body;
mod image;
mod terminals;

use std::{
    fmt,
    future::Future,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bollard::{
    API_DEFAULT_VERSION,
    errors::Error,
    query_parameters::{
        CreateContainerOptions, ListContainersOptions, LogsOptions, RemoveContainerOptions, StatsOptions,
    },
};
use futures::StreamExt;
use tokio::{runtime, time::timeout};

use super::{
    blocking::in_blocking_thread,
    bundle::{self, ContainerSpec},
    engine::Engine,
    layout::IdRange,
};
use crate::{
    base::{
        limit::{INIT_MESSAGE_BYTES_MAX, RUNTIME_COMMAND_TIMEOUT, SANDBOX_END_TIMEOUT, SANDBOX_START_POLL},
        text,
    },
    domain::{SandboxId, SessionId},
    sandbox::{Fault, Found, Stats},
};

/// Container labels: the provider that created it, and its owner.
const MAKER: &str = "sojourn.run_dir";
const ORG: &str = "sojourn.org";
const SESSION: &str = "sojourn.session";
/// Time limit for importing a root file system into the daemon.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(120);

/// Configuration of the Docker engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the daemon's socket.
    pub socket: PathBuf,
    /// Image of the sandboxes, which the daemon must have; `None` uses `/usr` of this machine.
    pub image: Option<String>,
}

/// A connection to a Docker daemon.
pub struct Docker {
    client: bollard::Docker,
    image: String,
    /// Whether the image has its own programs.
    has_usr: bool,
    /// Host ids of the containers' users.
    ids: IdRange,
    run_dir: String,
}

impl fmt::Debug for Docker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Docker").field("image", &self.image).finish_non_exhaustive()
    }
}

impl Docker {
    /// Connects to the daemon. Imports this machine's root file system if no image is configured. Blocks.
    ///
    /// # Errors
    /// `Unavailable` with a one-line reason.
    #[expect(clippy::disallowed_methods, reason = "joined at once")]
    pub fn open(config: Config, rootfs: PathBuf, run_dir: &Path) -> Result<Self, Fault> {
        let run_dir = run_dir.to_string_lossy().into_owned();
        // The caller may be a task of a runtime, in which `block_on` panics.
        let opening = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Fault::Unavailable(error.to_string()))?;
            runtime.block_on(Self::connect(config, &rootfs, run_dir))
        });
        opening
            .join()
            .unwrap_or_else(|_| Err(Fault::Unavailable("asking the Docker daemon panicked".to_owned())))
    }

    async fn connect(config: Config, rootfs: &Path, run_dir: String) -> Result<Self, Fault> {
        let socket = config.socket.to_string_lossy();
        let absent = |error: Error| {
            Fault::Unavailable(format!(
                "no Docker daemon answers at {socket} (SOJOURN_DOCKER_SOCKET): {error}"
            ))
        };
        let seconds = IMPORT_TIMEOUT.as_secs();
        let client =
            bollard::Docker::connect_with_unix(&socket, seconds, API_DEFAULT_VERSION).map_err(absent)?;
        let client = within(RUNTIME_COMMAND_TIMEOUT, client.negotiate_version()).await?.map_err(absent)?;
        let info = within(RUNTIME_COMMAND_TIMEOUT, client.info()).await?.map_err(absent)?;
        let ids = remapped(info.docker_root_dir.as_deref(), info.security_options.as_deref());
        if ids.is_none() {
            tracing::warn!(
                "the Docker daemon runs containers without user namespaces (userns-remap): the root of a \
                 sandbox is the root of this machine"
            );
        }
        let (image, has_usr) = match config.image {
            Some(image) => {
                let known = within(RUNTIME_COMMAND_TIMEOUT, client.inspect_image(&image)).await?;
                known.map_err(|error| {
                    Fault::Unavailable(format!(
                        "the Docker daemon has no image {image} (SOJOURN_SANDBOX_IMAGE): {error}"
                    ))
                })?;
                (image, true)
            }
            None => (
                within(IMPORT_TIMEOUT, image::import(&client, rootfs))
                    .await?
                    .map_err(|error| docker_fault(&error))?,
                false,
            ),
        };
        Ok(Self { client, image, has_usr, ids: ids.unwrap_or(IdRange::HOST), run_dir })
    }

    /// Whether the container is paused; `None` if it does not exist.
    async fn is_paused(&self, name: &str) -> Result<Option<bool>, Fault> {
        match self.ask(self.client.inspect_container(name, None)).await {
            Ok(Ok(container)) => Ok(Some(container.state.and_then(|state| state.paused).unwrap_or(false))),
            Ok(Err(404)) => Ok(None),
            Ok(Err(code)) => Err(docker_fault(&format!("status {code}"))),
            Err(fault) => Err(fault),
        }
    }

    /// Runs a call; returns the response, or the status 304, 404 or 409 as the inner error.
    async fn ask<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<Result<T, u16>, Fault> {
        match within(RUNTIME_COMMAND_TIMEOUT, call).await? {
            Ok(answer) => Ok(Ok(answer)),
            Err(Error::DockerResponseServerError { status_code: code @ (304 | 404 | 409), .. }) => {
                Ok(Err(code))
            }
            Err(error) => Err(docker_fault(&error.to_string())),
        }
    }

    /// Limits the pseudo terminals of a container that has just started.
    async fn limit_terminals(&self, container: String) -> Result<(), Fault> {
        let found = within(RUNTIME_COMMAND_TIMEOUT, self.client.inspect_container(&container, None)).await?;
        // A container that has ended is reported by `ended`.
        let Some(pid) = found.ok().and_then(|found| found.state?.pid).filter(|pid| *pid > 0) else {
            return Ok(());
        };
        let first = self.ids.first;
        let limited = in_blocking_thread(move || terminals::limit_terminals(&container, pid, first)).await;
        limited.map(drop).map_err(|error| docker_fault(&format!("terminals cannot be limited: {error}")))
    }

    async fn last_message(&self, name: &str) -> String {
        let options =
            LogsOptions { stdout: true, stderr: true, tail: "1".to_owned(), ..LogsOptions::default() };
        let mut logs = Box::pin(self.client.logs(name, Some(options)));
        match timeout(RUNTIME_COMMAND_TIMEOUT, logs.next()).await {
            Ok(Some(Ok(line))) => text::truncate(line.to_string().trim(), INIT_MESSAGE_BYTES_MAX).to_owned(),
            Ok(Some(Err(_)) | None) | Err(_) => "it left no message".to_owned(),
        }
    }
}

#[async_trait]
impl Engine for Docker {
    /// All containers of a daemon have the same users. They are isolated because no sandbox sees another's
    /// files or processes.
    fn ids(&self, _: SessionId) -> IdRange {
        self.ids
    }

    async fn run(&self, sandbox: SandboxId, of: &ContainerSpec<'_>, _: &Path) -> Result<(), Fault> {
        let name = sandbox.to_string();
        let of_its_own = of.base.tree.is_some();
        // For an image of the service, the daemon's image is only its skeleton, which is small.
        let image = match of_its_own {
            true => within(IMPORT_TIMEOUT, image::import(&self.client, &of.base.rootfs))
                .await?
                .map_err(|error| docker_fault(&error))?,
            false => self.image.clone(),
        };
        let spec = bundle::spec(of, None).map_err(|error| docker_fault(&error.to_string()))?;
        let labels =
            [(MAKER, self.run_dir.clone()), (ORG, of.org.to_string()), (SESSION, of.session.to_string())];
        let settings = body::Settings {
            image: &image,
            skeleton: (self.has_usr && !of_its_own).then_some(of.base.rootfs.as_path()),
            // The limit counts per user of the host: without a user namespace all sandboxes would share it.
            counts_processes: self.ids.first > 0,
        };
        let body = body::of(&spec, &settings, labels).map_err(|error| docker_fault(&error))?;
        let options =
            CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
        let created =
            within(RUNTIME_COMMAND_TIMEOUT, self.client.create_container(Some(options), body)).await?;
        let created = created.map_err(|error| docker_fault(&error.to_string()))?;
        let started = within(RUNTIME_COMMAND_TIMEOUT, self.client.start_container(&name, None)).await?;
        started.map_err(|error| docker_fault(&error.to_string()))?;
        self.limit_terminals(created.id).await
    }

    async fn ended(&self, sandbox: SandboxId, _: &Path) -> Option<String> {
        let name = sandbox.to_string();
        match self.ask(self.client.inspect_container(&name, None)).await {
            Ok(Ok(container)) if container.state.as_ref().and_then(|state| state.running) != Some(true) => {
                Some(self.last_message(&name).await)
            }
            Ok(Err(404)) => Some("its container is gone".to_owned()),
            // If the daemon does not answer, the start timeout reports the failure.
            Ok(Ok(_) | Err(_)) | Err(_) => None,
        }
    }

    async fn freeze(&self, sandbox: SandboxId, freeze: bool) -> Result<(), Fault> {
        let name = sandbox.to_string();
        match self.is_paused(&name).await? {
            None if freeze => return Err(Fault::Gone),
            None => return Ok(()),
            Some(paused) if paused == freeze => return Ok(()),
            Some(_) => {}
        }
        let asked = match freeze {
            true => self.ask(self.client.pause_container(&name)).await?,
            false => self.ask(self.client.unpause_container(&name)).await?,
        };
        match asked {
            Ok(()) => Ok(()),
            Err(404) if freeze => Err(Fault::Gone),
            // The container ended meanwhile; the next call to its init returns `Gone`.
            Err(_) if !freeze => Ok(()),
            Err(code) => Err(docker_fault(&format!("it cannot be paused: status {code}"))),
        }
    }

    async fn stats(&self, sandbox: SandboxId) -> Result<Stats, Fault> {
        let name = sandbox.to_string();
        let options = StatsOptions { stream: false, one_shot: true };
        let mut answers = Box::pin(self.client.stats(&name, Some(options)));
        let answer = within(RUNTIME_COMMAND_TIMEOUT, answers.next()).await?;
        let Some(Ok(stats)) = answer else { return Err(Fault::Gone) };
        let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage);
        Ok(Stats {
            memory_bytes: stats.memory_stats.and_then(|memory| memory.usage).unwrap_or(0),
            processes: stats.pids_stats.and_then(|pids| pids.current).unwrap_or(0),
            cpu: Duration::from_nanos(cpu.unwrap_or(0)),
            is_frozen: self.is_paused(&name).await?.unwrap_or(false),
        })
    }

    async fn remove(&self, sandbox: SandboxId, _: &Path) -> Result<(), Fault> {
        let name = sandbox.to_string();
        let until = Instant::now() + SANDBOX_END_TIMEOUT;
        loop {
            let options = RemoveContainerOptions { force: true, v: true, link: false };
            match self.ask(self.client.remove_container(&name, Some(options))).await? {
                Err(404) => return Ok(()),
                // Ask again: 404 confirms the removal, also when another process is removing the container.
                Ok(()) | Err(_) if Instant::now() < until => tokio::time::sleep(SANDBOX_START_POLL.0).await,
                Ok(()) | Err(_) => return Err(docker_fault("the container did not end in time")),
            }
        }
    }

    async fn list(&self) -> Result<Vec<Found>, Fault> {
        let filters = [("label".to_owned(), vec![format!("{MAKER}={}", self.run_dir)])].into();
        let options =
            ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let listed = within(RUNTIME_COMMAND_TIMEOUT, self.client.list_containers(Some(options))).await?;
        let listed = listed.map_err(|error| docker_fault(&error.to_string()))?;
        let found = |container: bollard::models::ContainerSummary| {
            let labels = container.labels?;
            let names = container.names?;
            Some(Found {
                org: labels.get(ORG)?.parse().ok()?,
                session: labels.get(SESSION)?.parse().ok()?,
                sandbox: Some(names.first()?.trim_start_matches('/').parse().ok()?),
            })
        };
        Ok(listed.into_iter().filter_map(found).collect())
    }
}

/// First host id of a daemon with userns-remap: its data directory is named `<uid>.<gid>`.
fn remapped(root_dir: Option<&str>, security: Option<&[String]>) -> Option<IdRange> {
    security?.iter().find(|option| option.starts_with("name=userns"))?;
    let (uid, _) = root_dir?.rsplit('/').next()?.split_once('.')?;
    Some(IdRange { first: uid.parse().ok()? })
}

async fn within<T>(patience: Duration, call: impl Future<Output = T>) -> Result<T, Fault> {
    let late = |_| docker_fault(&format!("the daemon did not answer within {patience:?}"));
    timeout(patience, call).await.map_err(late)
}

fn docker_fault(words: &str) -> Fault {
    Fault::Unavailable(format!("docker: {}", text::truncate(words, INIT_MESSAGE_BYTES_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_id_of_a_daemon_that_maps_its_users_is_in_its_directory() {
        let security = vec!["name=seccomp,profile=default".to_owned(), "name=userns".to_owned()];
        let ids = remapped(Some("/var/lib/docker/165536.165536"), Some(&security));
        assert_eq!(ids, Some(IdRange { first: 165_536 }));
        assert_eq!(remapped(Some("/var/lib/docker"), Some(&security[..1])), None);
    }

    #[test]
    fn a_daemon_that_is_not_there_is_one_clear_line() {
        let config = Config { socket: "/nowhere/docker.sock".into(), image: None };
        let fault = Docker::open(config, PathBuf::new(), Path::new("/run")).unwrap_err().to_string();
        assert!(
            fault.contains("no Docker daemon answers at /nowhere/docker.sock (SOJOURN_DOCKER_SOCKET)"),
            "{fault}"
        );
    }
}
