//! The root file system of a sandbox: a skeleton, into which the image's directories are mounted.
//!
//! Called by `Local::new` for the image `host`, and by `image` for every other. Besides its session's disk, a
//! sandbox sees only its image, read-only, and this skeleton: generated user tables, init, and with the image
//! `host`, which is the machine's `/usr`, copies of a short allow-list (loader cache, certificates,
//! alternatives). Nothing else of the host is visible. A skeleton is named by its content, so running
//! sandboxes keep theirs when the service is restarted.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use sha2::{Digest, Sha256};
use sojourn_init::protocol::{
    self, CONTROL_DIR, EGRESS_DIR, OOM_COUNTER, OUTPUT_DIR, PROGRAM, SKILLS, WORKSPACE,
};

use super::layout::remove_dir;
use crate::base::{limit::IMAGE_DIRECTORIES_MAX, text};

/// Init, built by `build.rs`.
static INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sojourn-init"));

/// Home of the command's user.
pub(super) const HOME: &str = protocol::HOME;
/// Name of the command's user.
pub(super) const USER: &str = "agent";

/// Paths of the host's `/etc` that are copied into the skeleton.
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
/// Top-level directories that are links in a merged `/usr`.
const USR_MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Mount points of a sandbox, including device and process file systems.
const DIRECTORIES: [&str; 6] = ["dev", "proc", "run", "sys", "root", "home/agent"];
/// Additional directories with the image `host`.
const OF_HOST: [&str; 3] = ["usr", "var", "opt"];
/// Top-level entries of an image that are not mounted: the sandbox has its own, or none.
const HIDDEN: [&str; 14] = [
    "dev",
    "proc",
    "run",
    "sys",
    "tmp",
    "root",
    "home",
    "workspace",
    "skills",
    ".sojourn",
    "lost+found",
    "boot",
    "media",
    "mnt",
];
/// Tables that a sandbox gets from the skeleton, whatever its image.
pub(super) const TABLES: [&str; 7] = [
    "etc/passwd",
    "etc/group",
    "etc/hostname",
    "etc/hosts",
    "etc/resolv.conf",
    "etc/nsswitch.conf",
    "etc/gitconfig",
];
/// Limits of a copied path: levels below it, and files in total. The allow-list names small things, but a
/// host may differ.
const COPY_DEPTH_MAX: usize = 4;
const COPY_FILES_MAX: usize = 4_096;

/// An entry of the skeleton.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    Directory { mode: u32 },
    File { content: Vec<u8>, mode: u32 },
    Link(PathBuf),
}

const OPEN_DIRECTORY: Node = Node::Directory { mode: 0o755 };

type Tree = BTreeMap<PathBuf, Node>;

/// Root file system of a sandbox.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// The skeleton.
    pub rootfs: PathBuf,
    /// Read-only mounts into the skeleton: source and destination.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Name of the image's tree; `None` for the image `host`.
    pub tree: Option<String>,
}

impl Base {
    /// Path of init on this machine. It is a file of the service, also where the root file system is
    /// what an installation writes.
    pub(super) fn init(&self) -> PathBuf {
        let bound = self.binds.iter().find(|(_, destination)| destination == Path::new(PROGRAM));
        bound.map_or_else(|| self.rootfs.join(inside(PROGRAM)), |(source, _)| source.clone())
    }
}

/// Creates the skeleton of the image `host` below `parent`.
pub(super) fn of_host(parent: &Path) -> io::Result<Base> {
    let onto_itself = |place: PathBuf| (place.clone(), place);
    let unmerged = usr_places().filter(|place| place.is_dir() && !place.is_symlink());
    let binds = std::iter::once(PathBuf::from("/usr")).chain(unmerged).map(onto_itself).collect();
    Ok(Base { rootfs: create_skeleton(parent, &plan_of_host()?)?, binds, tree: None })
}

/// Creates the skeleton of an image below `parent`. `root` is the image's tree, which never changes; `name`
/// is its name.
pub(super) fn of_image(parent: &Path, root: &Path, name: &str) -> io::Result<Base> {
    let (mut tree, mut binds) = (common(), Vec::new());
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let (place, kind) = (entry.file_name(), entry.file_type()?);
        if HIDDEN.iter().any(|hidden| place == *hidden) {
            continue;
        }
        if kind.is_symlink() {
            put(&mut tree, place.as_ref(), Node::Link(fs::read_link(entry.path())?));
        } else if kind.is_dir() {
            put(&mut tree, place.as_ref(), OPEN_DIRECTORY);
            binds.push((entry.path(), Path::new("/").join(place)));
        }
    }
    if binds.len() > IMAGE_DIRECTORIES_MAX {
        let text = format!("an image has at most {IMAGE_DIRECTORIES_MAX} top-level directories");
        return Err(io::Error::other(text));
    }
    binds.sort();
    let rootfs = create_skeleton(parent, &tree)?;
    // Mounted after the image's `/etc`, which contains them.
    binds.extend(TABLES.map(|table| (rootfs.join(table), Path::new("/").join(table))));
    Ok(Base { rootfs, binds, tree: Some(name.to_owned()) })
}

