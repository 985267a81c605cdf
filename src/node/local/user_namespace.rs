//! The user namespace of a container, made before its runtime starts, with limits of its own.
//!
//! Called by the engines with an OCI runtime. `sojourn-init namespace` makes the namespace and explains why the
//! runtime does not.

use std::{ffi::OsString, path::Path};

use super::bundle::{ContainerSpec, number_of_ids};
use crate::base::limit::{SANDBOX_INOTIFY_INSTANCES_MAX, SANDBOX_INOTIFY_WATCHES_MAX};

/// File of a sandbox's directory that links to its namespace while the runtime starts it.
pub(super) const LINK: &str = "user-namespace";

/// Program and arguments in front of the runtime's command line. `link` is the path at which the runtime's
/// configuration names the namespace.
pub(super) fn words(of: &ContainerSpec<'_>, link: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![of.base.init().into(), "namespace".into()];
    words.extend([of.ids.first, number_of_ids(of)].map(|number| number.to_string().into()));
    words.push(link.into());
    let limits = [
        ("max_inotify_instances", SANDBOX_INOTIFY_INSTANCES_MAX),
        ("max_inotify_watches", SANDBOX_INOTIFY_WATCHES_MAX),
        // A container makes no namespaces; those that the runtime makes in it are of the kinds not named here.
        ("max_user_namespaces", 0),
    ];
    words.extend(limits.map(|(name, limit)| format!("{name}={limit}").into()));
    words.push("--".into());
    words
}
