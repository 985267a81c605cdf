//! Reading the archive: every path is opened beneath its root, through no link.
//!
//! The archive is hostile input, like everything that was in a box once. What it may
//! hold is a list: directories, files, links, pipes below the two roots.

use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::FileExt, net::UnixStream},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags, chmodat,
        fchmod, fsetxattr, ftruncate, futimens, linkat, mkdirat, mknodat, openat, openat2, symlinkat,
        utimensat,
    },
    io::Errno,
};
use sojourn_init::{frame, protocol::Answer};
use tar::{Archive, Entry, EntryType};

use super::{ATTRIBUTE, ENTRIES_MAX, NAME_BYTES_MAX, OWN_ATTRIBUTES, ROOTS, refused, unhex};

/// Content that is read at once; a whole one of zeroes becomes a hole.
const CHUNK_BYTES: usize = 64 << 10;

pub(super) fn run(caller: &mut UnixStream) -> io::Result<()> {
    let mut unpacker = Unpacker { roots: Vec::new(), directories: Vec::new() };
    for (name, path) in ROOTS {
        unpacker.roots.push((name, openat(CWD, path, directory_flags(), Mode::empty())?));
    }
    let mut archive = Archive::new(Parts { caller, part: Vec::new(), read: 0, is_over: false });
    for (count, entry) in (1..).zip(archive.entries()?) {
        if count > ENTRIES_MAX {
            return Err(refused(format!("the archive has more than {ENTRIES_MAX} files")));
        }
        unpacker.entry(entry?)?;
    }
    // The last word may come after the end of the archive.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    unpacker.finish()
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// What arrives, put together from frames.
struct Parts<'a> {
    caller: &'a mut UnixStream,
    part: Vec<u8>,
    read: usize,
    is_over: bool,
}

impl Read for Parts<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.read == self.part.len() && !self.is_over {
            let (answer, part) = frame::read::<Answer>(self.caller)?;
            match answer {
                Answer::Part {} => (self.part, self.read) = (part, 0),
                Answer::Done {} => self.is_over = true,
                _ => return Err(refused("that is no part of an archive")),
            }
        }
        let length = bytes.len().min(self.part.len() - self.read);
        bytes[..length].copy_from_slice(&self.part[self.read..self.read + length]);
        self.read += length;
        Ok(length)
    }
}

