//! The session's files as one tar archive in both directions; also any directory of the sandbox, and the session's
//! files as a list and one by one.
//!
//! Called by the file helper, which runs as the command's user, with the caller's connection. The archive is
//! a stream of frames, so that a failure in the middle can still be reported. Names in a session's archive
//! start with `workspace` or `home`, independent of the paths of this sandbox. Names in a caller's own
//! archive are relative to the directory.
//!
//! Metadata that GNU tar lacks is in PAX headers: the modification time in nanoseconds, and extended
//! attributes as `SOJOURN.xattr.<name>`, name and value in hexadecimal (readers split these headers at line
//! ends, which a value may contain).

mod fetch;
mod pack;
mod scan;
mod unpack;

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use rustix::{
    fs::{Dir, DirEntry, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat},
    io::Errno,
    path::Arg,
};
use sojourn_init::{
    protocol::{ROOTS, SKILLS, SKILLS_LIST},
    scan::PATH_BYTES_MAX,
};

use crate::usage::SpaceLeft;

/// Maximum length of an entry's name in bytes: a path is opened in one call when it is unpacked.
const NAME_BYTES_MAX: usize = PATH_BYTES_MAX;
/// Maximum number of entries of one archive: a helper stores each directory until the end.
const ENTRIES_MAX: u64 = 2_000_000;
/// Size of one part in bytes.
const PART_BYTES: usize = 256 << 10;
/// Timeout for the peer to send or receive a part.
const PART_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
/// PAX key prefix of an extended attribute.
const ATTRIBUTE: &str = "SOJOURN.xattr.";
/// Namespace of attributes that a command's user may set.
const OWN_ATTRIBUTES: &str = "user.";

/// Sends the session's files.
pub(crate) fn pack(caller: &mut UnixStream) -> io::Result<()> {
    caller.set_write_timeout(Some(PART_TIMEOUT))?;
    pack::run(caller)
}

/// Unpacks the session's files into empty directories.
pub(crate) fn unpack(caller: &mut UnixStream, space_left: SpaceLeft) -> io::Result<()> {
    caller.set_read_timeout(Some(PART_TIMEOUT))?;
    unpack::run(caller, space_left)
}

/// Sends the content of a directory.
pub(crate) fn read_tree(caller: &mut UnixStream, path: &Path) -> io::Result<()> {
    caller.set_write_timeout(Some(PART_TIMEOUT))?;
    pack::tree(caller, path)
}

/// Sends a list of the session's files.
pub(crate) fn scan(caller: &mut UnixStream, entries_max: u64) -> io::Result<()> {
    caller.set_write_timeout(Some(PART_TIMEOUT))?;
    scan::run(caller, entries_max)
}

/// Sends the content of some of the session's files.
pub(crate) fn fetch(caller: &mut UnixStream, paths: &[Vec<u8>]) -> io::Result<()> {
    caller.set_write_timeout(Some(PART_TIMEOUT))?;
    fetch::run(caller, paths)
}

/// Unpacks files into a directory, over existing files; creates the directory if missing.
pub(crate) fn write_tree(caller: &mut UnixStream, path: &Path, space_left: SpaceLeft) -> io::Result<()> {
    caller.set_read_timeout(Some(PART_TIMEOUT))?;
    unpack::tree(caller, path, space_left)
}

/// Replaces the content of the skills' directory. An archive that breaks off leaves a part of it, without the list that is
/// its last file.
pub(crate) fn write_skills(caller: &mut UnixStream) -> io::Result<()> {
    let skills = Path::new(SKILLS);
    // A helper of an earlier call may still write: of two lists only one may be the last.
    let directory = fs::File::open(skills)?;
    flock(&directory, FlockOperation::LockExclusive)?;
    match fs::remove_file(skills.join(SKILLS_LIST)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    for entry in fs::read_dir(skills)? {
        let entry = entry?;
        let is_directory = entry.file_type()?.is_dir();
        if is_directory { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    write_tree(caller, skills, SpaceLeft::of(None))
}

/// Flags that open an entry without following a link. No `O_DIRECTORY`: with it, gVisor follows the link
/// despite `O_NOFOLLOW`.
const AS_IT_IS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a directory without following a link.
fn open_directory(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    match openat(parent, name, AS_IT_IS, Mode::empty()) {
        Ok(opened) if is_directory(&opened)? => Ok(opened),
        Ok(_) | Err(Errno::LOOP) => Err(Errno::NOTDIR),
        Err(error) => Err(error),
    }
}

fn is_directory(opened: &OwnedFd) -> Result<bool, Errno> {
    Ok(FileType::from_raw_mode(fstat(opened)?.st_mode) == FileType::Directory)
}

/// Sorted names of the entries of a directory that `is_wanted`.
fn names(
    directory: &OwnedFd,
    mut is_wanted: impl FnMut(&DirEntry) -> io::Result<bool>,
) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") && is_wanted(&entry)? {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Times of the last change of the content, and of content or state: nanoseconds since 1970, or the end of the range.
fn times(stat: &Stat) -> (i64, i64) {
    let nanos =
        |seconds: i64, nanos: u64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos.cast_signed());
    (nanos(stat.st_mtime, stat.st_mtime_nsec), nanos(stat.st_ctime, stat.st_ctime_nsec))
}

/// Whether an entry was removed or replaced by another type since its name was read.
fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR))
}

fn refused(words: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, words.into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.iter().map(|&digit| (digit as char).to_digit(16)).collect::<Option<Vec<_>>>()?;
    if digits.len() % 2 == 1 {
        return None;
    }
    Some(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(hex(&all).as_bytes()), Some(all));
        assert_eq!((unhex(b"0"), unhex(b"0g")), (None, None));
    }
}
