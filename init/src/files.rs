//! File operations, each in its own process as the command's user.
//!
//! Started by the server as `sojourn-init file ..` with the caller's connection as standard input; sends the
//! response itself. Whatever links or mounts a path contains, it is resolved inside the sandbox and with the
//! permissions of uid 1000. Only skills are written as uid 0, without capabilities, into a directory that no command
//! can write to.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            fs::{FileExt, OpenOptionsExt, PermissionsExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{fs::OFlags, stdio::stdout};
use sojourn_init::{
    frame,
    protocol::{Answer, FaultKind, WORKSPACE},
    scan,
};

use crate::{archive, privilege, some, usage::SpaceLeft};

/// Timeout for a caller to send or receive content.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a file part in one response: a frame without its JSON.
pub(crate) const PART_BYTES_MAX: usize = frame::BYTES_MAX - (64 << 10);

/// Executes one operation and sends its response: `read PATH OFFSET BYTES_MAX`, `write PATH BYTES`, `pack`,
/// `unpack DISK_BYTES`, `read-tree PATH`, `scan ENTRIES_MAX`, `fetch BYTES`, `write-tree PATH DISK_BYTES` or
/// `write-skills`.
pub(crate) fn serve(operation: &[&str]) -> io::Result<()> {
    match operation {
        ["write-skills"] => privilege::keep_nothing()?,
        _ => privilege::become_command_user()?,
    }
    let mut caller = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    caller.set_read_timeout(Some(TRANSFER_TIMEOUT))?;
    caller.set_write_timeout(Some(TRANSFER_TIMEOUT))?;
    let number = |text: &str| text.parse::<u64>().map_err(io::Error::other);
    let result = match operation {
        ["read", path, offset, bytes_max] => {
            let bytes_max = usize::try_from(number(bytes_max)?).unwrap_or(usize::MAX).min(PART_BYTES_MAX);
            read(&absolute(path), number(offset)?, bytes_max)
        }
        ["write", path, bytes] => {
            // Read everything first: a caller that breaks off must change nothing.
            let content = payload(&mut caller, number(bytes)?)?;
            write(&absolute(path), &content)
        }
        ["pack"] => {
            let packed = archive::pack(&mut caller);
            // Init continues all processes when it reads this, or when this process ends.
            let _ = rustix::io::write(stdout(), b"\n");
            packed.map(|()| (Answer::Done {}, Vec::new()))
        }
        ["unpack", disk_bytes] => {
            let space_left = SpaceLeft::of(some(number(disk_bytes)?));
            archive::unpack(&mut caller, space_left).map(|()| (Answer::Done {}, Vec::new()))
        }
        ["read-tree", path] => {
            archive::read_tree(&mut caller, &absolute(path)).map(|()| (Answer::Done {}, Vec::new()))
        }
        ["scan", entries_max] => {
            archive::scan(&mut caller, number(entries_max)?).map(|()| (Answer::Done {}, Vec::new()))
        }
        ["fetch", bytes] => {
            let paths = scan::decode_paths(&payload(&mut caller, number(bytes)?)?);
            let fetched = paths.and_then(|paths| archive::fetch(&mut caller, &paths));
            fetched.map(|()| (Answer::Done {}, Vec::new()))
        }
        ["write-tree", path, disk_bytes] => {
            let space_left = SpaceLeft::of(some(number(disk_bytes)?));
            archive::write_tree(&mut caller, &absolute(path), space_left)
                .map(|()| (Answer::Done {}, Vec::new()))
        }
        ["write-skills"] => archive::write_skills(&mut caller).map(|()| (Answer::Done {}, Vec::new())),
        _ => {
            let names = "read, write, pack, unpack, read-tree, scan, fetch, write-tree or write-skills";
            return Err(io::Error::other(format!("file needs {names}")));
        }
    };
    let (answer, payload) = result.unwrap_or_else(|error| (fault(&error), Vec::new()));
    frame::write(&mut caller, &answer, &payload)
}

/// Reads the payload of the call, which is still in the socket.
fn payload(caller: &mut UnixStream, bytes: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(frame::BYTES_MAX);
    let mut payload = vec![0; length];
    caller.read_exact(&mut payload)?;
    Ok(payload)
}

/// Resolves a relative path against the workspace.
fn absolute(path: &str) -> PathBuf {
    Path::new(WORKSPACE).join(path)
}

fn read(path: &Path, offset: u64, bytes_max: usize) -> io::Result<(Answer, Vec<u8>)> {
    // NONBLOCK: opening a named pipe without a writer must not block the helper.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut content = vec![0; bytes_max];
    let mut filled = 0;
    while filled < content.len() {
        match file.read_at(&mut content[filled..], offset.saturating_add(filled as u64))? {
            0 => break,
            length => filled += length,
        }
    }
    content.truncate(filled);
    Ok((Answer::File { size: meta.len() }, content))
}

/// Writes a temporary file and renames it, so that a reader sees the old content or the new.
fn write(path: &Path, content: &[u8]) -> io::Result<(Answer, Vec<u8>)> {
    // Follow a link: the caller means the file that it points to.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (Some(parent), Some(_)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
    };
    let mode = match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(meta) if !meta.is_file() => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok(meta) => meta.permissions().mode() & 0o777,
        Err(_) => 0o644,
    };
    fs::create_dir_all(parent)?;
    let beside = parent.join(format!(".sojourn-write-{}", std::process::id()));
    let written = write_new(&beside, content, mode).and_then(|()| fs::rename(&beside, &path));
    if let Err(error) = written {
        // Remove the temporary file: nothing else does.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    Ok((Answer::Done {}, Vec::new()))
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // A file of this name is left from a helper that was killed.
    let _ = fs::remove_file(path);
    let mut file = File::create_new(path)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)
}

fn fault(error: &io::Error) -> Answer {
    let kind = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => FaultKind::NotFound,
        _ => FaultKind::Refused,
    };
    Answer::fault(kind, error.to_string())
}
