//! Writing of an archive: a walk that follows no link and skips no file.
//!
//! Entries are sorted by name, so that equal files produce equal archives. The walk runs as the command's
//! user. In a checkpoint, files that their owner cannot read are made readable temporarily, because a
//! checkpoint must not fail after `chmod 000`. In a directory that commands may be using, no mode is changed,
//! and entries that disappear during the walk are skipped.
//!
//! A checkpoint walks twice: the first walk adds up the sizes, so that files which are too large are refused
//! before any of them is read. The archive of a directory has no such walk: its caller hangs up at its own,
//! much lower limit.

use std::{
    collections::HashMap,
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Stat, chmodat, fgetxattr, flistxattr, fstat, openat,
        readlinkat, statat,
    },
    io::Errno,
};
use sojourn_init::{
    frame,
    protocol::{Answer, CHECKPOINT_BYTES_MAX},
};
use tar::{Builder, EntryType, Header};

use super::{
    AS_IT_IS, ATTRIBUTE, ENTRIES_MAX, NAME_BYTES_MAX, OWN_ATTRIBUTES, PART_BYTES, ROOTS, hex, is_directory,
    is_gone, names, refused, size,
};

/// Maximum bytes of a link target in a header; longer targets get an entry of their own.
const LINK_BYTES_MAX: usize = 100;
/// Maximum size of the attribute list and of an attribute in Linux.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

pub(super) fn run(caller: &mut UnixStream) -> io::Result<()> {
    measure(&ROOTS, CHECKPOINT_BYTES_MAX)?;
    let mut packer = Packer::new(Parts::new(caller));
    packer.roots(&ROOTS)?;
    packer.builder.into_inner()?.flush()
}

/// Adds up the sizes of all files without reading them.
///
/// A file counts once for all its hard links. Holes count, because the archive has them as zeros.
///
/// # Errors
/// `InvalidInput` when the sum exceeds `bytes_max`.
fn measure(roots: &[(&str, &str)], bytes_max: u64) -> io::Result<()> {
    let mut packer = Packer::new(io::sink());
    packer.bytes_max = Some(bytes_max);
    packer.roots(roots)
}

/// Archives a directory's content on its own file system: for `/`, `/proc` is skipped.
pub(super) fn tree(caller: &mut UnixStream, path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, Mode::empty())?;
    let stat = fstat(&root)?;
    let mut packer = Packer::new(Parts::new(caller));
    packer.live = Some(stat.st_dev);
    packer.children(&root, b"")?;
    packer.builder.into_inner()?.flush()
}

/// Splits a stream into frames.
pub(super) struct Parts<W> {
    caller: W,
    buffer: Vec<u8>,
}

impl<W: Write> Parts<W> {
    pub(super) fn new(caller: W) -> Self {
        Self { caller, buffer: Vec::new() }
    }
}

impl<W: Write> Write for Parts<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PART_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        for part in self.buffer.chunks(PART_BYTES) {
            frame::write(&mut self.caller, &Answer::Part {}, part)?;
        }
        self.buffer.clear();
        Ok(())
    }
}

struct Packer<W: Write> {
    builder: Builder<W>,
    /// First name of each file with several hard links.
    links: HashMap<(u64, u64), Vec<u8>>,
    entries: u64,
    /// `Some` if commands may be running: the device of the only file system that is walked.
    live: Option<u64>,
    /// Sizes of the files so far, with `bytes_max`.
    bytes: u64,
    /// `Some` if the walk only adds up sizes, and reads and writes nothing: the most that they may be in all.
    bytes_max: Option<u64>,
}

impl<W: Write> Packer<W> {
    fn new(writer: W) -> Self {
        let (builder, links) = (Builder::new(writer), HashMap::new());
        Self { builder, links, entries: 0, live: None, bytes: 0, bytes_max: None }
    }