/// Creates the skeleton unless it exists. Returns its path.
fn create_skeleton(parent: &Path, tree: &Tree) -> io::Result<PathBuf> {
    let path = parent.join(format!("rootfs-{}", digest(tree)));
    if path.is_dir() {
        return Ok(path);
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let unnamed = parent.join(format!(".rootfs-{}-{number}", std::process::id()));
    remove_dir(&unnamed)?;
    write(&unnamed, tree)?;
    match fs::rename(&unnamed, &path) {
        // Another process of the service created the same skeleton meanwhile.
        Err(_) if path.is_dir() => remove_dir(&unnamed)?,
        renamed => renamed?,
    }
    Ok(path)
}

/// Top-level directories of this machine that a merged `/usr` replaces by links.
fn usr_places() -> impl Iterator<Item = PathBuf> {
    USR_MERGED.into_iter().map(|name| Path::new("/").join(name))
}

/// Entries of every skeleton.
fn common() -> Tree {
    let mut tree = Tree::new();
    let init_places =
        [CONTROL_DIR, OUTPUT_DIR, EGRESS_DIR, WORKSPACE, SKILLS].map(|path| path.trim_start_matches('/'));
    for path in DIRECTORIES.into_iter().chain(init_places) {
        put(&mut tree, path.as_ref(), OPEN_DIRECTORY);
    }
    // The runtime gives a new tmpfs the mode of the directory below it.
    put(&mut tree, "tmp".as_ref(), Node::Directory { mode: 0o1777 });
    for (path, content) in generated() {
        put(&mut tree, path.as_ref(), Node::File { content: content.into_bytes(), mode: 0o644 });
    }
    put(&mut tree, inside(PROGRAM), Node::File { content: INIT.to_vec(), mode: 0o755 });
    put(&mut tree, inside(OOM_COUNTER), Node::File { content: Vec::new(), mode: 0o444 });
    tree
}

fn plan_of_host() -> io::Result<Tree> {
    let mut tree = common();
    for path in OF_HOST {
        put(&mut tree, path.as_ref(), OPEN_DIRECTORY);
    }
    for place in usr_places() {
        let name = place.strip_prefix("/").unwrap_or(&place);
        if let Ok(target) = fs::read_link(&place) {
            put(&mut tree, name, Node::Link(target));
        } else if place.is_dir() {
            put(&mut tree, name, OPEN_DIRECTORY);
        }
    }
    put(&mut tree, "var/tmp".as_ref(), Node::Link("/tmp".into()));
    for place in COPIED {
        copy(&mut tree, Path::new(place), COPY_DEPTH_MAX)?;
    }
    // Generated tables replace copies from the machine.
    for (path, content) in generated() {
        put(&mut tree, path.as_ref(), Node::File { content: content.into_bytes(), mode: 0o644 });
    }
    Ok(tree)
}

/// User tables and similar files; they reveal nothing about the host.
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
        // No resolver: the egress proxy resolves names.
        ("etc/resolv.conf", String::new()),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n".to_owned()),
        ("etc/shells", "/bin/sh\n/bin/bash\n".to_owned()),
        ("etc/profile", "umask 022\n".to_owned()),
        // The workspace may have been created by another user.
        ("etc/gitconfig", "[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n".to_owned()),
    ]
}

fn inside(path: &str) -> &Path {
    Path::new(path.trim_start_matches('/'))
}

/// Adds an entry and its parent directories.
fn put(tree: &mut Tree, path: &Path, node: Node) {
    for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        tree.entry(above.to_owned()).or_insert(OPEN_DIRECTORY);
    }
    tree.insert(path.to_owned(), node);
}

/// Adds a path of the host; links stay links. Missing and unreadable files are skipped. A link to a path
/// outside of the skeleton dangles.
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
    // In path order, a directory comes before its entries.
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
        let path = of_host(parent.path()).unwrap().rootfs;
        assert_eq!(of_host(parent.path()).unwrap().rootfs, path);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
        assert!(path.join("etc/passwd").is_file() && path.join("home/agent").is_dir());
        assert_eq!(fs::read_link(path.join("var/tmp")).unwrap(), Path::new("/tmp"));
    }

    #[test]
    fn nothing_secret_of_the_host_is_in_it() {
        let tree = plan_of_host().unwrap();
        for path in ["etc/shadow", "etc/ssh", "etc/ssl/private", "etc/machine-id", "etc/sudoers"] {
            assert!(!tree.contains_key(Path::new(path)), "{path} is visible");
        }
        let empty = |path: &str| tree.keys().filter(|key| key.starts_with(path)).count() == 1;
        assert!(empty("root") && empty("opt") && empty("usr"));
    }

    #[test]
    fn of_an_image_its_programs_are_shown_and_not_its_tables() {
        let ground = tempfile::tempdir().unwrap();
        let root = ground.path().join("image");
        for directory in ["usr/bin", "etc", "home/somebody", "tmp", "root", "dev", "proc"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        symlink("usr/bin", root.join("bin")).unwrap();
        symlink("/etc/shadow", root.join("leads-out")).unwrap();
        fs::write(root.join("secret"), "of the image's maker").unwrap();
        let base = of_image(ground.path(), &root, "one").unwrap();
        let to: Vec<_> = base.binds.iter().map(|(_, to)| to.to_str().unwrap()).collect();
        assert_eq!(to[..2], ["/etc", "/usr"]);
        assert_eq!(to[2..], TABLES.map(|table| format!("/{table}")));
        let from = base.binds.iter().map(|(from, _)| from);
        assert!(from.skip(2).all(|from| from.starts_with(&base.rootfs)));
        assert_eq!(fs::read_link(base.rootfs.join("bin")).unwrap(), Path::new("usr/bin"));
        // The target is a path in the sandbox.
        assert_eq!(fs::read_link(base.rootfs.join("leads-out")).unwrap(), Path::new("/etc/shadow"));
        assert!(!base.rootfs.join("secret").exists() && !base.rootfs.join("home/somebody").exists());
    }
}
