//! Capabilities of the processes of a sandbox.
//!
//! Called at the start of init, of each runner and of each file helper. Init retains SETUID, SETGID and KILL:
//! it needs the first two to switch to another user, and the third to end that user's processes. The bounding
//! set is emptied before anything else runs, so no process in the sandbox ever gains a capability.

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

/// For init: empties the bounding set, then drops SETPCAP.
///
/// The three capabilities remain inheritable, because a root process that calls exec gets its inheritable and
/// bounding capabilities, and file helpers are started by exec of this program.
pub(crate) fn keep_what_init_needs() -> io::Result<()> {
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

/// For a runner: its children inherit no capability.
pub(crate) fn pass_nothing_on() -> io::Result<()> {
    set_capabilities(
        None,
        CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() },
    )?;
    Ok(())
}

/// For the relay: remains the sandbox's root, which no command can signal, without capabilities.
pub(crate) fn keep_nothing() -> io::Result<()> {
    let nothing = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing })?;
    Ok(())
}

/// For a file helper: switches to the command's user permanently.
///
/// The switch also makes the process undumpable, so commands of that user cannot trace it.
pub(crate) fn become_command_user() -> io::Result<()> {
    pass_nothing_on()?;
    let gid = Gid::from_raw(COMMAND_UID);
    let uid = Uid::from_raw(COMMAND_UID);
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// For the measurement of the disk: uses files as the command's user, and remains a process of the sandbox's root,
/// which no command can signal. It reads no content of files, so it could not be misled to become root again.
pub(crate) fn act_as_command_user() -> io::Result<()> {
    let gid = Gid::from_raw(COMMAND_UID);
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(Uid::ROOT, Uid::from_raw(COMMAND_UID), Uid::ROOT)?;
    keep_nothing()
}
