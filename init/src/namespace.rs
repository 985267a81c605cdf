//! A user namespace of its own for one container, made before the container runtime starts.
//!
//! Started by the service on the node as `namespace`, outside of every sandbox, in front of the runtime's
//! command line. The kernel counts inotify instances and namespaces for the user that made a user namespace.
//! If the runtime makes it, that is root, whose limits then hold for all sandboxes and for the machine's own
//! services together. So a child becomes a user of the container's range, makes the namespace and sets its
//! limits; the runtime joins it.

use std::{
    fs,
    io::{self, Read},
    os::{
        fd::AsFd,
        unix::{fs::symlink, process::CommandExt},
    },
    process::Command,
};

use rustix::{
    io::{FdFlags, fcntl_setfd, read, write},
    process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior},
    stdio::{stdin, stdout},
    thread::{
        CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, set_keep_capabilities,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
    },
};

use crate::fork::run_in_child;

/// Arguments: the first id of the range on this side of the namespace, the number of ids, the path of a link to
/// the namespace, limits such as `max_inotify_instances=128` (the files of `/proc/sys/user`,
/// namespaces(7)), `--`, and the program that joins the namespace. The namespace exists as long as the program
/// or a process in it. Returns only an error: the program replaces this process.
pub(crate) fn make(arguments: &[&str]) -> io::Result<()> {
    let wrong =
        || io::Error::other("namespace needs: FIRST COUNT LINK [NAME=LIMIT]... -- PROGRAM [ARGUMENT]...");
    let at = arguments.iter().position(|argument| *argument == "--").ok_or_else(wrong)?;
    let ([first, count, link, limits @ ..], [_, program, rest @ ..]) = arguments.split_at(at) else {
        return Err(wrong());
    };
    let (first, count) = first.parse::<u32>().ok().zip(count.parse::<u32>().ok()).ok_or_else(wrong)?;
    let limits: Option<Vec<_>> = limits.iter().map(|limit| limit.split_once('=')).collect();
    let limits = limits.ok_or_else(wrong)?;
    let (input, ours) = io::pipe()?;
    let (mut answers, output) = io::pipe()?;
    let child = run_in_child(input, output, || hold(first, &limits))?;
    answers.read_exact(&mut [0])?;
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{child}/{map}"), format!("0 {first} {count}\n"))?;
    }
    write(&ours, b"m")?;
    answers.read_exact(&mut [0])?;
    symlink(format!("/proc/{child}/ns/user"), link)?;
    // The child ends with the program, which closes this.
    fcntl_setfd(ours.as_fd(), FdFlags::empty())?;
    Err(Command::new(program).args(rest).exec())
}

/// Makes the namespace, sets its limits once its ids are mapped, and holds it until the input ends.
fn hold(first: u32, limits: &[(&str, &str)]) -> io::Result<()> {
    let (gid, uid) = (Gid::from_raw(first), Uid::from_raw(first));
    set_keep_capabilities(true)?;
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    // Some systems let only a process with SYS_ADMIN make a user namespace.
    let admin = CapabilitySet::SYS_ADMIN;
    set_capabilities(
        None,
        CapabilitySets { effective: admin, permitted: admin, inheritable: CapabilitySet::empty() },
    )?;
    // The change of user made this process undumpable, and its files in /proc root's.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // SAFETY: a user namespace does not separate descriptors or memory.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
    write(stdout(), b"n")?;
    if read(stdin(), &mut [0])? == 0 {
        return Ok(());
    }
    for (name, limit) in limits {
        match fs::write(format!("/proc/sys/user/{name}"), limit) {
            // The kernel is older than the limit.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written?,
        }
    }
    write(stdout(), b"l")?;
    read(stdin(), &mut [0]).map(drop).map_err(io::Error::from)
}
