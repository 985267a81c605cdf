//! The root file system of profile `host`: a skeleton around the host's `/usr`.
//!
//! Called once by `Local::new`. Everything a box sees beside its session's disk is
//! either the host's `/usr`, read-only, or lies in this skeleton: copies of a
//! short allow-list (loader cache, certificates, alternatives), generated user
//! tables, init. Nothing else of the host exists there. A skeleton is named by its
//! content, so boxes of an earlier start keep theirs.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};
use sojourn_init::protocol::{self, CONTROL_DIR, EGRESS_DIR, OOM_COUNTER, OUTPUT_DIR, PROGRAM, WORKSPACE};

use super::layout::remove_dir;
use crate::base::text;

/// Init, built by `build.rs`.
static INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sojourn-init"));

/// Home of the command's user.
pub const HOME: &str = protocol::HOME;
/// Name of the command's user.
pub const USER: &str = "agent";

/// Places of the host's `/etc` that a box sees as copies.
const COPIED: [&str; 8] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/localtime",
    "/etc/mime.types",
];
/// Where a merged `/usr` shows its old places.
const USR_MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Where the box's mounts go; the device and process file systems included.
const DIRECTORIES: [&str; 9] = ["dev", "proc", "run", "sys", "usr", "var", "root", "opt", "home/agent"];
/// Levels below a copied place, and files in all of them: the allow-list is of
/// small things, and a host is not always what it should be.
const COPY_DEPTH_MAX: usize = 4;
const COPY_FILES_MAX: usize = 4_096;

/// One thing in the skeleton, by its path from the root.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    Directory { mode: u32 },
    File { content: Vec<u8>, mode: u32 },
    Link(PathBuf),
}

const OPEN_DIRECTORY: Node = Node::Directory { mode: 0o755 };

type Tree = BTreeMap<PathBuf, Node>;

/// Makes the skeleton below `parent`, unless it is there. Returns its path.
pub fn build(parent: &Path) -> io::Result<PathBuf> {
    let tree = plan()?;
    let path = parent.join(format!("rootfs-{}", digest(&tree)));
    if path.is_dir() {
        return Ok(path);
    }
    let unnamed = parent.join(format!(".rootfs-{}", std::process::id()));
    remove_dir(&unnamed)?;
    write(&unnamed, &tree)?;
    match fs::rename(&unnamed, &path) {
        // Another process of the service made the same at the same time.
        Err(_) if path.is_dir() => remove_dir(&unnamed)?,
        renamed => renamed?,
    }
    Ok(path)
}

/// Host directories outside `/usr` that the old places are on this host, for
/// hosts whose `/usr` is not merged.
pub fn unmerged() -> Vec<PathBuf> {
    let places = USR_MERGED.map(|name| Path::new("/").join(name));
    places.into_iter().filter(|place| place.is_dir() && !place.is_symlink()).collect()
}

fn plan() -> io::Result<Tree> {
    let mut tree = Tree::new();
    let init_places =
        [CONTROL_DIR, OUTPUT_DIR, EGRESS_DIR, WORKSPACE].map(|path| path.trim_start_matches('/'));
    for path in DIRECTORIES.into_iter().chain(init_places) {
        put(&mut tree, path.as_ref(), OPEN_DIRECTORY);
    }
    for name in USR_MERGED {
        let place = Path::new("/").join(name);
        if let Ok(target) = fs::read_link(&place) {
            put(&mut tree, name.as_ref(), Node::Link(target));
        } else if place.is_dir() {
            put(&mut tree, name.as_ref(), OPEN_DIRECTORY);
        }
    }
    // The runtime gives a new tmpfs the mode of the directory that it covers.
    put(&mut tree, "tmp".as_ref(), Node::Directory { mode: 0o1777 });
    put(&mut tree, "var/tmp".as_ref(), Node::Link("/tmp".into()));
    for place in COPIED {
        copy(&mut tree, Path::new(place), COPY_DEPTH_MAX)?;
    }
    for (path, content) in generated() {
        put(&mut tree, path.as_ref(), Node::File { content: content.into_bytes(), mode: 0o644 });
    }
    put(&mut tree, inside(PROGRAM), Node::File { content: INIT.to_vec(), mode: 0o755 });
    put(&mut tree, inside(OOM_COUNTER), Node::File { content: Vec::new(), mode: 0o444 });
    Ok(tree)
}

