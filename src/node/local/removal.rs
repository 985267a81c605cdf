//! Removal of a sandbox's files.
//!
//! Called by `local`. Where the service is root, it removes everything itself. Otherwise a program with root
//! over the sandboxes' users removes the files that belong to them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{process::Command, time::timeout};

use super::{in_blocking_thread, layout::remove_dir, rootless::Users, runtime, unavailable};
use crate::{base::limit::DISK_REMOVE_TIMEOUT, sandbox::Fault};

/// Removes directories that no sandbox's command can write to, in order.
pub(super) async fn directories(users: Option<&Users>, paths: Vec<PathBuf>) -> Result<(), Fault> {
    if users.is_some() {
        return disk(users, &paths).await;
    }
    let removed = in_blocking_thread(move || paths.iter().try_for_each(|path: &PathBuf| remove_dir(path)));
    removed.await.map_err(|error| unavailable("its files cannot be removed", &error))
}

/// Removes a tree that an image brought, of any depth; for a blocking thread.
pub(super) fn tree(path: &Path) -> io::Result<()> {
    let mut rm = std::process::Command::new("/bin/rm");
    rm.args(["-rf", "--one-file-system", "--"]).arg(path).env_clear().env("PATH", runtime::PATH);
    match rm.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()? {
        status if status.success() => Ok(()),
        _ => Err(io::Error::other(format!("{} cannot be removed", path.display()))),
    }
}

/// Removes files that a sandbox wrote. The tree may be deeper than recursion or the limit of open files of
/// this process allow; `rm` handles that and follows no link.
pub(super) async fn disk(users: Option<&Users>, parts: &[impl AsRef<Path>]) -> Result<(), Fault> {
    let is_gone =
        |path: &Path| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let parts: Vec<_> = parts.iter().map(AsRef::as_ref).filter(|part| !is_gone(part)).collect();
    if parts.is_empty() {
        return Ok(());
    }
    let mut rm = match users {
        Some(users) => users.command("/bin/rm"),
        None => Command::new("/bin/rm"),
    };
    let removal = rm
        .args(["-rf", "--one-file-system", "--"])
        .args(parts)
        .env_clear()
        .env("PATH", runtime::PATH)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status();
    match timeout(DISK_REMOVE_TIMEOUT, removal).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(_)) => Err(Fault::Unavailable("the session's disk cannot be removed".to_owned())),
        Ok(Err(error)) => Err(unavailable("the session's disk cannot be removed", &error)),
        Err(_) => Err(Fault::Unavailable("the session's disk was not removed in time".to_owned())),
    }
}
