//! Directory layout and ownership of the local provider.
//!
//! Called by the rest of `local`. There are two roots. The run directory contains what need not survive a
//! reboot (sockets, bundles, the runtime's state); the data directory contains the sessions' disks. A
//! sandbox's path follows from its id, a disk's path from organization and session. Each sandbox's owner is
//! recorded before any part of it exists.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{StatVfsMountFlags, statvfs},
    process::geteuid,
};
use sha2::{Digest, Sha256};
use sojourn_init::protocol::COMMAND_UID;
use uuid::Uuid;

use crate::{
    base::text,
    domain::{OrgId, SandboxId, SessionId},
    sandbox::Found,
};

/// Run directory of root.
const RUN: &str = "/run/sojourn";
/// Directory for root file systems of sandboxes, if the run directory is mounted noexec.
const SKELETONS: &str = "/var/lib/sojourn";
/// Directory of the disks, below the data directory.
const DISKS: &str = "sandboxes";
/// Below the directory of disks, for an ordinary user: the directory of root file systems, and the file with
/// the path of its run directory.
const SKELETON: &str = "skeleton";
const RUN_NOTE: &str = "run";

/// Directories of one provider.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    data_dir: PathBuf,
    run_dir: PathBuf,
}

/// Host user and group ids that one session's sandboxes use.
///
/// They are between the ranges that systemd allocates to containers and to foreign images, where nothing else
/// allocates (systemd's UIDS-GIDS document). The range is derived from the session, so that the files of its
/// disk have the same owner in each of its sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdRange {
    pub first: u32,
}

impl IdRange {
    /// No range: a sandbox's users have the host's own ids.
    pub(super) const HOST: Self = Self { first: 0 };
    /// Ids per range: root, the command's user, and unused ids.
    pub(super) const IDS: u32 = 4_096;
    /// First id of the first range.
    pub(super) const FIRST: u32 = 0x7000_0000;
    /// First id after the last range.
    pub(super) const END: u32 = 0x7ffd_0000;
    /// Owner range of image files: all the ids of a system, used by no sandbox.
    pub(super) const IMAGES: Self = Self { first: Self::END };
    /// Number of ids in `IMAGES`.
    pub(super) const OF_IMAGES: u32 = 65_536;

    /// Range of a session. Two sessions may share a range, but stay isolated: no sandbox sees another's files
    /// or processes.
    pub(super) fn of(session: SessionId) -> Self {
        let ranges = u128::from((Self::END - Self::FIRST) / Self::IDS);
        let index =
            u32::try_from(session.uuid().as_u128() % ranges).expect("a range's index is below 65,536");
        Self { first: Self::FIRST + index * Self::IDS }
    }

    /// Host id of the command's user.
    pub(super) const fn command(self) -> u32 {
        self.first + COMMAND_UID
    }
}

impl Layout {
    pub(super) fn new(data_dir: PathBuf, run_dir: PathBuf) -> Self {
        Self { data_dir, run_dir }
    }