    /// Archives directories: the name in the archive, the path in the sandbox.
    fn roots(&mut self, roots: &[(&str, &str)]) -> io::Result<()> {
        for &(name, path) in roots {
            let path = CString::new(path)?;
            let stat = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW)?;
            self.directory(CWD.as_fd(), &path, name.as_bytes(), &stat)?;
        }
        Ok(())
    }

    fn directory(&mut self, parent: impl AsFd, name: &CStr, archived: &[u8], stat: &Stat) -> io::Result<()> {
        let parent = parent.as_fd();
        if self.live.is_some_and(|device| device != stat.st_dev) {
            return self.entry(archived, EntryType::Directory, stat, None, &[]);
        }
        let (directory, was) = self.open(parent, name, archived, AS_IT_IS, (stat, 0o700))?;
        let walked = match is_directory(&directory)? {
            true => self.walk(&directory, archived, stat),
            false => Err(Errno::NOTDIR.into()),
        };
        if let Some(was) = was {
            chmodat(parent, name, was, AtFlags::empty())?;
        }
        walked
    }

    fn walk(&mut self, directory: &OwnedFd, archived: &[u8], stat: &Stat) -> io::Result<()> {
        self.entry(archived, EntryType::Directory, stat, Some(directory), &[])?;
        self.children(directory, &[archived, b"/"].concat())
    }

    /// Archives the entries of a directory, each under `prefix`.
    fn children(&mut self, directory: &OwnedFd, prefix: &[u8]) -> io::Result<()> {
        for name in names(directory, |_| Ok(true))? {
            let archived = [prefix, name.as_bytes()].concat();
            let stat = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from);
            match stat.and_then(|stat| self.child(directory, &name, &archived, &stat)) {
                Err(error) if self.live.is_some() && is_gone(&error) => {}
                walked => walked?,
            }
        }
        Ok(())
    }

    /// Opens an entry for reading; also returns its original mode if it had to be extended.
    fn open(
        &self,
        parent: impl AsFd,
        name: &CStr,
        archived: &[u8],
        flags: OFlags,
        (stat, wanted): (&Stat, u32),
    ) -> io::Result<(OwnedFd, Option<Mode>)> {
        let parent = parent.as_fd();
        if self.live.is_none() {
            return readable(parent, name, flags, stat, wanted);
        }
        match openat(parent, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                let name = String::from_utf8_lossy(archived);
                Err(refused(format!("{name}: the sandbox's user has no permission to read it")))
            }
            opened => Ok((opened?, None)),
        }
    }

    fn child(&mut self, directory: &OwnedFd, name: &CStr, archived: &[u8], stat: &Stat) -> io::Result<()> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directory(directory, name, archived, stat),
            FileType::RegularFile => self.file(directory, name, archived, stat),
            FileType::Symlink => {
                let target = readlinkat(directory, name, Vec::new())?;
                self.entry(archived, EntryType::Symlink, stat, None, target.as_bytes())
            }
            FileType::Fifo => self.entry(archived, EntryType::Fifo, stat, None, &[]),
            // A socket is useless without its process, and devices cannot be created in a sandbox.
            FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {
                Ok(())
            }
        }
    }

    fn file(&mut self, directory: &OwnedFd, name: &CStr, archived: &[u8], stat: &Stat) -> io::Result<()> {
        if stat.st_nlink > 1 {
            let first = self.links.entry((stat.st_dev, stat.st_ino)).or_insert_with(|| archived.to_owned());
            if first != archived {
                let first = first.clone();
                return self.entry(archived, EntryType::Link, stat, None, &first);
            }
        }
        if let Some(max) = self.bytes_max {
            self.bytes = self.bytes.saturating_add(size(stat));
            if self.bytes > max {
                return Err(refused(format!("the sandbox's files exceed {max} bytes")));
            }
            return self.entry(archived, EntryType::Regular, stat, None, &[]);
        }
        let (file, was) = self.open(directory, name, archived, AS_IT_IS, (stat, 0o600))?;
        if let Some(was) = was {
            chmodat(directory, name, was, AtFlags::empty())?;
        }
        self.entry(archived, EntryType::Regular, stat, Some(&file), &[])
    }

    /// Writes one entry; the content of a regular file is read from `open`.
    fn entry(
        &mut self,
        archived: &[u8],
        kind: EntryType,
        stat: &Stat,
        open: Option<&OwnedFd>,
        link: &[u8],
    ) -> io::Result<()> {
        self.entries += 1;
        if archived.len() > NAME_BYTES_MAX {
            return Err(refused(format!("a path is longer than {NAME_BYTES_MAX} bytes")));
        }
        if self.entries > ENTRIES_MAX {
            return Err(refused(format!("there are more than {ENTRIES_MAX} files")));
        }
        if self.bytes_max.is_some() {
            return Ok(());
        }
        self.extensions(stat, open)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(stat.st_uid.into());
        header.set_gid(stat.st_gid.into());
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_size(0);
        if link.len() <= LINK_BYTES_MAX {
            header.set_link_name_literal(link)?;
        } else {
            self.long_link(link)?;
        }
        let path = Path::new(OsStr::from_bytes(archived));
        match open.filter(|_| kind == EntryType::Regular) {
            Some(file) => {
                let size = size(stat);
                header.set_size(size);
                // Write exactly the size in the header, even if the file's size changed.
                let content = File::from(file.try_clone()?).chain(io::repeat(0)).take(size);
                self.builder.append_data(&mut header, path, content)
            }
            None => self.builder.append_data(&mut header, path, io::empty()),
        }
    }

    fn extensions(&mut self, stat: &Stat, open: Option<&OwnedFd>) -> io::Result<()> {
        let mut extensions = Vec::new();
        if stat.st_mtime_nsec > 0 {
            let time = format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec);
            extensions.push(("mtime".to_owned(), time));
        }
        if let Some(open) = open {
            extensions.extend(attributes(open)?);
        }
        let extensions = extensions.iter().map(|(key, value)| (key.as_str(), value.as_bytes()));
        self.builder.append_pax_extensions(extensions)
    }

    /// Writes the extra entry for a link target too long for the header (GNU's `K`).
    fn long_link(&mut self, link: &[u8]) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongLink);
        header.set_path("././@LongLink")?;
        header.set_mode(0o644);
        header.set_size(link.len() as u64 + 1);
        header.set_cksum();
        self.builder.append(&header, [link, b"\0"].concat().as_slice())
    }
}