struct Unpacker {
    roots: Vec<(&'static str, OwnedFd)>,
    /// Rights and times of directories, set when nothing is written into them any more.
    directories: Vec<(PathBuf, Look)>,
}

/// How an entry looks from outside.
struct Look {
    mode: Mode,
    times: Timestamps,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Unpacker {
    fn entry(&mut self, mut entry: Entry<'_, Parts<'_>>) -> io::Result<()> {
        let look = look(&mut entry)?;
        let path = entry.path()?.into_owned();
        let kind = entry.header().entry_type();
        if self.roots.iter().any(|(root, _)| path == Path::new(root)) && kind == EntryType::Directory {
            self.directories.push((path, look));
            return Ok(());
        }
        let parent = self.open(path.parent().unwrap_or(Path::new("")))?;
        let name = path.file_name().ok_or_else(|| refused("an entry has no name"))?.to_owned();
        let link = entry.link_name()?.map(std::borrow::Cow::into_owned);
        match kind {
            EntryType::Directory => {
                mkdirat(&parent, &name, Mode::from_raw_mode(0o700))?;
                self.directories.push((path, look));
            }
            EntryType::Regular | EntryType::Continuous => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = File::from(openat(&parent, &name, flags, Mode::from_raw_mode(0o600))?);
                fill(&file, &mut entry)?;
                set(&file, &look)?;
            }
            EntryType::Symlink => {
                let target = link.ok_or_else(|| refused("a link leads nowhere"))?;
                symlinkat(target.as_os_str().as_bytes(), &parent, &name)?;
                utimensat(&parent, &name, &look.times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            EntryType::Link => {
                let first = link.ok_or_else(|| refused("a link leads nowhere"))?;
                let beside = self.open(first.parent().unwrap_or(Path::new("")))?;
                let first = first.file_name().ok_or_else(|| refused("a link leads nowhere"))?;
                linkat(&beside, first, &parent, &name, AtFlags::empty())?;
            }
            EntryType::Fifo => {
                mknodat(&parent, &name, FileType::Fifo, look.mode, 0)?;
                chmodat(&parent, &name, look.mode, AtFlags::empty())?;
                utimensat(&parent, &name, &look.times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            other => return Err(refused(format!("an archive of a session holds no {other:?}"))),
        }
        Ok(())
    }

    /// A directory of the archive, through no link.
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        if path.as_os_str().len() > NAME_BYTES_MAX {
            return Err(refused(format!("a path is longer than {NAME_BYTES_MAX} bytes")));
        }
        let mut parts = path.components();
        let (Some(Component::Normal(first)), rest) = (parts.next(), parts.as_path()) else {
            return Err(refused("an entry is outside of the session's files"));
        };
        let Some((_, root)) = self.roots.iter().find(|(name, _)| first == *name) else {
            return Err(refused("an entry is outside of the session's files"));
        };
        if rest.as_os_str().is_empty() {
            return root.try_clone();
        }
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(root, rest, directory_flags(), Mode::empty(), inside)?)
    }

    /// The deepest first: a directory may be closed to its owner.
    fn finish(self) -> io::Result<()> {
        for (path, look) in self.directories.iter().rev() {
            let directory = self.open(path)?;
            // A root belongs to whoever made the box.
            match set(&directory, look) {
                Err(error) if path.components().count() > 1 => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

fn look(entry: &mut Entry<'_, Parts<'_>>) -> io::Result<Look> {
    let header = entry.header();
    let mode = Mode::from_raw_mode(header.mode()? & 0o7777);
    let mut time = Timespec { tv_sec: i64::try_from(header.mtime()?).unwrap_or(0), tv_nsec: 0 };
    let mut attributes = Vec::new();
    for extension in entry.pax_extensions()?.into_iter().flatten() {
        let extension = extension?;
        let (key, value) = (extension.key_bytes(), extension.value_bytes());
        if key == b"mtime" {
            time = std::str::from_utf8(value).ok().and_then(timespec).ok_or_else(|| refused("no time"))?;
        } else if let Some(name) = key.strip_prefix(ATTRIBUTE.as_bytes()) {
            let (Some(name), Some(value)) = (unhex(name), unhex(value)) else {
                return Err(refused("an attribute is not hexadecimal"));
            };
            if !name.starts_with(OWN_ATTRIBUTES.as_bytes()) {
                return Err(refused("only attributes of users are kept"));
            }
            attributes.push((name, value));
        }
    }
    Ok(Look { mode, times: Timestamps { last_access: time, last_modification: time }, attributes })
}

fn timespec(text: &str) -> Option<Timespec> {
    let (seconds, nanos) = text.split_once('.')?;
    let nanos: i64 = (nanos.len() == 9).then(|| nanos.parse().ok())??;
    Some(Timespec { tv_sec: seconds.parse().ok()?, tv_nsec: nanos })
}

fn set(file: impl AsFd, look: &Look) -> io::Result<()> {
    let file = file.as_fd();
    for (name, value) in &look.attributes {
        match fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fchmod(file, look.mode)?;
    Ok(futimens(file, &look.times)?)
}

/// Writes a file's content; what is nothing but zeroes takes no room.
fn fill(file: &File, content: &mut impl Read) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0u64;
    loop {
        let mut filled = 0;
        while filled < chunk.len() {
            match content.read(&mut chunk[filled..])? {
                0 => break,
                length => filled += length,
            }
        }
        if filled == 0 {
            return Ok(ftruncate(file, at)?);
        }
        if chunk[..filled].iter().any(|&byte| byte != 0) {
            file.write_all_at(&chunk[..filled], at)?;
        }
        at += filled as u64;
    }
}
