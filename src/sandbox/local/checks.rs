//! What a machine must have for boxes, looked at thing by thing, for `sojourn doctor`.
//!
//! `Local::new` asks for the same and stops at the first that is missing.

use std::{fs, path::Path};

use rustix::process::geteuid;

use super::{
    Config, Layout, Local, cgroup::Cgroups, oci::maps_every_range, rootless::Users, runtime::Runtime,
};

/// Programs of a box, below the `/usr` that it sees.
const PROGRAMS: [&str; 3] = ["bash", "git", "python3"];

/// One thing: what is there; or what is wrong, and what to do.
#[derive(Debug)]
pub struct Check {
    pub what: &'static str,
    pub found: Result<String, String>,
}

/// Looks at each, and at the end whether boxes can be made; that lays what all of them
/// share, as a worker's start does.
pub fn checks(config: &Config) -> Vec<Check> {
    if let Some(docker) = &config.docker {
        let said = format!("the Docker daemon at {} makes them", docker.socket.display());
        return vec![
            Check { what: "root files", found: programs(Path::new("/usr/bin")) },
            Check { what: "sandboxes", found: all(config).map(|_| said) },
        ];
    }
    let layout = Layout::new(config.data_dir.clone(), config.run_dir.clone());
    let runtime = Runtime::find(&config.runtime, layout.runtime_state())
        .map(|_| format!("{} can be run", config.runtime))
        .map_err(|fault| format!("{fault}; run scripts/setup, or set SOJOURN_SANDBOX_RUNTIME"));
    let (ids, cgroups) = match geteuid().is_root() {
        true => (user_ids(), cgroups()),
        false => (lent_ids(), Ok(delegated())),
    };
    let root = match geteuid().is_root() {
        true => "containers can be made",
        false => "it is not: containers are made without (docs/sandboxes.md)",
    };
    vec![
        Check { what: "sandbox runtime", found: runtime },
        Check { what: "root", found: Ok(root.to_owned()) },
        Check { what: "user ids", found: ids },
        Check { what: "cgroups", found: cgroups },
        Check { what: "root files", found: programs(Path::new("/usr/bin")) },
        Check { what: "sandboxes", found: all(config) },
    ]
}

fn cgroups() -> Result<String, String> {
    Cgroups::find()
        .map(|_| "groups for boxes can be made".to_owned())
        .map_err(|fault| format!("{fault}; a container needs a writable /sys/fs/cgroup"))
}

/// What a service without root is held to. It works without, and says so.
fn delegated() -> String {
    match Cgroups::delegated() {
        Ok(_) => "one is delegated: groups for boxes can be made".to_owned(),
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
