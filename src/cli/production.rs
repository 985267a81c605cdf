//! The checklist of `sojourn doctor --production`: settings that a deployment for strangers needs.
//!
//! Called by `doctor`. Each line is a row of the table in docs/operations.md, which a test compares.

use std::net::IpAddr;

use rustix::process::geteuid;
use url::Url;

use crate::{
    app,
    config::{Database, Role, Settings},
};

/// A line of the checklist: its name and what is wrong, if anything is.
pub(super) struct Line {
    pub what: &'static str,
    pub found: Result<String, String>,
}

/// Names of all lines, in their order.
pub(super) const LINES: [&str; 14] = [
    "own database",
    "database roles",
    "owner's URL",
    "master key",
    "user",
    "kernel",
    "private addresses",
    "local sources",
    "metrics address",
    "memory overcommit",
    "disk overcommit",
    "organizations' maxima",
    "scripted models",
    "first key",
];

/// Checks the settings of one process.
pub(super) async fn checks(settings: &Settings) -> Vec<Line> {
    let found = [
        own_database(settings),
        database_roles(settings),
        owners_url(settings),
        master_key(settings),
        user(settings).await,
        kernel(settings),
        private_addresses(settings),
        local_sources(settings),
        metrics_address(settings),
        memory_overcommit(settings),
        disk_overcommit(settings),
        maxima(settings),
        scripted_models(settings),
        first_key(settings),
    ];
    LINES.into_iter().zip(found).map(|(what, found)| Line { what, found }).collect()
}

fn verdict(is_well: bool, well: &str, fix: &str) -> Result<String, String> {
    if is_well { Ok(well.to_owned()) } else { Err(fix.to_owned()) }
}

fn own_database(settings: &Settings) -> Result<String, String> {
    let fix =
        "the embedded database is for one machine: set DATABASE_URL to a server with backups and a standby";
    if settings.role == Role::Node {
        let fix = "unset DATABASE_URL and the other URLs: a node agent needs none";
        let Database { database_url, owner_database_url, system_database_url, .. } = &settings.database;
        let is_unset =
            [database_url, owner_database_url, system_database_url].iter().all(|url| url.is_none());
        return verdict(is_unset, "the node agent knows no database", fix);
    }
    verdict(settings.database.database_url.is_some(), "DATABASE_URL is set", fix)
}

fn database_roles(settings: &Settings) -> Result<String, String> {
    let (app, system) = (&settings.database.database_url, &settings.database.system_database_url);
    // The role of a URL without one is that of the process.
    let role =
        |url: &Option<String>| url.as_ref().map(|url| Url::parse(url).map(|url| url.username().to_owned()));
    let are_two = (system.is_some() && role(app) != role(system)) || settings.role == Role::Node;
    let fix = "set SOJOURN_SYSTEM_DATABASE_URL to a role of its own: the one of DATABASE_URL sees one organization at a time";
    verdict(are_two, "requests and the service's own work have different roles", fix)
}

fn owners_url(settings: &Settings) -> Result<String, String> {
    let is_known = settings.database.owner_database_url.is_some();
    let fix = "leave SOJOURN_OWNER_DATABASE_URL to `sojourn migrate`, and use the roles api and worker";
    verdict(!is_known && settings.role != Role::All, "this process cannot change the schema", fix)
}

fn master_key(settings: &Settings) -> Result<String, String> {
    if settings.role == Role::Node {
        let is_unset = settings.database.master_key.is_none();
        return verdict(
            is_unset,
            "the node agent has no master key",
            "unset SOJOURN_MASTER_KEY: a node agent needs none",
        );
    }
    let fix = "set SOJOURN_MASTER_KEY: a generated key lies beside the data that it encrypts";
    verdict(settings.database.master_key.is_some(), "SOJOURN_MASTER_KEY is set", fix)
}

async fn user(settings: &Settings) -> Result<String, String> {
    let fix = "run this process as an ordinary user: what breaks out of it is root";
    let name = settings.user.as_ref().filter(|name| *name != "root" && settings.node_agent.node.is_empty());
    match (settings.role, name) {
        (Role::Node, _) => Ok("the node agent has privileges, and no secret".to_owned()),
        (Role::Worker | Role::All, Some(name)) if geteuid().is_root() => {
            let checked = app::check_separation(settings, name).await;
            checked
                .map(|()| "only the node agent of this service is root".to_owned())
                .map_err(|why| why.to_string())
        }
        (Role::Worker | Role::All, _) if geteuid().is_root() => {
            Err(format!("{fix}: set SOJOURN_USER, or SOJOURN_NODE to a node agent"))
        }
        _ => verdict(!geteuid().is_root(), "not root", fix),
    }
}