/// Opens an entry that its owner may have no permission to read; returns the original mode if it had to be
/// extended.
fn readable(
    parent: BorrowedFd<'_>,
    name: &CStr,
    flags: OFlags,
    stat: &Stat,
    wanted: u32,
) -> io::Result<(OwnedFd, Option<Mode>)> {
    let was = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let wide = was | Mode::from_raw_mode(wanted);
    let is_closed = FileType::from_raw_mode(stat.st_mode) == FileType::Directory && wide != was;
    if !is_closed {
        match openat(parent, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {}
            opened => return Ok((opened?, None)),
        }
    }
    // The entry is not a link: the walk has just checked, and nothing else runs.
    chmodat(parent, name, wide, AtFlags::empty())?;
    match openat(parent, name, flags, Mode::empty()) {
        Ok(opened) => Ok((opened, Some(was))),
        Err(error) => {
            chmodat(parent, name, was, AtFlags::empty())?;
            Err(error.into())
        }
    }
}

fn attributes(file: &OwnedFd) -> io::Result<Vec<(String, String)>> {
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let length = match flistxattr(file, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if !name.starts_with(OWN_ATTRIBUTES.as_bytes()) {
            continue;
        }
        let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
        let length = fgetxattr(file, name, &mut value[..])?;
        found.push((format!("{ATTRIBUTE}{}", hex(name)), hex(&value[..length])));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::fs::PermissionsExt, process};

    use super::*;

    #[test]
    fn sizes_are_added_up_once_per_file_and_with_holes() {
        let root = env::temp_dir().join(format!("sojourn-measure-{}", process::id()));
        let below = root.join("below");
        fs::create_dir_all(&below).unwrap();
        let make = |path: &Path, bytes| File::create(path).and_then(|file| file.set_len(bytes)).unwrap();
        make(&root.join("hole"), 1 << 40);
        make(&below.join("small"), 3);
        fs::hard_link(root.join("hole"), below.join("again")).unwrap();
        std::os::unix::fs::symlink("hole", root.join("link")).unwrap();
        // It is opened for as long as it is walked.
        let mode = |mode| fs::set_permissions(&below, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o000);
        let roots = [("workspace", root.to_str().unwrap())];
        let measured = |bytes_max| measure(&roots, bytes_max).map_err(|error| error.to_string());
        let (fits, exceeds) = (measured((1 << 40) + 3), measured((1 << 40) + 2));
        let closed = fs::metadata(&below).unwrap().permissions().mode() & 0o777;
        mode(0o700);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(fits, Ok(()));
        assert_eq!(exceeds, Err("the sandbox's files exceed 1099511627778 bytes".to_owned()));
        assert_eq!(closed, 0);
    }

    #[test]
    fn many_files_below_the_limit_are_too_large_together() {
        let root = env::temp_dir().join(format!("sojourn-measure-many-{}", process::id()));
        fs::create_dir_all(&root).unwrap();
        for name in 0..5 {
            File::create(root.join(name.to_string())).and_then(|file| file.set_len(4 << 30)).unwrap();
        }
        let measured = measure(&[("workspace", root.to_str().unwrap())], CHECKPOINT_BYTES_MAX);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(measured.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
