//! The session's files as one tar archive, and back; and any directory of the sandbox.
//!
//! Called by the file helper, as the command's user, with its caller's connection.
//! The archive is a stream of frames, so that a failure in its middle can still be
//! said. Names begin with `workspace` or `home`, whatever the paths of this sandbox are; those
//! of a caller's own archive with what the directory holds.
//!
//! What GNU tar does not carry is in PAX headers: the time of a change to the
//! nanosecond, and attributes as `SOJOURN.xattr.<name>`, name and value in hexadecimal
//! (readers split these headers at line ends, which a value may hold).

mod pack;
mod unpack;

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, OFlags, fstat, openat},
    io::Errno,
    path::Arg,
};
use sojourn_init::protocol::{HOME, WORKSPACE};

use crate::usage::Room;

/// What is kept: the name in the archive, the directory in the sandbox.
const ROOTS: [(&str, &str); 2] = [("workspace", WORKSPACE), ("home", HOME)];
/// Longest name of an entry, in bytes: a path is opened at once when it is read back.
const NAME_BYTES_MAX: usize = 4_000;
/// Entries of one archive: a helper remembers each directory until its end.
const ENTRIES_MAX: u64 = 2_000_000;
/// Bytes of one part.
const PART_BYTES: usize = 256 << 10;
/// How long the other end may take to send or take a part.
const PART_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
/// The PAX key of an attribute, before its name.
const ATTRIBUTE: &str = "SOJOURN.xattr.";
/// Attributes that a command's user may set.
const OWN_ATTRIBUTES: &str = "user.";

/// Sends the session's files.
pub fn pack(caller: &mut UnixStream) -> io::Result<()> {
    caller.set_write_timeout(Some(PART_TIMEOUT))?;
    pack::run(caller)
}

/// Takes the session's files, into directories that are empty.
pub fn unpack(caller: &mut UnixStream, room: Room) -> io::Result<()> {
    caller.set_read_timeout(Some(PART_TIMEOUT))?;
    unpack::run(caller, room)
}

/// Sends what is below a directory.
pub fn read_tree(caller: &mut UnixStream, path: &Path) -> io::Result<()> {
    caller.set_write_timeout(Some(PART_TIMEOUT))?;
    pack::tree(caller, path)
}

/// Takes files into a directory, over what is there; it is made where there is none.
pub fn write_tree(caller: &mut UnixStream, path: &Path, room: Room) -> io::Result<()> {
    caller.set_read_timeout(Some(PART_TIMEOUT))?;
    unpack::tree(caller, path, room)
}

/// What opens what is there, and nothing that a link leads to. Without `O_DIRECTORY`: asked
/// for a directory, gVisor follows the link all the same.
const AS_IT_IS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a directory, through no link.
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