/// The user tables and the like, which say nothing about the host.
fn generated() -> [(&'static str, String); 9] {
    let id = sojourn_init::protocol::COMMAND_UID;
    [
        (
            "etc/passwd",
            format!(
                "root:x:0:0:root:/root:/usr/sbin/nologin\n\
                 {USER}:x:{id}:{id}:{USER}:{HOME}:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        ("etc/group", format!("root:x:0:\n{USER}:x:{id}:\nnogroup:x:65534:\n")),
        ("etc/hostname", "sandbox\n".to_owned()),
        ("etc/hosts", "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost sandbox\n".to_owned()),
        // No resolver: names are resolved outside, by the proxy.
        ("etc/resolv.conf", String::new()),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n".to_owned()),
        ("etc/shells", "/bin/sh\n/bin/bash\n".to_owned()),
        ("etc/profile", "umask 022\n".to_owned()),
        // The workspace belongs to the command's user whatever made it.
        ("etc/gitconfig", "[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n".to_owned()),
    ]
}

fn inside(path: &str) -> &Path {
    Path::new(path.trim_start_matches('/'))
}

/// Adds a thing and the directories above it.
fn put(tree: &mut Tree, path: &Path, node: Node) {
    for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        tree.entry(above.to_owned()).or_insert(OPEN_DIRECTORY);
    }
    tree.insert(path.to_owned(), node);
}

/// Adds a place of the host, links as links. What is missing or unreadable there
/// is left out; a link that leads to something outside shows nothing.
fn copy(tree: &mut Tree, place: &Path, depth: usize) -> io::Result<()> {
    let Ok(meta) = fs::symlink_metadata(place) else {
        return Ok(());
    };
    let path = place.strip_prefix("/").unwrap_or(place);
    if tree.len() >= COPY_FILES_MAX {
        return Ok(());
    }
    if meta.is_symlink() {
        put(tree, path, Node::Link(fs::read_link(place)?));
    } else if meta.is_file() && meta.permissions().mode() & 0o004 != 0 {
        put(tree, path, Node::File { content: fs::read(place)?, mode: 0o644 });
    } else if meta.is_dir() && depth > 0 {
        put(tree, path, OPEN_DIRECTORY);
        for entry in fs::read_dir(place)? {
            copy(tree, &entry?.path(), depth - 1)?;
        }
    }
    Ok(())
}

fn write(root: &Path, tree: &Tree) -> io::Result<()> {
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    fs::create_dir(root)?;
    open(root, 0o755)?;
    // In order of paths a directory comes before what is in it.
    for (path, node) in tree {
        let path = root.join(path);
        match node {
            Node::Directory { mode } => {
                fs::create_dir(&path)?;
                open(&path, *mode)?;
            }
            Node::File { content, mode } => {
                fs::write(&path, content)?;
                open(&path, *mode)?;
            }
            Node::Link(target) => symlink(target, &path)?,
        }
    }
    Ok(())
}

fn digest(tree: &Tree) -> String {
    let mut sha = Sha256::new();
    let mut field = |bytes: &[u8]| {
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    };
    for (path, node) in tree {
        field(path.as_os_str().as_encoded_bytes());
        match node {
            Node::Directory { mode } => field(&mode.to_le_bytes()),
            Node::File { content, mode } => {
                field(&mode.to_le_bytes());
                field(content);
            }
            Node::Link(target) => field(target.as_os_str().as_encoded_bytes()),
        }
    }
    text::hex(&sha.finalize()[..6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skeleton_is_built_once() {
        let parent = tempfile::tempdir().unwrap();
        let path = build(parent.path()).unwrap();
        assert_eq!(build(parent.path()).unwrap(), path);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
        assert!(path.join("etc/passwd").is_file() && path.join("home/agent").is_dir());
        assert_eq!(fs::read_link(path.join("var/tmp")).unwrap(), Path::new("/tmp"));
    }

    #[test]
    fn nothing_secret_of_the_host_is_in_it() {
        let tree = plan().unwrap();
        for path in ["etc/shadow", "etc/ssh", "etc/ssl/private", "etc/machine-id", "etc/sudoers"] {
            assert!(!tree.contains_key(Path::new(path)), "{path} is visible");
        }
        let empty = |path: &str| tree.keys().filter(|key| key.starts_with(path)).count() == 1;
        assert!(empty("root") && empty("opt") && empty("usr"));
    }
}
