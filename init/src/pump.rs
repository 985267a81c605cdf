//! Copy of a command's output from a pipe to a size-limited file.
//!
//! Called by the runner. The command holds only the pipe, never the file, so it cannot change stored output,
//! and disk usage is bounded.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
    thread,
    time::Duration,
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Bytes per read: the size of a pipe.
const CHUNK_BYTES: usize = 64 << 10;
/// Pause after as many bytes that are not stored: a command that writes without end takes 256 MiB/s, and not two processors.
const DISCARD_PAUSE: Duration = Duration::from_millis(1);
const DISCARD_BYTES: u64 = 256 << 10;
/// Reads of a drain: enough for the content of the pipe at the command's end, while processes that it left
/// may continue writing.
const DRAIN_READS: usize = 2;

/// A pipe, its file, and byte counts.
pub(crate) struct Pump {
    pipe: Option<File>,
    file: File,
    kept_bytes: u64,
    kept_bytes_max: u64,
    seen_bytes: u64,
    /// Number of bytes that were not stored at which the next pause comes.
    pauses_at: u64,
}

impl Pump {
    /// Creates the file at `path`; the pipe is connected later.
    pub(crate) fn new(path: &Path, kept_bytes_max: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self { pipe: None, file, kept_bytes: 0, kept_bytes_max, seen_bytes: 0, pauses_at: DISCARD_BYTES })
    }

    /// Connects the reading end of the command's pipe.
    pub(crate) fn connect(&mut self, pipe: impl Into<OwnedFd>) -> io::Result<()> {
        let pipe = pipe.into();
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        self.pipe = Some(File::from(pipe));
        Ok(())
    }

    /// Pipe to poll; `None` once all writers have closed it.
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Bytes that the command wrote, including those that were not stored.
    pub(crate) fn seen_bytes(&self) -> u64 {
        self.seen_bytes
    }

    /// Reads one chunk. Returns whether more may be available immediately.
    pub(crate) fn take_chunk(&mut self) -> bool {
        let Some(pipe) = &mut self.pipe else {
            return false;
        };
        let mut chunk = [0; CHUNK_BYTES];
        match pipe.read(&mut chunk) {
            Ok(0) => {
                self.pipe = None;
                false
            }
            Ok(length) => {
                self.store(&chunk[..length]);
                if self.seen_bytes - self.kept_bytes >= self.pauses_at {
                    self.pauses_at += DISCARD_BYTES;
                    thread::sleep(DISCARD_PAUSE);
                }
                true
            }
            Err(error) => {
                if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                    self.pipe = None;
                }
                false
            }
        }
    }

    /// Reads the current content of the pipe.
    pub(crate) fn drain(&mut self) {
        for _ in 0..DRAIN_READS {
            if !self.take_chunk() {
                return;
            }
        }
    }

    /// Counts the bytes and stores them up to the limit.
    pub(crate) fn store(&mut self, bytes: &[u8]) {
        self.seen_bytes += bytes.len() as u64;
        let space_left = usize::try_from(self.kept_bytes_max - self.kept_bytes).unwrap_or(usize::MAX);
        let kept = &bytes[..bytes.len().min(space_left)];
        match self.file.write_all(kept) {
            Ok(()) => self.kept_bytes += kept.len() as u64,
            // A full disk must not stop the command: continue counting, store no more.
            Err(_) => self.kept_bytes_max = self.kept_bytes,
        }
    }
}
