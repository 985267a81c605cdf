//! Disk usage of the session's files.
//!
//! If the disk has its own file system, the kernel enforces the size, and a runner only checks whether it
//! is full. If it is a directory of the host, the server periodically starts `sojourn-init usage` as the
//! command's user, which adds up the sizes.

use std::{
    fs::{self, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{ChildStdout, Command, Stdio},
};

use rustix::fs::statvfs;
use sojourn_init::protocol::{HOME, PROGRAM, SKILLS, WORKSPACE};

use crate::privilege;

/// With less free space than this, the disk counts as full.
const FREE_BYTES: u64 = 1 << 20;
const FREE_FILES: u64 = 8;
/// Size counted per file in addition to its blocks, so that empty files count too.
const FILE_BYTES: u64 = 256;
/// Permissions that the owner of a directory needs to read it.
const OPEN: u32 = 0o500;
const MODE_BITS: u32 = 0o7777;
/// Attempts to read a directory whose permissions change meanwhile.
const MEASURE_ATTEMPTS_MAX: u32 = 8;

/// Whether writes to the workspace would fail.
pub(crate) fn is_full() -> bool {
    statvfs(WORKSPACE).is_ok_and(|disk| {
        disk.f_bavail.saturating_mul(disk.f_frsize) < FREE_BYTES
            || (disk.f_files > 0 && disk.f_favail < FREE_FILES)
    })
}

/// A helper process that measures disk usage.
pub(crate) struct Usage {
    pub pid: u32,
    /// Closed when the helper ends.
    pub printed: ChildStdout,
}

impl Usage {
    pub(crate) fn start() -> io::Result<Self> {
        let mut child =
            Command::new(PROGRAM).arg("usage").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let printed = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { pid: child.id(), printed })
    }

    /// Result of a helper that has ended, in bytes; `None` when it was killed.
    pub(crate) fn bytes(self) -> Option<u64> {
        let mut text = String::new();
        self.printed.take(32).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }
}

/// Prints the size of workspace, home and skills in bytes.
pub(crate) fn serve() -> io::Result<()> {
    privilege::act_as_command_user()?;
    writeln!(io::stdout(), "{}", taken())
}

/// Space left for a helper that writes many files at once: an archive could exceed the limit before the next
/// measurement. Without `disk_bytes`, the kernel enforces the limit.
pub(crate) struct SpaceLeft {
    disk_bytes: Option<u64>,
    left: u64,
}

impl SpaceLeft {
    pub(crate) fn of(disk_bytes: Option<u64>) -> Self {
        Self { disk_bytes, left: 0 }
    }

    /// Reserves space for one more file.
    pub(crate) fn take_file(&mut self) -> io::Result<()> {
        self.take(FILE_BYTES)
    }

    /// # Errors
    /// `StorageFull` when less space is left.
    pub(crate) fn take(&mut self, bytes: u64) -> io::Result<()> {
        let Some(disk_bytes) = self.disk_bytes else { return Ok(()) };
        if self.left < bytes {
            // Replaced files may have freed space, so measure again.
            self.left = disk_bytes.saturating_sub(taken());
        }
        self.left = self.left.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        Ok(())
    }
}

/// Size of all files. A part that cannot be measured counts as more than any limit, so that no files can be hidden
/// there.
fn taken() -> u64 {
    let mut bytes = 0u64;
    let mut steps = [WORKSPACE, HOME, SKILLS].map(|root| Step::Measure(root.into())).to_vec();
    while let Some(step) = steps.pop() {
        let measured = match step {
            Step::Measure(directory) => measure_open(&directory, &mut steps),
            Step::Close { directory, was } => close(&directory, was).map(|()| 0),
        };
        bytes = match measured {
            Ok(size) => bytes.saturating_add(size),
            // Removed or replaced meanwhile.
            Err(error) if is_gone(&error) => bytes,
            Err(_) => u64::MAX,
        };
    }
    bytes
}

/// Step of the walk; the last one is next.
#[derive(Clone)]
enum Step {
    Measure(PathBuf),
    /// Takes the owner's permissions of a directory back that its measurement needed.
    Close {
        directory: PathBuf,
        was: u32,
    },
}

/// Size of the entries of a directory. Again, when a command or another helper closes it meanwhile.
fn measure_open(directory: &Path, steps: &mut Vec<Step>) -> io::Result<u64> {
    for _ in 1..MEASURE_ATTEMPTS_MAX {
        match measure(directory, steps) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            measured => return measured,
        }
    }
    measure(directory, steps)
}

/// Size of the entries of a directory; adds its directories to the steps.
///
/// Directories without permissions for their owner are opened for as long as they are measured: they are not a
/// reason to end commands, and not a place for uncounted files.
fn measure(directory: &Path, steps: &mut Vec<Step>) -> io::Result<u64> {
    let was = fs::symlink_metadata(directory)?.mode() & MODE_BITS;
    if was & OPEN != OPEN {
        fs::set_permissions(directory, Permissions::from_mode(was | OPEN))?;
        steps.push(Step::Close { directory: directory.to_path_buf(), was });
    }
    let (mut bytes, before) = (0u64, steps.len());
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let meta = match entry.metadata() {
            Ok(meta) => meta,
            Err(error) if is_gone(&error) => continue,
            Err(error) => {
                steps.truncate(before);
                return Err(error);
            }
        };
        bytes = bytes.saturating_add(FILE_BYTES + meta.blocks().saturating_mul(512));
        if meta.is_dir() {
            steps.push(Step::Measure(entry.path()));
        }
    }
    Ok(bytes)
}

/// Restores the mode of a directory, unless a command changed it meanwhile.
fn close(directory: &Path, was: u32) -> io::Result<()> {
    if fs::symlink_metadata(directory)?.mode() & MODE_BITS == was | OPEN {
        fs::set_permissions(directory, Permissions::from_mode(was))?;
    }
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