    /// Default run directory: a short path, one per data directory. An ordinary user reuses that of the
    /// previous start, because its sandboxes may still run.
    pub(super) fn default_run_dir(data_dir: &Path) -> PathBuf {
        let digest = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
        let name = text::hex(&digest[..6]);
        let me = geteuid();
        if me.is_root() {
            return Path::new(RUN).join(name);
        }
        let before = fs::read_to_string(data_dir.join(DISKS).join(RUN_NOTE)).map(PathBuf::from).ok();
        if let Some(before) = before.filter(|before| before.is_dir()) {
            return before;
        }
        let is_own =
            |place: &PathBuf| place.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == me.as_raw());
        let places = [
            Some(PathBuf::from(RUN)),
            std::env::var_os("XDG_RUNTIME_DIR").map(|place| Path::new(&place).join("sojourn")),
        ];
        let usable = |place: &PathBuf| {
            place.is_absolute()
                && (is_own(place) || place.parent().is_some_and(|above| is_own(&above.to_owned())))
        };
        let place = places.into_iter().flatten().find(usable);
        place.unwrap_or_else(|| PathBuf::from(format!("/tmp/sojourn-{}", me.as_raw()))).join(name)
    }

    /// Creates the directories that every sandbox needs.
    pub(super) fn prepare(&self) -> io::Result<()> {
        make_dir(&self.disks(), 0o700)?;
        if geteuid().is_root() {
            make_dir(&self.run_dir, 0o711)?;
            check_traversable(&self.run_dir)?;
        } else {
            let parent = self.run_dir.parent().unwrap_or(&self.run_dir);
            make_dir(parent, 0o711)?;
            check_owner(parent)?;
            make_dir(&self.run_dir, 0o711)?;
            fs::write(self.disks().join(RUN_NOTE), self.run_dir.as_os_str().as_encoded_bytes())?;
        }
        make_dir(&self.sandboxes(), 0o700)?;
        make_dir(&self.runtime_state(), 0o700)
    }

    /// Directory of the sandboxes' root file systems: the first candidate that is not mounted noexec, as
    /// `/run` is on many machines.
    pub(super) fn skeletons(&self) -> io::Result<PathBuf> {
        let other = if geteuid().is_root() { PathBuf::from(SKELETONS) } else { self.disks().join(SKELETON) };
        let places = match geteuid().is_root() {
            true => [self.run_dir.clone(), other],
            // Old files in a directory for temporary files may be deleted, so it is the second choice.
            false => [other, self.run_dir.clone()],
        };
        for place in &places {
            make_dir(place, 0o711)?;
            if !statvfs(place)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
                if geteuid().is_root() {
                    check_traversable(place)?;
                }
                return Ok(place.clone());
            }
        }
        let text = format!("{} and {} are mounted noexec", places[0].display(), places[1].display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    /// Whether a directory of this provider is below `place`.
    pub(super) fn is_below(&self, place: &Path) -> bool {
        self.data_dir.starts_with(place) || self.run_dir.starts_with(place)
    }

    pub(super) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Directory of the sessions' disks and their templates.
    pub(super) fn disks(&self) -> PathBuf {
        self.data_dir.join(DISKS)
    }

    /// State directory of the runtime.
    pub(super) fn runtime_state(&self) -> PathBuf {
        self.run_dir.join("runtime")
    }

    fn sandboxes(&self) -> PathBuf {
        self.run_dir.join("sandboxes")
    }

    /// Directory of the images' root file systems.
    pub(super) fn images(&self) -> PathBuf {
        self.data_dir.join("images")
    }

    /// Directory of the containers in which packages are installed.
    pub(super) fn installs(&self) -> PathBuf {
        self.run_dir.join("installs")
    }

    /// Records the image of a sandbox for as long as the sandbox exists.
    pub(super) fn record_tree(&self, sandbox: SandboxId, tree: Option<&str>) -> io::Result<()> {
        tree.map_or(Ok(()), |tree| fs::write(self.sandbox(sandbox).join("image"), tree))
    }

    /// Names of the images in use by sandboxes.
    pub(super) fn trees_in_use(&self) -> io::Result<BTreeSet<String>> {
        let sandboxes = names(&self.sandboxes())?.into_iter();
        Ok(sandboxes
            .filter_map(|name| fs::read_to_string(self.sandboxes().join(name).join("image")).ok())
            .collect())
    }

    /// Directory of a sandbox: its bundle, logs and control directory.
    pub(super) fn sandbox(&self, sandbox: SandboxId) -> PathBuf {
        self.sandboxes().join(sandbox.to_string())
    }

    /// Directory that a sandbox and its worker share.
    pub(super) fn control(&self, sandbox: SandboxId) -> PathBuf {
        self.sandbox(sandbox).join("control")
    }

    /// Directory of the egress socket and certificates; the sandbox cannot write to it.
    pub(super) fn egress(&self, sandbox: SandboxId) -> PathBuf {
        self.sandbox(sandbox).join("egress")
    }

    /// Temporary directory of a sandbox until its owner is written. It is named after the session, not the
    /// sandbox: `claim` for the session's next sandbox removes what a crash left there.
    pub(super) fn unclaimed(&self, session: SessionId) -> PathBuf {
        self.sandboxes().join(format!(".{session}"))
    }

    /// Creates the sandbox's directory together with its owner file, atomically. The caller holds the lock of
    /// the session's disk. With `None`, the engine changes the owner of the directories later.
    pub(super) fn claim(
        &self,
        sandbox: SandboxId,
        org: OrgId,
        session: SessionId,
        ids: Option<IdRange>,
    ) -> io::Result<()> {
        let unclaimed = self.unclaimed(session);
        remove_dir(&unclaimed)?;
        make_dir(&unclaimed, 0o700)?;
        fs::write(unclaimed.join("owner"), format!("{org} {session}"))?;
        fs::rename(&unclaimed, self.sandbox(sandbox))?;
        make_dir(&self.egress(sandbox), 0o755)?;
        let control = self.control(sandbox);
        make_dir(&control, 0o700)?;
        ids.map_or(Ok(()), |ids| chown(&control, Some(ids.first), Some(ids.first)))
    }

    /// Owner of a sandbox, if the sandbox exists.
    pub(super) fn owner(&self, sandbox: SandboxId) -> Option<(OrgId, SessionId)> {
        let text = fs::read_to_string(self.sandbox(sandbox).join("owner")).ok()?;
        let (org, session) = text.split_once(' ')?;
        Some((org.parse().ok()?, session.parse().ok()?))
    }

    /// Lists every sandbox, and every disk without a sandbox.
    pub(super) fn list(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for name in names(&self.sandboxes())? {
            let Ok(sandbox) = name.parse::<SandboxId>() else {
                continue;
            };
            if let Some((org, session)) = self.owner(sandbox) {
                found.push(Found { org, session, sandbox: Some(sandbox) });
            }
        }
        let with_sandbox: BTreeSet<_> = found.iter().map(|sandbox_| sandbox_.session).collect();
        for org in uuids(&self.disks())? {
            for session in uuids(&self.disks().join(org.to_string()))? {
                let (org, session) = (OrgId::from_uuid(org), SessionId::from_uuid(session));
                if !with_sandbox.contains(&session) {
                    found.push(Found { org, session, sandbox: None });
                }
            }
        }
        Ok(found)
    }
}

