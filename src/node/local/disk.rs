//! The disk of one session: its files and their metadata.
//!
//! Called by `local`. The sandbox can write the files, so this module opens none of them. They are in a file
//! system of their own where possible (`volume`), otherwise in a directory. Everything else is accessible
//! only to the service.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::PathBuf,
    time::Instant,
};

use super::{
    layout::{IdRange, Layout, make_dir},
    unavailable,
};
use crate::{
    base::limit,
    domain::{OrgId, SandboxId, SessionId},
    sandbox::Fault,
};

/// Reason of a fault while another process has the lock of a disk.
pub(super) const DISK_LOCKED: &str = "another sandbox is being created on the same disk";

/// Exclusive lock of a disk: only its holder creates or erases there. `drop` unlocks explicitly, because
/// closing the descriptor does not suffice: a program that is being started holds a copy of each descriptor.
pub(super) struct DiskLock(File);

impl Drop for DiskLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Paths of a session's disk; they may not exist.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub root: PathBuf,
    /// File with the file system of the files, where they have one of their own.
    pub image: PathBuf,
    /// Mount point of `image`, or the directory that replaces it.
    pub files: PathBuf,
    pub workspace: PathBuf,
    pub home: PathBuf,
    /// Skills of the session; a command cannot write here.
    pub skills: PathBuf,
    /// Stored output of the sandbox's commands; init bounds it, and it is removed with the sandbox.
    pub output: PathBuf,
}

impl Layout {
    /// Returns the disk of a session.
    pub(super) fn disk(&self, org: OrgId, session: SessionId) -> Disk {
        let root = self.disks().join(org.uuid().to_string()).join(session.uuid().to_string());
        Disk::at(root)
    }
}

impl Disk {
    pub(super) fn at(root: PathBuf) -> Self {
        let files = root.join("files");
        Self {
            image: root.join("image"),
            workspace: files.join("workspace"),
            home: files.join("home"),
            skills: files.join("skills"),
            files,
            output: root.join("output"),
            root,
        }
    }

    /// Creates the directory of the disk.
    pub(super) fn make_root(&self) -> io::Result<()> {
        make_dir(&self.root, 0o700)
    }

    /// Files that a sandbox can write, and their metadata.
    pub(super) fn parts(&self) -> [PathBuf; 5] {
        let Self { root, image, files, output, .. } = self;
        [image.clone(), files.clone(), output.clone(), root.join("sandbox"), self.incomplete()]
    }

    /// Creates missing directories, owned by the session's ids; with `None`, the engine changes the owner
    /// later. Existing directories keep their owner and content. Only directories that no sandbox can replace
    /// are touched.
    pub(super) fn prepare(&self, ids: Option<IdRange>) -> io::Result<()> {
        make_dir(&self.files, 0o700)?;
        let Some(ids) = ids else {
            [&self.workspace, &self.skills].into_iter().try_for_each(|path| make_dir(path, 0o755))?;
            return [&self.home, &self.output].into_iter().try_for_each(|path| make_dir(path, 0o700));
        };
        for (path, owner) in [
            (&self.workspace, ids.command()),
            (&self.home, ids.command()),
            (&self.skills, ids.first),
            (&self.output, ids.first),
        ] {
            make_dir(path, 0o700)?;
            chown(path, Some(owner), Some(owner))?;
        }
        for path in [&self.workspace, &self.skills] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Moves the files of a disk in the layout without `files/` to their current paths.
    pub(super) fn migrate_layout(&self) -> io::Result<()> {
        let (workspace, home) = (self.root.join("workspace"), self.root.join("home"));
        if self.workspace.exists() || !workspace.exists() {
            return Ok(());
        }
        make_dir(&self.files, 0o700)?;
        if home.exists() {
            fs::rename(home, &self.home)?;
        }
        // Rename this one last: until then the old layout is detected again.
        fs::rename(workspace, &self.workspace)
    }

    /// Whether the files have a file system of their own, mounted or not.
    pub(super) fn has_image(&self) -> bool {
        self.image.exists()
    }

    /// Whether that file system is mounted.
    pub(super) fn is_mounted(&self) -> bool {
        match (fs::symlink_metadata(&self.files), fs::symlink_metadata(&self.root)) {
            (Ok(files), Ok(root)) => files.dev() != root.dev(),
            (Ok(_) | Err(_), _) => false,
        }
    }

    /// Takes the disk's lock; `None` while another process holds it or if the disk was just erased.
    pub(super) fn try_lock_disk(&self) -> io::Result<Option<DiskLock>> {
        let path = self.root.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let held = DiskLock(file);
        let is_in_place = fs::metadata(path).is_ok_and(|place| {
            held.0.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (place.dev(), place.ino()))
        });
        Ok(is_in_place.then_some(held))
    }

