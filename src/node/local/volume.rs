//! Volumes: file systems of limited size for the files of sessions.
//!
//! Called by `local`. Each is an ext4 in a sparse file, mounted through a loop device. Formatting takes
//! longer than a sandbox may take to start, so a template is formatted once per size and copied. Every step
//! can be repeated after a crash: an image gets its name only when complete, a mounted one is not mounted
//! again, and the kernel releases the loop device with the mount. A sandbox writes files, never the image, so
//! the kernel parses only structures that it wrote itself.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{SeekFrom as Seeking, seek},
    mount::{UnmountFlags, unmount},
    process::geteuid,
};
use tokio::{process::Command, time::timeout};

use super::{disk::Disk, in_blocking_thread, layout::make_dir, loopback, runtime, unavailable};
use crate::{
    base::limit::{DISK_TEMPLATES_MAX, VOLUME_COMMAND_TIMEOUT},
    sandbox::Fault,
};

/// In the name of a template; change it with the format.
const FORMAT: &str = "ext4-1";
/// No reserved blocks, lazily initialized tables, a 4 MiB journal, no space for resizing: every sandbox
/// copies the size of the template.
const MKFS: [&str; 10] = [
    "-q",
    "-F",
    "-m",
    "0",
    "-E",
    "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
    "-J",
    "size=4",
    "-O",
    "^resize_inode",
];
/// Do not initialize tables in the background, and return freed blocks to the host's file system.
const OPTIONS: &str = "nosuid,nodev,noinit_itable,discard";
/// Exit codes of e2fsck after which the file system is consistent.
const FIXED: [i32; 4] = [0, 1, 2, 3];
const COPY_BYTES: usize = 64 << 10;

/// Tools for creating and mounting volumes.
#[derive(Clone, Debug)]
pub(super) struct Volumes {
    templates: PathBuf,
    mkfs: PathBuf,
    fsck: PathBuf,
    mount: PathBuf,
}

impl Volumes {
    /// Checks that volumes are supported.
    ///
    /// # Errors
    /// Reason why they are not, for the log.
    pub(super) fn find(run_dir: &Path) -> Result<Self, String> {
        let program = |name: &str| runtime::find_program(name).ok_or_else(|| format!("{name} was not found"));
        if !geteuid().is_root() {
            return Err("mounting a file system needs root".to_owned());
        }
        loopback::look()?;
        Ok(Self {
            templates: run_dir.join("templates"),
            mkfs: program("mkfs.ext4")?,
            fsck: program("e2fsck")?,
            mount: program("mount")?,
        })
    }

    /// Creates an empty file system of this size and mounts it. `held` is dropped when nothing writes to the image any
    /// more, also if the future is dropped before: it is the lock of the disk.
    pub(super) async fn make(&self, disk: &Disk, bytes: u64, held: impl Send + 'static) -> Result<(), Fault> {
        let template = self.template(bytes).await?;
        let image = disk.image.clone();
        let copied = in_blocking_thread(move || {
            let _held = held;
            let beside = image.with_extension("new");
            copy(&template, &beside)?;
            fs::rename(beside, image)
        });
        copied.await.map_err(|error| unavailable("its file system cannot be created", &error))?;
        self.mount(disk).await
    }

    /// Mounts the existing file system, repairing it if needed. Returns whether its files are usable.
    pub(super) async fn open(&self, disk: &Disk) -> Result<bool, Fault> {
        if disk.is_mounted() {
            return Ok(true);
        }
        let Err(fault) = self.mount(disk).await else { return Ok(true) };
        // A power failure may have left it inconsistent.
        let status = run(Command::new(&self.fsck).arg("-p").arg(&disk.image), Stdio::null()).await?;
        if status.is_some_and(|code| FIXED.contains(&code)) {
            return self.mount(disk).await.map(|()| true);
        }
        tracing::error!(disk = %disk.root.display(), %fault, "a session's file system is damaged: discarding it");
        Ok(false)
    }

    async fn mount(&self, disk: &Disk) -> Result<(), Fault> {
        make_dir(&disk.files, 0o700).map_err(|error| unavailable("its files cannot be created", &error))?;
        let image = disk.image.clone();
        let attached = in_blocking_thread(move || loopback::attach(&image)).await;
        let device = attached.map_err(|error| unavailable("its file system cannot be mounted", &error))?;
        let mut mount = Command::new(&self.mount);
        mount.args(["-t", "ext4", "-o", OPTIONS]).arg(&device.path).arg(&disk.files);
        // Pass the device to the program as stdin: if `mount` outlives the service, the device cannot be
        // reused for another file meanwhile.
        match run(&mut mount, device.file.into()).await? {
            Some(0) => Ok(()),
            code => Err(Fault::Unavailable(format!(
                "its file system cannot be mounted: mount exited with {code:?}"
            ))),
        }
    }

