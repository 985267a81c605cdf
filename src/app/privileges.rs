//! Separation of privileges: a service that was started as root becomes two processes.
//!
//! The process itself goes on as the node agent: root, without a secret of the deployment in its memory or in its
//! environment. Its child is the service, as an ordinary user without capabilities. The data directory belongs to
//! root, with the sticky bit, so that the service creates its files there and cannot replace those of the agent.

use std::{
    env, ffi,
    ffi::OsString,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, anyhow, bail};
use sha2::{Digest, Sha256};

use crate::{
    base::{Origin, text},
    config::Settings,
    store::embedded::Account,
};

/// Settings that the agent needs, as they are named on the command line.
const AGENT_SETTINGS: [&str; 20] = [
    "data-dir",
    "docker-socket",
    "images",
    "registry-auth-file",
    "apt-mirror",
    "pip-index",
    "npm-registry",
    "sandbox-image",
    "sandbox-orphan-seconds",
    "sandbox-provider",
    "sandbox-runtime",
    "node-cpus",
    "node-memory",
    "node-pids",
    "node-disk",
    "node-disk-free",
    "log",
    "log-json",
    "otlp-endpoint",
    "trace-sample",
];
/// Directories of the agent below the data directory, and the file with the identity of its node.
const OF_AGENT: [&str; 2] = ["sandboxes", "images"];
const NODE_ID: &str = "node-id";
/// Directory of the embedded database, or a link to it; its cluster in it.
const POSTGRES: &str = "postgres";
const CLUSTER: &str = "pgdata";

/// Starts the service as another user and turns this process into its node agent. Returns if there is nothing to
/// separate: the process is not root, makes no sandboxes, or no user is set.
///
/// # Errors
/// One line. `Ok` with a line for the operator when the data directory is no place for two users.
pub async fn separate(settings: &Settings) -> anyhow::Result<Option<String>> {
    let is_root = rustix::process::geteuid().is_root();
    let Some(name) = settings.user.as_ref().filter(|name| is_root && *name != "root") else {
        return Ok(None);
    };
    if !settings.role.runs_turns() || !settings.node_agent.node.is_empty() {
        return Ok(None);
    }
    let data_dir = &settings.database.data_dir;
    fs::create_dir_all(data_dir).with_context(|| format!("SOJOURN_DATA_DIR: {}", data_dir.display()))?;
    let data_dir = fs::canonicalize(data_dir)?;
    let user = user_of(name).await?;
    if let Some(obstacle) = obstacle(name, &user, data_dir.parent().unwrap_or(&data_dir))? {
        return Ok(Some(obstacle));
    }
    hand_over(&data_dir, &user)?;
    // Before the service can make a file of this name.
    super::data_dir::node_id(&data_dir, &Origin::system())?;
    let socket = socket_of(&data_dir);
    let program = env::current_exe()?;
    // Not only the user: also no capability to inherit, and none to gain.
    let service = Command::new("setpriv")
        .args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid)])
        .args(["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"])
        .arg(&program)
        .args(env::args_os().skip(1))
        .arg(format!("--node=unix:{}", socket.display()))
        .arg(format!("--agent-parent-pid={}", std::process::id()))
        .env_remove("SOJOURN_USER")
        .env("HOME", &user.home)
        // Ctrl-C at a terminal is for the agent, which passes it on.
        .process_group(0)
        .spawn()
        .with_context(|| format!("the service cannot be started as user {name}"))?;
    let failed = Command::new(program)
        .args(["serve", "--role=node"])
        .args(kept_arguments(env::args_os().skip(2)))
        .arg(format!("--node-listen=unix:{}", socket.display()))
        .arg(format!("--node-socket-user={}", user.uid))
        .arg(format!("--service-child-pid={}", service.id()))
        .env_clear()
        .envs(env::vars_os().filter(|(name, _)| is_kept_variable(name)))
        .exec();
    bail!("the node agent cannot be started: {failed}")
}

async fn user_of(name: &str) -> anyhow::Result<Account> {
    let user = Account::find(name).await?;
    user.with_context(|| format!("this machine has no user `{name}`: useradd --system {name}"))
}

/// Why the whole service would stay root, in one line.
fn obstacle(name: &str, user: &Account, above: &Path) -> anyhow::Result<Option<String>> {
    if let Some(barred) = user.first_inaccessible_dir(above)? {
        return Ok(Some(format!(
            "the whole service stays root: the user {name} has no access to {}; run chmod o+x on it, or choose \
             another SOJOURN_DATA_DIR",
            barred.display()
        )));
    }
    Ok(first_of_others(above)?.map(|open| {
        format!(
            "the whole service stays root: others than root can replace what is in {}; choose another \
             SOJOURN_DATA_DIR, such as /var/lib/sojourn/data",
            open.display()
        )
    }))
}

