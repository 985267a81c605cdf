//! Which rights the processes of a sandbox have.
//!
//! Called at the start of init, of each runner and of each file helper. Init keeps
//! SETUID, SETGID and KILL: without the first two it could not drop to another
//! user, without the third not end what that user runs. The bounding set is
//! emptied before anything else runs, so nothing in the sandbox ever gains a right.

use std::io;

use rustix::{
    process::{Gid, Uid},
    thread::{
        CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};
use sojourn_init::protocol::COMMAND_UID;

const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// For init: empties the bounding set, then gives up the right to change it.
///
/// The three rights stay inheritable, because a root process that execs gets
/// what is inheritable or bounding, and file helpers are execs of this program.
pub fn keep_what_init_needs() -> io::Result<()> {
    let with_setpcap = KEPT.union(CapabilitySet::SETPCAP);
    set_capabilities(
        None,
        CapabilitySets { effective: with_setpcap, permitted: with_setpcap, inheritable: KEPT },
    )?;
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            // The kernel is older than the capability.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    set_capabilities(None, CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: KEPT })?;
    Ok(())
}

/// For a runner: what it starts inherits nothing.
pub fn pass_nothing_on() -> io::Result<()> {
    set_capabilities(
        None,
        CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() },
    )?;
    Ok(())
}

/// For the relay: stays the sandbox's root, whom no command can signal, without a right.
pub fn keep_nothing() -> io::Result<()> {
    let nothing = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing })?;
    Ok(())
}

/// For a file helper: becomes the command's user for good.
///
/// A change of user also makes the process undumpable, so no command of that
/// user can trace it.
pub fn become_command_user() -> io::Result<()> {
    pass_nothing_on()?;
    let gid = Gid::from_raw(COMMAND_UID);
    let uid = Uid::from_raw(COMMAND_UID);
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}