fn kernel(settings: &Settings) -> Result<String, String> {
    let fix = "set SOJOURN_SANDBOX_RUNTIME=runsc, so that sandboxes have a kernel of their own, and leave \
        SOJOURN_ALLOW_SHARED_HOST off";
    let is_gvisor = settings.sandbox_runtime.ends_with("runsc");
    // The nodes of a worker check their runtime themselves; who may share the machine is decided by the worker.
    let is_well = (is_gvisor || !makes_sandboxes(settings)) && !settings.allow_shared_host;
    verdict(is_well, "sandboxes have a kernel of their own", fix)
}

fn private_addresses(settings: &Settings) -> Result<String, String> {
    let allowed = [
        ("SOJOURN_ALLOW_PRIVATE_WEBHOOKS", settings.allow_private_webhooks),
        ("SOJOURN_ALLOW_PRIVATE_MODELS", settings.allow_private_models),
        ("SOJOURN_ALLOW_PRIVATE_MCP", settings.allow_private_mcp),
        ("SOJOURN_ALLOW_PRIVATE_EGRESS", settings.allow_private_egress),
    ];
    let on: Vec<_> = allowed.into_iter().filter_map(|(name, is_on)| is_on.then_some(name)).collect();
    let fix = format!("switch {} off: organizations reach the network of this machine", on.join(", "));
    verdict(on.is_empty(), "no organization reaches private addresses", &fix)
}

fn local_sources(settings: &Settings) -> Result<String, String> {
    let fix = "unset SOJOURN_LOCAL_SOURCES: every organization can read these directories";
    let is_empty = settings.local_sources.iter().all(|path| path.as_os_str().is_empty());
    verdict(is_empty, "no directory of this machine can be cloned", fix)
}

fn metrics_address(settings: &Settings) -> Result<String, String> {
    let fix = "SOJOURN_METRICS_LISTEN has no authentication: use a private address";
    let is_private = |address: IpAddr| match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_private(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local(),
    };
    let is_well = settings.metrics_listen.is_none_or(|address| is_private(address.ip()));
    verdict(is_well, "metrics are not served to everyone", fix)
}

fn memory_overcommit(settings: &Settings) -> Result<String, String> {
    if !makes_sandboxes(settings) {
        return Ok("this process makes no sandboxes".to_owned());
    }
    let (reserved, there) = app::reservable(settings)?.memory;
    let fix = format!(
        "set SOJOURN_NODE_MEMORY to at most the {} MiB of this machine, so that none is reserved twice",
        there >> 20
    );
    verdict(reserved <= there, "memory is not overcommitted", &fix)
}

fn disk_overcommit(settings: &Settings) -> Result<String, String> {
    if !makes_sandboxes(settings) {
        return Ok("this process makes no sandboxes".to_owned());
    }
    let (reserved, there) = app::reservable(settings)?.disk;
    let fix = format!(
        "set SOJOURN_NODE_DISK to at most {} MiB, less what other files need: running sandboxes can fill the disk of \
         the data directory",
        there >> 20
    );
    verdict(reserved <= there, "disk is not overcommitted", &fix)
}

fn maxima(settings: &Settings) -> Result<String, String> {
    let maxima = settings.capacity.organization();
    let are_set =
        maxima.sandboxes.is_some() && maxima.memory_bytes.is_some() && maxima.checkpoint_bytes.is_some();
    let fix = "set SOJOURN_ORGANIZATION_MAX_SANDBOXES, _MEMORY and _CHECKPOINTS: one organization could take every place";
    verdict(are_set || !settings.role.runs_turns(), "an organization cannot take every place", fix)
}

fn scripted_models(settings: &Settings) -> Result<String, String> {
    verdict(
        !settings.scripted || settings.role == Role::Node,
        "scripted models are off",
        "set SOJOURN_SCRIPTED=off: these models are for tests",
    )
}

fn first_key(settings: &Settings) -> Result<String, String> {
    let fix = "unset SOJOURN_BOOTSTRAP_API_KEY after the first start, and rotate that key";
    verdict(settings.bootstrap_api_key.is_none(), "no key is in the settings", fix)
}

fn makes_sandboxes(settings: &Settings) -> bool {
    settings.role != Role::Api && settings.node_agent.node.is_empty()
}