/// Checks that [`separate`] would leave root to the agent. Changes nothing.
///
/// # Errors
/// Why it would not, in one line.
pub async fn check_separation(settings: &Settings, name: &str) -> anyhow::Result<()> {
    let user = user_of(name).await?;
    let data_dir = std::path::absolute(&settings.database.data_dir)?;
    let data_dir = fs::canonicalize(&data_dir).unwrap_or(data_dir);
    // A directory that is missing would be made by root.
    let above = data_dir.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("/"));
    match obstacle(name, &user, &fs::canonicalize(above)?)? {
        Some(obstacle) => Err(anyhow!(obstacle)),
        None => Ok(()),
    }
}

/// The socket of the agent of a data directory: a short path.
fn socket_of(data_dir: &Path) -> PathBuf {
    let digest = Sha256::digest(data_dir.as_os_str().as_bytes());
    Path::new("/run/sojourn").join(format!("node-{}.sock", text::hex(&digest[..6])))
}

/// The topmost directory on a path in which another user than root can replace an entry of root.
fn first_of_others(path: &Path) -> anyhow::Result<Option<&Path>> {
    let mut found = None;
    for directory in path.ancestors() {
        let there = directory.metadata()?;
        let (is_shared, is_sticky) = (there.mode() & 0o022 != 0, there.mode() & 0o1000 != 0);
        if there.uid() != 0 || (is_shared && !is_sticky) {
            found = Some(directory);
        }
    }
    Ok(found)
}

/// Gives the files of the service to its user, and keeps those of the agent.
fn hand_over(data_dir: &Path, user: &Account) -> anyhow::Result<()> {
    let named = || format!("{} cannot be prepared for two users", data_dir.display());
    for name in OF_AGENT {
        let directory = data_dir.join(name);
        fs::create_dir_all(&directory).with_context(named)?;
        let there = directory.symlink_metadata().with_context(named)?;
        if !there.is_dir() || there.uid() != 0 {
            bail!("{} must be a directory of root", directory.display());
        }
    }
    for entry in fs::read_dir(data_dir).with_context(named)? {
        let entry = entry.with_context(named)?;
        let name = entry.file_name();
        let has_another_owner = OF_AGENT.into_iter().chain([NODE_ID, POSTGRES]).any(|other| name == *other);
        let there = entry.path().symlink_metadata().with_context(named)?;
        // Only what root made itself: not a link that another user made to a file of root.
        let is_made_by_root = there.is_dir() || there.is_file() && there.nlink() == 1;
        match there.uid() {
            _ if has_another_owner => {}
            0 if is_made_by_root => give(&entry.path(), user)?,
            owner if owner == 0 || owner == user.uid => {}
            owner => bail!(
                "{} belongs to user {owner}: set SOJOURN_USER to that user, or change its owner",
                entry.path().display()
            ),
        }
    }
    hand_over_cluster(&data_dir.join(POSTGRES), user)?;
    chown(data_dir, Some(0), Some(user.gid)).with_context(named)?;
    fs::set_permissions(data_dir, fs::Permissions::from_mode(0o1771)).with_context(named)
}

/// Gives the directory of an embedded database that was started by root. Its cluster belonged to an ordinary user
/// already. A link is followed only if root made it: the service can make one, too.
fn hand_over_cluster(link: &Path, user: &Account) -> anyhow::Result<()> {
    let Ok(there) = link.symlink_metadata() else { return Ok(()) };
    if there.uid() == user.uid {
        return Ok(());
    }
    let of_another = |owner: u32| {
        anyhow!(
            "the embedded database in {} belongs to user {owner}: set SOJOURN_USER to that user",
            link.display()
        )
    };
    if there.uid() != 0 {
        return Err(of_another(there.uid()));
    }
    let home = fs::canonicalize(link).with_context(|| format!("{} leads nowhere", link.display()))?;
    match home.join(CLUSTER).symlink_metadata() {
        Ok(cluster) if cluster.uid() != user.uid => Err(of_another(cluster.uid())),
        _ => give(&home, user),
    }
}

/// Changes the owner of a path and of everything below it, without following links.
fn give(path: &Path, user: &Account) -> anyhow::Result<()> {
    let given = Command::new("chown")
        .args(["-R", "-h", "-P", &format!("{}:{}", user.uid, user.gid)])
        .arg(path)
        .status()
        .context("`chown` could not be run")?;
    if !given.success() {
        bail!("the owner of {} cannot be changed", path.display());
    }
    Ok(())
}

