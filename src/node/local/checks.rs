//! Sandbox requirements of a machine, checked one by one for `sojourn doctor`.
//!
//! `Local::new` has the same requirements and fails at the first that is not met.

use std::{fs, path::Path};

use rustix::process::geteuid;

use super::{
    Config, Layout, Local,
    cgroup::Cgroups,
    image,
    oci::maps_every_range,
    rootless::Users,
    runtime::{self, Runtime},
};

/// Programs that sandboxes need from the host's `/usr`.
const PROGRAMS: [&str; 3] = ["bash", "git", "python3"];

/// Result of one check: a description of what was found, or the problem and its fix.
#[derive(Debug)]
pub struct Check {
    pub what: &'static str,
    pub found: Result<String, String>,
}

/// Runs every check. The last one creates the provider, which also creates the files that all sandboxes
/// share, as the start of a worker does.
pub fn checks(config: &Config) -> Vec<Check> {
    if let Some(docker) = &config.docker {
        let said = format!("created by the Docker daemon at {}", docker.socket.display());
        return vec![
            Check { what: "root files", found: programs(Path::new("/usr/bin")) },
            Check { what: "images", found: images(&config.images) },
            Check { what: "image debian", found: debian(&config.images) },
            Check { what: "sandboxes", found: all(config).map(|_| said) },
        ];
    }
    let layout = Layout::new(config.data_dir.clone(), config.run_dir.clone());
    let runtime = Runtime::find(&config.runtime, layout.runtime_state())
        .map(|_| format!("{} can be run", config.runtime))
        .map_err(|fault| format!("{fault}; run scripts/setup, or set SOJOURN_SANDBOX_RUNTIME"));
    let root_files = Check { what: "root files", found: programs(Path::new("/usr/bin")) };
    let sandboxes = Check { what: "sandboxes", found: all(config) };
    let said = |text: &str| Ok(text.to_owned());
    if !geteuid().is_root() {
        let without = "not root: sandboxes run as rootless containers (docs/sandboxes.md)";
        return vec![
            Check { what: "sandbox runtime", found: runtime },
            Check { what: "root", found: said(without) },
            Check { what: "user ids", found: subordinate_ids() },
            Check { what: "cgroups", found: Ok(delegated()) },
            root_files,
            Check { what: "images", found: said("only host: others need a service that runs as root") },
            sandboxes,
        ];
    }
    vec![
        Check { what: "sandbox runtime", found: runtime },
        Check { what: "root", found: said("containers can be created") },
        Check { what: "user ids", found: user_ids() },
        Check { what: "cgroups", found: cgroups() },
        root_files,
        Check { what: "images", found: images(&config.images) },
        Check { what: "image debian", found: debian(&config.images) },
        sandboxes,
    ]
}

fn cgroups() -> Result<String, String> {
    Cgroups::find()
        .map(|_| "cgroups for sandboxes can be created".to_owned())
        .map_err(|fault| format!("{fault}; a container needs a writable /sys/fs/cgroup"))
}

/// Limits of a service without root. Missing delegation is not an error, only reported.
fn delegated() -> String {
    match Cgroups::delegated() {
        Ok(_) => "delegated: cgroups for sandboxes can be created".to_owned(),
        Err(reason) => format!(
            "{reason}; CPU and memory of sandboxes are not limited, environments that set them are \
             refused: systemd-run --user --scope --property=Delegate=yes sojourn serve"
        ),
    }
}

fn subordinate_ids() -> Result<String, String> {
    Users::find()
        .map(|users| format!("{} has {} subordinate ids", users.name, users.count))
        .map_err(|fault| fault.to_string())
}

/// Images that the operator registered for environments.
fn images(config: &image::Config) -> Result<String, String> {
    let Some(directory) = &config.registered else {
        return Ok("none registered (SOJOURN_IMAGES)".to_owned());
    };
    let place = directory.display();
    let (images, others) = image::list_entries(directory)
        .map_err(|error| format!("{place}: {error}; create it, or set SOJOURN_IMAGES"))?;
    config.registry_auth_file.as_deref().map_or(Ok(()), image::check_registry_auth)?;
    match (images.as_slice(), others.as_slice()) {
        ([], []) => Ok(format!("{place} has none")),
        (images, []) => Ok(format!("{place} has {}", images.join(", "))),
        (_, others) => {
            Err(format!("{place} has unusable entries: {}; fix or remove them", others.join(", ")))
        }
    }
}

/// Check of the built-in Debian image.
fn debian(config: &image::Config) -> Result<String, String> {
    let mirror = config.apt_mirror.as_deref().unwrap_or("Debian's own mirrors");
    match runtime::find_program("mmdebstrap") {
        Some(_) => Ok(format!("built by mmdebstrap from {mirror}")),
        None => Err("mmdebstrap was not found: environments cannot use it; run scripts/setup".to_owned()),
    }
}

fn all(config: &Config) -> Result<String, String> {
    match Local::new(config.clone()) {
        Ok(_) => Ok("can be created on this machine".to_owned()),
        Err(fault) => Err(format!("{fault}; until this is fixed, turns that use tools fail")),
    }
}

fn user_ids() -> Result<String, String> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    match maps_every_range(&map) {
        true => Ok("each session has its own range".to_owned()),
        false => {
            Err("ids 1879048192 to 2147287039 are not mapped in this user namespace: start the worker in that of \
                      the host"
                .to_owned())
        }
    }
}

fn programs(place: &Path) -> Result<String, String> {
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(|program| !place.join(program).exists()).collect();
    match missing.as_slice() {
        [] => Ok(format!("{} has {}", place.display(), PROGRAMS.join(", "))),
        missing => Err(format!(
            "{} has no {}, which agents need; run scripts/setup",
            place.display(),
            missing.join(", ")
        )),
    }
}
