//! Copy of a command's input from a file to its pipe.
//!
//! Called by the runner. The server appends to the file, so input is never lost between two processes, and can be read
//! again; the command holds only the pipe.

use std::{
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::Path,
    process::ChildStdin,
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Bytes per write: the size of a pipe.
const CHUNK_BYTES: usize = 64 << 10;

/// A file, the pipe that gets its content, and how much of it the pipe got.
pub(crate) struct Feed {
    file: File,
    pipe: Option<ChildStdin>,
    given_bytes: u64,
    /// Whether the file may have more than the pipe got.
    has_more: bool,
}

impl Feed {
    /// Opens the file at `path`; the pipe is connected later.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, pipe: None, given_bytes: 0, has_more: true })
    }

    /// Connects the writing end of the command's pipe.
    pub(crate) fn connect(&mut self, pipe: ChildStdin) -> io::Result<()> {
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        self.pipe = Some(pipe);
        Ok(())
    }

    /// Notes that the file has grown.
    pub(crate) fn look(&mut self) {
        self.has_more = true;
    }

    /// Pipe to poll for writing; `None` while there is nothing to write, and once the command has closed it.
    pub(crate) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().filter(|_| self.has_more).map(AsFd::as_fd)
    }

    /// Writes as much as the pipe takes at once.
    pub(crate) fn give(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = [0; CHUNK_BYTES];
        match self.file.read_at(&mut chunk, self.given_bytes) {
            Ok(0) => self.has_more = false,
            Ok(length) => match pipe.write(&chunk[..length]) {
                Ok(written) => self.given_bytes += written as u64,
                Err(error) => {
                    if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                        self.pipe = None;
                    }
                }
            },
            Err(_) => self.pipe = None,
        }
    }
}
