//! Pseudo terminals of a container: a limit that the daemon cannot set.
//!
//! The terminals of all containers come from one pool of the kernel (kernel.pty.max). Their limit is a mount option of
//! `/dev/pts`, so the node changes the mount, in the mount namespace of the container.

use std::{fs, fs::File, io, os::fd::AsFd, path::PathBuf, thread};

use rustix::{
    mount::{MountFlags, mount_remount},
    process::geteuid,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::base::limit;

/// Group of the terminals inside of a container.
const TTY: u32 = 5;

/// Limits the terminals of the container whose init is `pid`; `first` is the host id of its root. Returns whether it
/// did: only root can, and only beside the daemon, where its processes have the same numbers.
///
/// # Errors
/// The kernel refuses it.
pub(super) fn limit_terminals(container: &str, pid: i64, first: u32) -> io::Result<bool> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if !geteuid().is_root() {
        return Ok(false);
    }
    let Ok(namespace) = File::open(process.join("ns/mnt")) else { return Ok(false) };
    // In another container, the number is that of another process.
    if !fs::read_to_string(process.join("cgroup")).is_ok_and(|cgroups| cgroups.contains(container)) {
        return Ok(false);
    }
    let (most, group) = (limit::SANDBOX_TERMINALS_MAX, first + TTY);
    let options = format!("max={most},gid={group},mode=620,ptmxmode=666");
    let remount = || -> io::Result<()> {
        // SAFETY: the thread shares its table of descriptors with the others, as before.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        Ok(mount_remount("/dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC, options.as_str())?)
    };
    // A thread of its own, which ends in the namespace of the container.
    thread::scope(|scope| scope.spawn(remount).join())
        .map_err(|_| io::Error::other("a thread panicked"))??;
    Ok(true)
}