    /// Formatted image of this size; created if missing.
    async fn template(&self, bytes: u64) -> Result<PathBuf, Fault> {
        let path = self.templates.join(format!("{FORMAT}-{bytes}"));
        if path.exists() {
            return Ok(path);
        }
        let lay = || -> io::Result<PathBuf> {
            make_dir(&self.templates, 0o700)?;
            evict_templates(&self.templates)?;
            let beside = beside(&path);
            File::create(&beside)?.set_len(bytes)?;
            Ok(beside)
        };
        let failed = |error: io::Error| unavailable("a file system cannot be formatted", &error);
        let beside = lay().map_err(failed)?;
        let formatted = run(Command::new(&self.mkfs).args(MKFS).arg(&beside), Stdio::null()).await;
        match formatted {
            Ok(Some(0)) => fs::rename(&beside, &path).map_err(failed).map(|()| path),
            Ok(code) => {
                let _ = fs::remove_file(&beside);
                Err(Fault::Unavailable(format!(
                    "a file system cannot be formatted: mkfs.ext4 exited with {code:?}"
                )))
            }
            Err(fault) => {
                let _ = fs::remove_file(&beside);
                Err(fault)
            }
        }
    }
}

/// Unmounts a session's files, if they are mounted.
pub(super) async fn close(disk: &Disk) -> Result<(), Fault> {
    let disk = disk.clone();
    let closed = in_blocking_thread(move || {
        // A crash may have left more than one mount there.
        while disk.is_mounted() {
            unmount(&disk.files, UnmountFlags::NOFOLLOW)?;
        }
        Ok(())
    });
    closed.await.map_err(|error| unavailable("the session's files cannot be unmounted", &error))
}

/// Unique temporary name, also across processes of the service.
fn beside(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    path.with_extension(format!("new-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Removes the oldest templates: there is one for each size that organizations use.
fn evict_templates(templates: &Path) -> io::Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(templates)? {
        let entry = entry?;
        found.push((entry.metadata()?.modified()?, entry.path()));
    }
    found.sort();
    let surplus = (found.len() + 1).saturating_sub(DISK_TEMPLATES_MAX);
    for (_, path) in &found[..surplus] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Copies a sparse file and preserves its holes.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let bytes = from.metadata()?.len();
    to.set_len(bytes)?;
    let mut chunk = vec![0; COPY_BYTES];
    let mut at = 0;
    loop {
        let begin = match seek(&from, Seeking::Data(at)) {
            Ok(begin) => begin,
            // Only a hole is left.
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = seek(&from, Seeking::Hole(begin))?;
        from.seek(SeekFrom::Start(begin))?;
        to.seek(SeekFrom::Start(begin))?;
        let mut left = (&from).take(end - begin);
        loop {
            match left.read(&mut chunk)? {
                0 => break,
                length => to.write_all(&chunk[..length])?,
            }
        }
        at = end;
    }
}

/// Runs a program and returns its exit code; `None` when a signal ended it.
async fn run(command: &mut Command, stdin: Stdio) -> Result<Option<i32>, Fault> {
    let failed = |error: io::Error| unavailable("a file system tool did not start", &error);
    let child = command
        .env_clear()
        .env("PATH", runtime::PATH)
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    match timeout(VOLUME_COMMAND_TIMEOUT, child.map_err(failed)?.wait()).await {
        Ok(status) => Ok(status.map_err(failed)?.code()),
        Err(_) => Err(Fault::Unavailable(format!(
            "a file system tool did not end within {VOLUME_COMMAND_TIMEOUT:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::MetadataExt,
        time::{Duration, SystemTime},
    };

    use super::*;

    #[test]
    fn a_copy_has_the_same_bytes_and_holes() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let mut file = File::create(&from).unwrap();
        file.set_len(8 << 20).unwrap();
        for at in [0u64, 1 << 20, (5 << 20) + 12_345] {
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&vec![at as u8 | 1; 70_000]).unwrap();
        }
        copy(&from, &to).unwrap();
        assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
        let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
        assert!(blocks(&to) * 512 < 1 << 20, "{} blocks", blocks(&to));
    }

    #[test]
    fn only_so_many_templates_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        for at in 0..DISK_TEMPLATES_MAX + 3 {
            fs::write(directory.path().join(format!("{at:03}")), "").unwrap();
            let file = File::open(directory.path().join(format!("{at:03}"))).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(at as u64)).unwrap();
        }
        evict_templates(directory.path()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), DISK_TEMPLATES_MAX - 1);
        assert!(!directory.path().join("003").exists() && directory.path().join("018").exists());
    }
}