/// The arguments that are settings of the agent.
fn kept_arguments(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut kept, mut all) = (Vec::new(), all);
    while let Some(argument) = all.next() {
        let text = argument.to_string_lossy();
        let Some(flag) = text.strip_prefix("--") else { continue };
        let (name, has_value) = flag.split_once('=').map_or((flag, false), |(name, _)| (name, true));
        let is_kept = AGENT_SETTINGS.contains(&name);
        let value = if has_value { None } else { all.next() };
        if is_kept {
            kept.push(argument);
            kept.extend(value);
        }
    }
    kept
}

/// Whether a variable of the environment is one of the agent's settings, or one that every program needs.
fn is_kept_variable(name: &ffi::OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let setting = name.strip_prefix("SOJOURN_").map(|name| name.to_ascii_lowercase().replace('_', "-"));
    setting.is_some_and(|name| AGENT_SETTINGS.contains(&name.as_str()))
        || ["PATH", "LANG", "TZ", "TERM", "RUST_BACKTRACE"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_keeps_its_settings_and_no_secret() {
        let all = [
            "--data-dir",
            "/data",
            "--bootstrap-api-key=secret",
            "--sandbox-runtime=runsc",
            "--operator-key",
            "secret",
            "--node-memory=3Gi",
            "--role=all",
        ];
        let kept = kept_arguments(all.map(OsString::from).into_iter());
        assert_eq!(kept, ["--data-dir", "/data", "--sandbox-runtime=runsc", "--node-memory=3Gi"]);
        for name in
            ["SOJOURN_MASTER_KEY", "DATABASE_URL", "SOJOURN_OPERATOR_KEY", "AWS_SECRET_ACCESS_KEY", "HOME"]
        {
            assert!(!is_kept_variable(name.as_ref()), "{name}");
        }
        for name in ["PATH", "SOJOURN_DATA_DIR", "SOJOURN_NODE_MEMORY", "SOJOURN_SANDBOX_RUNTIME"] {
            assert!(is_kept_variable(name.as_ref()), "{name}");
        }
    }

    #[test]
    fn only_what_root_made_is_given() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let user = Account { name: "sojourn".to_owned(), uid: 12_345, gid: 12_345, home: "/".into() };
        let owner = |name: &str| path(name).symlink_metadata().unwrap().uid();
        fs::create_dir(path("target")).unwrap();
        std::os::unix::fs::symlink(path("target"), path("postgres")).unwrap();
        std::os::unix::fs::lchown(path("postgres"), Some(user.uid), None).unwrap();
        hand_over_cluster(&path("postgres"), &user).unwrap();
        assert_eq!(owner("target"), 0, "a link of the service leads to it");
        std::os::unix::fs::lchown(path("postgres"), Some(0), None).unwrap();
        fs::create_dir(path("target/pgdata")).unwrap();
        chown(path("target/pgdata"), Some(9), None).unwrap();
        assert!(hand_over_cluster(&path("postgres"), &user).is_err(), "the cluster is of another user");
        fs::remove_dir(path("target/pgdata")).unwrap();
        hand_over_cluster(&path("postgres"), &user).unwrap();
        assert_eq!(owner("target"), user.uid, "a link of root leads to it");

        fs::create_dir(path("data")).unwrap();
        fs::write(path("data/master-key"), "secret").unwrap();
        fs::write(path("elsewhere"), "of root").unwrap();
        fs::hard_link(path("elsewhere"), path("data/linked")).unwrap();
        hand_over(&path("data"), &user).unwrap();
        assert_eq!(owner("data/master-key"), user.uid);
        for kept in ["data", "data/sandboxes", "data/images", "elsewhere"] {
            assert_eq!(owner(kept), 0, "{kept}");
        }
        chown(path("data/master-key"), Some(9), None).unwrap();
        let refused = hand_over(&path("data"), &user).unwrap_err().to_string();
        assert!(refused.contains("master-key belongs to user 9"), "{refused}");
    }

    #[test]
    fn a_data_directory_is_one_that_only_root_can_replace() {
        let directory = tempfile::tempdir().unwrap();
        let above = directory.path().join("above");
        fs::create_dir(&above).unwrap();
        assert_eq!(first_of_others(&above).unwrap(), None);
        fs::set_permissions(&above, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(first_of_others(&above).unwrap(), Some(above.as_path()));
        fs::set_permissions(&above, fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(first_of_others(&above).unwrap(), None);
        chown(&above, Some(12_345), None).unwrap();
        assert_eq!(first_of_others(&above).unwrap(), Some(above.as_path()));
    }
}
