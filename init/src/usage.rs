//! What the session's files take, and whether their disk has room.
//!
//! Where the disk has a size of its own, the kernel keeps it, and a runner only asks
//! whether it was reached. Where it is a directory of the host, the server starts
//! `sojourn-init usage` now and then, as the command's user, which adds it up.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    process::{ChildStdout, Command, Stdio},
};

use rustix::fs::statvfs;
use sojourn_init::protocol::{HOME, PROGRAM, WORKSPACE};

use crate::privilege;

/// Less than this is no room: what a program could not write any more.
const ROOM_BYTES: u64 = 1 << 20;
const ROOM_FILES: u64 = 8;
/// What a file takes beyond its blocks, so that empty ones are not for nothing.
const FILE_BYTES: u64 = 256;

/// Whether a write to the workspace would fail now.
pub fn is_full() -> bool {
    statvfs(WORKSPACE).is_ok_and(|disk| {
        disk.f_bavail.saturating_mul(disk.f_frsize) < ROOM_BYTES
            || (disk.f_files > 0 && disk.f_favail < ROOM_FILES)
    })
}

/// A helper that adds up what the files take.
pub struct Usage {
    pub pid: u32,
    printed: ChildStdout,
}

impl Usage {
    pub fn start() -> io::Result<Self> {
        let mut child =
            Command::new(PROGRAM).arg("usage").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let printed = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { pid: child.id(), printed })
    }

    /// The bytes, once it has ended; `None` when it was killed on the way.
    pub fn bytes(self) -> Option<u64> {
        let mut text = String::new();
        self.printed.take(32).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }
}

/// Prints the bytes that workspace and home take.
pub fn serve() -> io::Result<()> {
    privilege::become_command_user()?;
    writeln!(io::stdout(), "{}", taken())
}

/// What may still be written, for a helper that writes much at once: an archive could be
/// over before anybody looks. Without a size the disk has one of its own.
pub struct Room {
    disk_bytes: Option<u64>,
    left: u64,
}

impl Room {
    pub fn of(disk_bytes: Option<u64>) -> Self {
        Self { disk_bytes, left: 0 }
    }

    /// For one more file.
    pub fn take_file(&mut self) -> io::Result<()> {
        self.take(FILE_BYTES)
    }

    /// # Errors
    /// `StorageFull` when there is not as much.
    pub fn take(&mut self, bytes: u64) -> io::Result<()> {
        let Some(disk_bytes) = self.disk_bytes else { return Ok(()) };
        if self.left < bytes {
            // What took the place of other files has made room as well.
            self.left = disk_bytes.saturating_sub(taken());
        }
        self.left = self.left.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        Ok(())
    }
}

fn taken() -> u64 {
    let mut bytes = 0u64;
    let mut directories = vec![PathBuf::from(WORKSPACE), PathBuf::from(HOME)];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // Closed to its owner or too deep: nobody hides files there.
            Err(_) => return u64::MAX,
        };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            bytes = bytes.saturating_add(FILE_BYTES + meta.blocks().saturating_mul(512));
            if meta.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    bytes
}