    /// Takes the disk's lock. Waits for its holder: another process of the service, or a worker that lost the session
    /// without noticing.
    pub(super) async fn lock(&self) -> Result<DiskLock, Fault> {
        let until = Instant::now() + limit::SANDBOX_START_TIMEOUT;
        loop {
            self.make_root().map_err(|error| unavailable("the session's disk cannot be created", &error))?;
            match self.try_lock_disk() {
                Ok(Some(held)) => return Ok(held),
                Ok(None) if Instant::now() < until => tokio::time::sleep(limit::SANDBOX_START_POLL.1).await,
                Ok(None) => return Err(Fault::Unavailable(DISK_LOCKED.to_owned())),
                // Erased between `make_root` and `try_lock_disk`.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(unavailable("the session's disk cannot be locked", &error)),
            }
        }
    }

    /// The last sandbox created on this disk.
    pub(super) fn latest_sandbox(&self) -> Option<SandboxId> {
        fs::read_to_string(self.root.join("sandbox")).ok()?.parse().ok()
    }

    /// Whether the files are usable: changed last by one of these sandboxes, complete, owned by these ids.
    pub(super) fn is_usable_by(&self, sandboxes: &[SandboxId], ids: IdRange) -> bool {
        let is_own = |path: &PathBuf| {
            fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == ids.command())
        };
        is_own(&self.workspace)
            && is_own(&self.home)
            && !self.is_incomplete()
            && self.latest_sandbox().is_some_and(|latest| sandboxes.contains(&latest))
    }

    /// Whether the files come from a checkpoint whose restore did not finish.
    pub(super) fn is_incomplete(&self) -> bool {
        self.incomplete().exists()
    }

    /// Marks the files as unusable, before the first of them exists.
    pub(super) fn begin_restore(&self) -> io::Result<()> {
        fs::write(self.incomplete(), "")
    }

    /// Marks the files as complete.
    pub(super) fn end_restore(&self) -> io::Result<()> {
        match fs::remove_file(self.incomplete()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn incomplete(&self) -> PathBuf {
        self.root.join("incomplete")
    }

    /// Records the sandbox that is about to be created, before any part of it exists.
    pub(super) fn record_sandbox(&self, sandbox: SandboxId) -> io::Result<()> {
        let beside = self.root.join("sandbox.new");
        fs::write(&beside, sandbox.to_string())?;
        fs::rename(beside, self.root.join("sandbox"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_held_by_one_until_it_is_let_go_or_erased() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::at(root.path().join("disk"));
        fs::create_dir(&disk.root).unwrap();
        let held = disk.try_lock_disk().unwrap();
        assert!(held.is_some() && disk.try_lock_disk().unwrap().is_none());
        drop(held);
        let erasing = disk.try_lock_disk().unwrap();
        assert!(erasing.is_some());
        fs::remove_dir_all(&disk.root).unwrap();
        assert!(disk.try_lock_disk().is_err(), "there is no such disk");
        fs::create_dir(&disk.root).unwrap();
        assert!(disk.try_lock_disk().unwrap().is_some(), "the new one is not the one that was erased");
    }

    #[test]
    fn files_of_an_older_disk_are_found_at_their_new_place() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::at(root.path().to_owned());
        disk.migrate_layout().unwrap();
        assert!(!disk.files.exists(), "there is nothing to move");
        for (place, text) in [("workspace", "work"), ("home", "habits")] {
            fs::create_dir(root.path().join(place)).unwrap();
            fs::write(root.path().join(place).join("note"), text).unwrap();
        }
        for _ in 0..2 {
            disk.migrate_layout().unwrap();
            assert_eq!(fs::read_to_string(disk.workspace.join("note")).unwrap(), "work");
            assert_eq!(fs::read_to_string(disk.home.join("note")).unwrap(), "habits");
        }
    }
}
