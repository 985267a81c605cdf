//! Reading of an archive: every path is opened below its root, without following links.
//!
//! The archive is untrusted, like everything that was in a sandbox. Allowed entries are directories, files,
//! links and named pipes below the two roots. A caller's archive must not contain pipes, and its entries
//! replace existing files of the same name: an existing link is replaced, never followed.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::FileExt, net::UnixStream},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags, chmodat, fchmod, fsetxattr,
        ftruncate, futimens, linkat, mkdirat, mknodat, openat, renameat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};
use sojourn_init::{frame, protocol::Answer};
use tar::{Archive, Entry, EntryType};

use super::{ATTRIBUTE, ENTRIES_MAX, NAME_BYTES_MAX, OWN_ATTRIBUTES, ROOTS, open_directory, refused, unhex};
use crate::usage::SpaceLeft;

/// Size of a read; a chunk of zeros becomes a hole.
const CHUNK_BYTES: usize = 64 << 10;

pub(super) fn run(caller: &mut UnixStream, space_left: SpaceLeft) -> io::Result<()> {
    let mut roots = Vec::new();
    for (name, path) in ROOTS {
        roots.push((name, open_directory(CWD, path)?));
    }
    unpack(caller, Destination::Session(roots), space_left)
}

/// Unpacks over the content of a directory.
pub(super) fn tree(caller: &mut UnixStream, path: &Path, space_left: SpaceLeft) -> io::Result<()> {
    fs::create_dir_all(path)?;
    // A link is followed here: the caller means the directory that it points to.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    unpack(caller, Destination::Tree(openat(CWD, path, flags, Mode::empty())?), space_left)
}

fn unpack(caller: &mut UnixStream, destination: Destination, space_left: SpaceLeft) -> io::Result<()> {
    let mut unpacker = Unpacker { destination, space_left, directories: Vec::new() };
    let mut archive = Archive::new(Parts { caller, part: Vec::new(), read: 0, is_over: false });
    for (count, entry) in (1..).zip(archive.entries()?) {
        if count > ENTRIES_MAX {
            return Err(refused(format!("the archive has more than {ENTRIES_MAX} files")));
        }
        let entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        unpacker.entry(entry).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => error,
            _ => refused(format!("{name}: {error}")),
        })?;
    }
    // The final frame may follow the end of the archive.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    unpacker.finish()
}

/// Reassembles the archive from frames.
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
                _ => return Err(refused("the frame is not a part of an archive")),
            }
        }
        let length = bytes.len().min(self.part.len() - self.read);
        bytes[..length].copy_from_slice(&self.part[self.read..self.read + length]);
        self.read += length;
        Ok(length)
    }
}