/// Removes a directory that no sandbox's command can write to, if it exists.
///
/// Another process of the service may be creating the file of a command's output in it: it is then emptied
/// again, at most `ATTEMPTS` times.
pub(super) fn remove_dir(path: &Path) -> io::Result<()> {
    const ATTEMPTS: u32 = 10;
    const PAUSE: Duration = Duration::from_millis(1);
    let mut attempt = 1;
    loop {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && attempt < ATTEMPTS => {
                attempt += 1;
                thread::sleep(PAUSE);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => return Ok(()),
        }
    }
}

/// Creates a directory with this mode, whatever the umask; missing parents get the default mode, because they
/// may be shared.
pub(super) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Checks that every user may traverse a path. Users of a sandbox must reach its root file system; the
/// directories above it are not readable for them.
fn check_traversable(path: &Path) -> io::Result<()> {
    for above in path.ancestors() {
        if fs::metadata(above)?.permissions().mode() & 0o001 == 0 {
            let text = format!("{} must be accessible to all users (mode o+x)", above.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
    }
    Ok(())
}

/// Checks that no other user may write to the directory of an ordinary user's sandboxes.
fn check_owner(parent: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(parent)?;
    if meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let text = format!("{} has another owner, or is writable for other users", parent.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn uuids(path: &Path) -> io::Result<Vec<Uuid>> {
    Ok(names(path)?.iter().filter_map(|name| name.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn every_session_gets_a_whole_range_of_unprivileged_ids(bits: u128) {
            let ids = IdRange::of(SessionId::from_uuid(Uuid::from_u128(bits)));
            assert!(ids.first >= IdRange::FIRST && ids.first + IdRange::IDS <= IdRange::END);
            assert_eq!(ids.first % IdRange::IDS, 0);
        }
    }

    #[test]
    fn a_directory_is_removed_while_files_are_created_in_it() {
        for _ in 0..200 {
            let parent = tempfile::tempdir().unwrap();
            let path = parent.path().join("output");
            fs::create_dir(&path).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| (0..50).for_each(|name| drop(fs::write(path.join(name.to_string()), b""))));
                remove_dir(&path).unwrap();
            });
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_run_directory_is_short_whatever_the_data_directory() {
        let run_dir = Layout::default_run_dir(Path::new(&format!("/{}", "a".repeat(150))));
        assert_eq!(run_dir.as_os_str().len(), "/run/sojourn/".len() + 12);
    }

    #[test]
    fn a_closed_way_to_the_run_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let layout = Layout::new(directory.path().join("data"), directory.path().join("run"));
        let error = layout.prepare().unwrap_err().to_string();
        assert!(error.starts_with(directory.path().to_str().unwrap()), "{error}");
    }

    #[test]
    fn a_claimed_sandbox_is_listed_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path().join("data"), directory.path().join("run"));
        layout.prepare().unwrap();
        let org = OrgId::from_uuid(Uuid::from_u128(1));
        let session = SessionId::from_uuid(Uuid::from_u128(2));
        let sandbox = SandboxId::from_uuid(Uuid::from_u128(3));
        layout.disk(org, session).make_root().unwrap();
        layout.disk(org, session).prepare(Some(IdRange::of(session))).unwrap();
        assert_eq!(layout.list().unwrap(), [Found { org, session, sandbox: None }]);
        layout.claim(sandbox, org, session, Some(IdRange::of(session))).unwrap();
        assert_eq!(layout.list().unwrap(), [Found { org, session, sandbox: Some(sandbox) }]);
        assert_eq!(layout.owner(sandbox), Some((org, session)));
    }

    #[test]
    fn a_sandbox_that_was_half_claimed_leaves_nothing_beside_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path().join("data"), directory.path().join("run"));
        layout.prepare().unwrap();
        let (org, session) = (OrgId::from_uuid(Uuid::from_u128(1)), SessionId::from_uuid(Uuid::from_u128(2)));
        // The process that created it ended before the owner was written.
        make_dir(&layout.unclaimed(session).join("egress"), 0o755).unwrap();
        assert_eq!(layout.list().unwrap(), []);
        let sandbox = SandboxId::from_uuid(Uuid::from_u128(3));
        layout.claim(sandbox, org, session, None).unwrap();
        assert_eq!(names(&layout.sandboxes()).unwrap(), [sandbox.to_string()]);
    }
}
