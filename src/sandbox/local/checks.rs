//! What a machine must have for sandboxes, looked at thing by thing, for `sojourn doctor`.
//!
//! `Local::new` asks for the same and stops at the first that is missing.

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

/// Programs of a sandbox, below the `/usr` that it sees.
const PROGRAMS: [&str; 3] = ["bash", "git", "python3"];

/// One thing: what is there; or what is wrong, and what to do.
#[derive(Debug)]
pub struct Check {
    pub what: &'static str,
    pub found: Result<String, String>,
}

/// Looks at each, and at the end whether sandboxes can be made; that lays what all of them
/// share, as a worker's start does.
pub fn checks(config: &Config) -> Vec<Check> {
    if let Some(docker) = &config.docker {
        let said = format!("the Docker daemon at {} makes them", docker.socket.display());
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
        let without = "it is not: containers are made without (docs/sandboxes.md)";
        return vec![
            Check { what: "sandbox runtime", found: runtime },
            Check { what: "root", found: said(without) },
            Check { what: "user ids", found: lent_ids() },
            Check { what: "cgroups", found: Ok(delegated()) },
            root_files,
            Check { what: "images", found: said("none but host: others need a service that is root") },
            sandboxes,
        ];
    }
    vec![
        Check { what: "sandbox runtime", found: runtime },
        Check { what: "root", found: said("containers can be made") },
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
        .map(|_| "groups for sandboxes can be made".to_owned())
        .map_err(|fault| format!("{fault}; a container needs a writable /sys/fs/cgroup"))
}

/// What a service without root is held to. It works without, and says so.
fn delegated() -> String {
    match Cgroups::delegated() {
        Ok(_) => "one is delegated: groups for sandboxes can be made".to_owned(),
        Err(reason) => format!(
            "{reason}; processors and memory of sandboxes are not limited, environments that name them are \
             refused: systemd-run --user --scope --property=Delegate=yes sojourn serve"
        ),
    }
}

fn lent_ids() -> Result<String, String> {
    Users::find()
        .map(|users| format!("{} has {} subordinate ids", users.name, users.count))
        .map_err(|fault| fault.to_string())
}

/// What the operator registered, for environments to name.
fn images(config: &image::Config) -> Result<String, String> {
    let Some(directory) = &config.registered else {
        return Ok("none are registered (SOJOURN_IMAGES)".to_owned());
    };
    let place = directory.display();
    let (images, others) = image::survey(directory)
        .map_err(|error| format!("{place}: {error}; make it, or set SOJOURN_IMAGES"))?;
    match (images.as_slice(), others.as_slice()) {
        ([], []) => Ok(format!("{place} has none")),
        (images, []) => Ok(format!("{place} has {}", images.join(", "))),
        (_, others) => {
            Err(format!("{place} has what nobody can name: {}; fix it, or take it away", others.join(", ")))
        }
    }
}

/// What makes the image that the service has by itself.
fn debian(config: &image::Config) -> Result<String, String> {
    let mirror = config.apt_mirror.as_deref().unwrap_or("Debian's own mirrors");
    match runtime::find_program("mmdebstrap") {
        Some(_) => Ok(format!("mmdebstrap makes it, from {mirror}")),
        None => Err("mmdebstrap was not found: environments cannot have it; run scripts/setup".to_owned()),
    }
}

fn all(config: &Config) -> Result<String, String> {
    match Local::new(config.clone()) {
        Ok(_) => Ok("can be made here".to_owned()),
        Err(fault) => Err(format!("{fault}; until then turns that use tools fail")),
    }
}

fn user_ids() -> Result<String, String> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    match maps_every_range(&map) {
        true => Ok("each session has its own".to_owned()),
        false => {
            Err("1879048192 to 2147287039 do not exist in this user namespace: start the worker in that of \
                      the machine"
                .to_owned())
        }
    }
}

fn programs(place: &Path) -> Result<String, String> {
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(|program| !place.join(program).exists()).collect();
    match missing.as_slice() {
        [] => Ok(format!("{} has {}", place.display(), PROGRAMS.join(", "))),
        missing => Err(format!(
            "{} has no {}: agents miss them; run scripts/setup",
            place.display(),
            missing.join(", ")
        )),
    }
}