/// Destination of the files.
enum Destination {
    /// The empty root directories of a session, by their names in the archive.
    Session(Vec<(&'static str, OwnedFd)>),
    /// A directory with its existing content.
    Tree(OwnedFd),
}

struct Unpacker {
    destination: Destination,
    space_left: SpaceLeft,
    /// Modes and times of directories, set after everything in them is written.
    directories: Vec<(PathBuf, EntryMetadata)>,
}

/// Mode, times and attributes of an entry.
struct EntryMetadata {
    mode: Mode,
    times: Timestamps,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Unpacker {
    fn entry(&mut self, mut entry: Entry<'_, Parts<'_>>) -> io::Result<()> {
        self.space_left.take_file()?;
        let mut metadata = metadata(&mut entry)?;
        if self.is_tree() {
            // Drop set-user-id and set-group-id bits: the file belongs to another user here.
            metadata.mode &= Mode::from_raw_mode(0o777);
        }
        let path = inside(&entry.path()?)?;
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory && self.is_root(&path) {
            self.directories.push((path, metadata));
            return Ok(());
        }
        let parent = self.open(path.parent().unwrap_or(Path::new("")))?;
        let name = path.file_name().ok_or_else(|| refused("an entry has no name"))?.to_owned();
        let link = entry.link_name()?.map(std::borrow::Cow::into_owned);
        match kind {
            EntryType::Directory => {
                match mkdirat(&parent, &name, Mode::from_raw_mode(0o700)) {
                    // `open` checks the existing entry.
                    Err(Errno::EXIST) if self.is_tree() => drop(self.open(&path)?),
                    made => made?,
                }
                self.directories.push((path, metadata));
            }
            EntryType::Regular | EntryType::Continuous => self.put(&parent, &name, |space_left, name| {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = File::from(openat(&parent, name, flags, Mode::from_raw_mode(0o600))?);
                let promised = entry.size();
                if fill(&file, &mut entry, space_left)? != promised {
                    return Err(refused("its content is truncated"));
                }
                set(&file, &metadata)
            })?,
            EntryType::Symlink => {
                let target = link.ok_or_else(|| refused("a link has no target"))?;
                self.put(&parent, &name, |_, name| {
                    symlinkat(target.as_os_str().as_bytes(), &parent, name)?;
                    Ok(utimensat(&parent, name, &metadata.times, AtFlags::SYMLINK_NOFOLLOW)?)
                })?;
            }
            EntryType::Link => {
                let first = inside(&link.ok_or_else(|| refused("a link has no target"))?)?;
                let beside = self.open(first.parent().unwrap_or(Path::new("")))?;
                let first = first.file_name().ok_or_else(|| refused("a link has no target"))?;
                self.put(&parent, &name, |_, name| {
                    Ok(linkat(&beside, first, &parent, name, AtFlags::empty())?)
                })?;
            }
            EntryType::Fifo if !self.is_tree() => {
                mknodat(&parent, &name, FileType::Fifo, metadata.mode, 0)?;
                chmodat(&parent, &name, metadata.mode, AtFlags::empty())?;
                utimensat(&parent, &name, &metadata.times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            other => return Err(refused(format!("an archive must not contain {other:?} entries"))),
        }
        Ok(())
    }

    fn is_tree(&self) -> bool {
        matches!(self.destination, Destination::Tree(_))
    }

    fn is_root(&self, path: &Path) -> bool {
        match &self.destination {
            Destination::Session(roots) => roots.iter().any(|(root, _)| path == Path::new(root)),
            Destination::Tree(_) => path.as_os_str().is_empty(),
        }
    }

    /// Creates an entry. If an entry of that name may exist, creates it under a temporary name first, so that
    /// readers see the old one or the new one.
    fn put(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        make: impl FnOnce(&mut SpaceLeft, &OsStr) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.is_tree() {
            return make(&mut self.space_left, name);
        }
        let beside = OsString::from(format!(".sojourn-write-{}", std::process::id()));
        let made =
            make(&mut self.space_left, &beside).and_then(|()| Ok(renameat(parent, &beside, parent, name)?));
        // A rename between two hard links of one file does nothing, and a failure may leave the file.
        let _ = unlinkat(parent, &beside, AtFlags::empty());
        made
    }

    /// Opens a directory of the archive without following links. Below a tree, missing ones are created:
    /// archives need not contain the directories of their files.
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        if path.as_os_str().len() > NAME_BYTES_MAX {
            return Err(refused(format!("a path is longer than {NAME_BYTES_MAX} bytes")));
        }
        let (root, rest) = match &self.destination {
            Destination::Session(roots) => {
                let mut parts = path.components();
                let first = parts.next();
                let root = roots.iter().find(|(name, _)| first == Some(Component::Normal(OsStr::new(name))));
                let (_, root) = root.ok_or_else(|| refused("the path is outside of the session's files"))?;
                (root, parts.as_path())
            }
            Destination::Tree(root) => (root, path),
        };
        let mut directory = root.try_clone()?;
        // One component at a time: gVisor has no openat2, which could refuse links in all components.
        for part in rest.components() {
            let Component::Normal(name) = part else {
                return Err(refused("an entry is outside of the session's files"));
            };
            directory = match open_directory(&directory, name) {
                Err(Errno::NOENT) if self.is_tree() => {
                    mkdirat(&directory, name, Mode::from_raw_mode(0o755))?;
                    open_directory(&directory, name)?
                }
                opened => opened?,
            };
        }
        Ok(directory)
    }

    /// Sets modes and times, deepest directories first, because a mode may deny the owner access.
    fn finish(self) -> io::Result<()> {
        for (path, metadata) in self.directories.iter().rev() {
            let directory = self.open(path)?;
            // Errors are ignored for roots and for existing directories of a tree, which may have another
            // owner.
            match set(&directory, metadata) {
                Err(error) if !self.is_tree() && path.components().count() > 1 => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Path of an entry relative to the root; `..` and absolute paths are rejected.
fn inside(path: &Path) -> io::Result<PathBuf> {
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(refused("the path is outside of the directory"));
            }
        }
    }
    Ok(below)
}

fn metadata(entry: &mut Entry<'_, Parts<'_>>) -> io::Result<EntryMetadata> {
    let header = entry.header();
    let mode = Mode::from_raw_mode(header.mode()? & 0o7777);
    let mut time = Timespec { tv_sec: i64::try_from(header.mtime()?).unwrap_or(0), tv_nsec: 0 };
    let mut attributes = Vec::new();
    for extension in entry.pax_extensions()?.into_iter().flatten() {
        let extension = extension?;
        let (key, value) = (extension.key_bytes(), extension.value_bytes());
        if key.starts_with(b"GNU.sparse.") {
            return Err(refused("sparse files are not supported"));
        }
        if key == b"mtime" {
            time = std::str::from_utf8(value).ok().and_then(timespec).ok_or_else(|| refused("bad mtime"))?;
        } else if let Some(name) = key.strip_prefix(ATTRIBUTE.as_bytes()) {
            let (Some(name), Some(value)) = (unhex(name), unhex(value)) else {
                return Err(refused("an attribute is not hexadecimal"));
            };
            if !name.starts_with(OWN_ATTRIBUTES.as_bytes()) {
                return Err(refused("only attributes in the `user.` namespace are allowed"));
            }
            attributes.push((name, value));
        }
    }
    Ok(EntryMetadata { mode, times: Timestamps { last_access: time, last_modification: time }, attributes })
}

/// Parses seconds with a fraction; archivers write different numbers of digits.
fn timespec(text: &str) -> Option<Timespec> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = fraction.bytes().all(|digit| digit.is_ascii_digit());
    let nanos = is_number.then(|| format!("{fraction:0<9}")[..9].parse().ok())??;
    Some(Timespec { tv_sec: seconds.parse().ok()?, tv_nsec: nanos })
}

fn set(file: impl AsFd, metadata: &EntryMetadata) -> io::Result<()> {
    let file = file.as_fd();
    for (name, value) in &metadata.attributes {
        match fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fchmod(file, metadata.mode)?;
    Ok(futimens(file, &metadata.times)?)
}

/// Writes a file's content and returns its length; chunks of zeros become holes.
fn fill(file: &File, content: &mut impl Read, space_left: &mut SpaceLeft) -> io::Result<u64> {
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
            ftruncate(file, at)?;
            return Ok(at);
        }
        if chunk[..filled].iter().any(|&byte| byte != 0) {
            space_left.take(filled as u64)?;
            file.write_all_at(&chunk[..filled], at)?;
        }
        at += filled as u64;
    }
}
