//! Unpacking of a root file system archive, before any sandbox sees it.
//!
//! Called by `image` with the operator's registered images and with mmdebstrap's output. The archive is
//! untrusted, because its author may be anyone. Every path is opened below the root, component by component
//! and without following links. Devices are skipped, mode bits beyond `rwx` and sticky are dropped, and all
//! files belong to ids that nothing else uses.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chownat, fchmod, futimens,
        linkat, mkdirat, openat, statat, symlinkat, unlinkat,
    },
    io::Errno,
};
use tar::{Archive, Entry, EntryType};

use crate::{
    base::limit::{IMAGE_BYTES_MAX, IMAGE_FILES_MAX},
    node::local::{removal, rootfs::TABLES},
};

/// Number of ids of an image; higher ids are mapped to nobody.
const IDS: u64 = 65_536;
const NOBODY: u32 = 65_534;
/// Name prefix by which a layer removes one file of a lower layer; `OPAQUE` empties a directory.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// A root file system that is built layer by layer.
pub(super) struct Tree {
    path: PathBuf,
    root: OwnedFd,
    /// Host id of its root user.
    first_id: u32,
    entries: u64,
    bytes: u64,
}

impl Tree {
    /// Creates an empty tree.
    pub(super) fn make(path: &Path, first_id: u32) -> io::Result<Self> {
        fs::create_dir(path)?;
        let root = openat(CWD, path, directory(), Mode::empty())?;
        fchmod(&root, Mode::from_raw_mode(0o755))?;
        chownat(CWD, path, owner(first_id, 0), group(first_id, 0), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Self { path: path.to_owned(), root, first_id, entries: 0, bytes: 0 })
    }

    /// Unpacks a layer over the existing files.
    pub(super) fn layer(&mut self, archive: impl Read) -> io::Result<()> {
        let mut archive = Archive::new(archive);
        for entry in archive.entries()? {
            let entry = entry?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            self.entries += 1;
            self.bytes = self.bytes.saturating_add(entry.size());
            if self.entries > IMAGE_FILES_MAX || self.bytes > IMAGE_BYTES_MAX {
                return Err(io::Error::other("the image exceeds the limit of files or bytes"));
            }
            self.entry(entry).map_err(|error| io::Error::other(format!("{name}: {error}")))?;
        }
        io::copy(&mut archive.into_inner(), &mut io::sink())?;
        Ok(())
    }

    fn entry(&mut self, mut entry: Entry<'_, impl Read>) -> io::Result<()> {
        let path = inside(&entry.path()?)?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        let above = path.parent().unwrap_or(Path::new(""));
        let parent = self.open(above)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            return match name.as_bytes() == OPAQUE {
                true => self.empty(above),
                false => self.remove(&parent, above, OsStr::from_bytes(hidden)),
            };
        }
        let kind = entry.header().entry_type();
        let mode = Mode::from_raw_mode(entry.header().mode()? & 0o1777);
        let link = entry.link_name()?.map(std::borrow::Cow::into_owned);
        let link = || link.ok_or_else(|| io::Error::other("a link has no target"));
        match kind {
            EntryType::Directory => {
                match openat(&parent, &name, directory(), Mode::empty()) {
                    Ok(_) => {}
                    Err(_) => {
                        self.remove(&parent, above, &name)?;
                        mkdirat(&parent, &name, Mode::from_raw_mode(0o700))?;
                    }
                }
                fchmod(openat(&parent, &name, directory(), Mode::empty())?, mode)?;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.remove(&parent, above, &name)?;
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(openat(&parent, &name, flags, Mode::from_raw_mode(0o600))?);
                io::copy(&mut entry, &mut file)?;
                file.flush()?;
                // Programs compare the time with that in their compiled files.
                let time =
                    Timespec { tv_sec: i64::try_from(entry.header().mtime()?).unwrap_or(0), tv_nsec: 0 };
                futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
                fchmod(&file, mode)?;
            }
            EntryType::Symlink => {
                self.remove(&parent, above, &name)?;
                symlinkat(link()?.as_os_str().as_bytes(), &parent, &name)?;
            }
            EntryType::Link => {
                let first = inside(&link()?)?;
                let beside = self.open(first.parent().unwrap_or(Path::new("")))?;
                let first = first.file_name().ok_or_else(|| io::Error::other("a link has no target"))?;
                self.remove(&parent, above, &name)?;
                linkat(&beside, first, &parent, &name, AtFlags::empty())?;
                return Ok(());
            }
            // A sandbox has its own devices, and an image's named pipes have no reader.
            EntryType::Char | EntryType::Block | EntryType::Fifo => return Ok(()),
            EntryType::XGlobalHeader => return Ok(()),
            other => return Err(io::Error::other(format!("an image must not contain {other:?} entries"))),
        }
        let (uid, gid) = (entry.header().uid()?, entry.header().gid()?);
        let (uid, gid) = (owner(self.first_id, uid), group(self.first_id, gid));
        Ok(chownat(&parent, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Opens a directory of the tree without following links; creates missing ones.
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut at = self.root.try_clone()?;
        for part in path.components() {
            let Component::Normal(name) = part else {
                return Err(io::Error::other("the path is outside of the image"));
            };
            at = match openat(&at, name, directory(), Mode::empty()) {
                Err(Errno::NOENT) => {
                    mkdirat(&at, name, Mode::from_raw_mode(0o755))?;
                    let ids = (owner(self.first_id, 0), group(self.first_id, 0));
                    chownat(&at, name, ids.0, ids.1, AtFlags::SYMLINK_NOFOLLOW)?;
                    openat(&at, name, directory(), Mode::empty())?
                }
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    return Err(io::Error::other("a component of the path is not a directory"));
                }
                opened => opened?,
            };
        }
        Ok(at)
    }

    /// Removes an entry of an opened directory, so no link is on its path.
    fn remove(&self, parent: &OwnedFd, above: &Path, name: &OsStr) -> io::Result<()> {
        if name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/') {
            return Err(io::Error::other("the path is outside of the image"));
        }
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => removal::tree(&self.path.join(above).join(name)),
            Err(error) => Err(error.into()),
        }
    }

    fn empty(&self, directory: &Path) -> io::Result<()> {
        let parent = self.open(directory)?;
        for entry in fs::read_dir(self.path.join(directory))? {
            self.remove(&parent, directory, &entry?.file_name())?;
        }
        Ok(())
    }

    /// Prepares the tree for sandboxes: regular files as mount points of each sandbox's own tables, and
    /// `/var/tmp` as a link to `/tmp`. Links in their place are replaced, not followed.
    ///
    /// # Errors
    /// The image is not a root file system.
    pub(super) fn finish(self) -> io::Result<()> {
        if !self.path.join("usr").is_dir() {
            return Err(io::Error::other("it has no /usr, so it is not a root file system"));
        }
        for table in TABLES.map(Path::new) {
            let above = table.parent().unwrap_or(Path::new(""));
            let name = table.file_name().unwrap_or_default();
            let parent = self.open(above)?;
            let there = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
            if there.is_ok_and(|meta| FileType::from_raw_mode(meta.st_mode) == FileType::RegularFile) {
                continue;
            }
            self.remove(&parent, above, name)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&parent, name, flags, Mode::from_raw_mode(0o644))?;
        }
        let var = self.open(Path::new("var"))?;
        self.remove(&var, Path::new("var"), OsStr::new("tmp"))?;
        Ok(symlinkat("/tmp", &var, "tmp")?)
    }

    /// Opens an existing tree.
    pub(super) fn open_at(path: &Path, first_id: u32) -> io::Result<Self> {
        let root = openat(CWD, path, directory(), Mode::empty())?;
        Ok(Self { path: path.to_owned(), root, first_id, entries: 0, bytes: 0 })
    }
}

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn shifted(first: u32, id: u64) -> u32 {
    first + if id < IDS { id as u32 } else { NOBODY }
}

fn owner(first: u32, id: u64) -> Option<Uid> {
    Some(Uid::from_raw(shifted(first, id)))
}

fn group(first: u32, id: u64) -> Option<Gid> {
    Some(Gid::from_raw(shifted(first, id)))
}

/// Path of an entry relative to the root; `..` is rejected.
fn inside(path: &Path) -> io::Result<PathBuf> {
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => below.push(name),
            // Some archivers write absolute names; they are read as relative to the root.
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::other("the path is outside of the image"));
            }
        }
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use tar::{Builder, Header};

    use super::*;

    /// Archive of entries: type, name, link target or content, mode.
    fn archive(entries: &[(EntryType, &str, &str, u32)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, text, mode) in entries {
            let mut header = Header::new_gnu();
            let bytes = name.as_bytes();
            header.as_old_mut().name[..bytes.len()].copy_from_slice(bytes);
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_uid(0);
            header.set_gid(42);
            header.set_mtime(1_000);
            let content = match kind {
                EntryType::Symlink | EntryType::Link => {
                    header.set_link_name_literal(text).unwrap();
                    ""
                }
                _ => text,
            };
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    use EntryType::{Char, Directory, Link, Regular, Symlink};

    #[test]
    fn an_image_is_unpacked_layer_by_layer() {
        let ground = tempfile::tempdir().unwrap();
        let path = ground.path().join("tree");
        let mut tree = Tree::make(&path, 7_000).unwrap();
        let first = archive(&[
            (Directory, "./", "", 0o755),
            (Directory, "usr/bin", "", 0o755),
            (Regular, "usr/bin/su", "program", 0o4755),
            (Symlink, "bin", "usr/bin", 0o777),
            (Char, "dev/null", "", 0o666),
            (Regular, "usr/gone", "", 0o644),
            (Regular, "usr/old/one", "", 0o644),
            (Regular, "etc/passwd", "root:x:0", 0o644),
            (Link, "usr/bin/same", "usr/bin/su", 0),
            (Directory, "var/tmp", "", 0o1777),
        ]);
        tree.layer(first.as_slice()).unwrap();
        let second = archive(&[
            (Regular, "usr/.wh.gone", "", 0),
            (Regular, "usr/old/.wh..wh..opq", "", 0),
            (Regular, "usr/old/two", "", 0o644),
        ]);
        tree.layer(second.as_slice()).unwrap();
        tree.finish().unwrap();
        let meta = fs::metadata(path.join("usr/bin/su")).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mtime(), meta.nlink()), (7_000, 7_042, 1_000, 2));
        assert_eq!(meta.permissions().mode() & 0o7777, 0o755, "no rights beyond rwx");
        assert_eq!(fs::read_link(path.join("bin")).unwrap(), Path::new("usr/bin"));
        assert!(!path.join("dev/null").exists() && !path.join("usr/gone").exists());
        assert!(!path.join("usr/old/one").exists() && path.join("usr/old/two").exists());
        assert_eq!(fs::read(path.join("etc/passwd")).unwrap(), b"root:x:0", "installers need it");
        assert_eq!(fs::read(path.join("etc/hosts")).unwrap(), b"", "a sandbox's own is mounted onto it");
        assert_eq!(fs::read_link(path.join("var/tmp")).unwrap(), Path::new("/tmp"));
    }

    #[test]
    fn no_entry_leads_out_of_the_tree() {
        let ground = tempfile::tempdir().unwrap();
        let outside = ground.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "untouched").unwrap();
        let to = outside.to_str().unwrap();
        let file = outside.join("file");
        let cases: [&[(EntryType, &str, &str, u32)]; 7] = [
            &[(Regular, "../outside/file", "x", 0o644)],
            &[(Symlink, "way", to, 0), (Regular, "way/file", "x", 0o644)],
            &[(Symlink, "way", "../outside", 0), (Directory, "way/new", "", 0o755)],
            &[(Link, "file", "../outside/file", 0), (Regular, "file", "x", 0o644)],
            &[(Symlink, "way", to, 0), (Link, "file", "way/file", 0)],
            &[(Symlink, "way", to, 0), (Regular, "way/.wh.file", "", 0)],
            &[(Regular, ".wh...", "", 0)],
        ];
        for (at, entries) in cases.iter().enumerate() {
            let mut tree = Tree::make(&ground.path().join(at.to_string()), 0).unwrap();
            assert!(tree.layer(archive(entries).as_slice()).is_err(), "case {at} was unpacked");
            assert_eq!(fs::read_to_string(&file).unwrap(), "untouched");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        }
        // A file replaces a link, whatever the link's target.
        let mut tree = Tree::make(&ground.path().join("replaced"), 0).unwrap();
        let link = file.to_str().unwrap();
        tree.layer(archive(&[(Symlink, "way", link, 0), (Regular, "way", "x", 0o644)]).as_slice()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "untouched");
    }

    #[test]
    fn the_tables_of_an_image_are_replaced_and_not_followed() {
        let ground = tempfile::tempdir().unwrap();
        let (path, outside) = (ground.path().join("tree"), ground.path().join("outside"));
        fs::write(&outside, "untouched").unwrap();
        let tree = Tree::make(&path, 0).unwrap();
        fs::create_dir_all(path.join("usr")).unwrap();
        fs::create_dir_all(path.join("etc")).unwrap();
        symlink(&outside, path.join("etc/passwd")).unwrap();
        tree.finish().unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
        let other = ground.path().join("other");
        let tree = Tree::make(&other, 0).unwrap();
        fs::create_dir_all(other.join("usr")).unwrap();
        symlink(ground.path(), other.join("etc")).unwrap();
        assert!(tree.finish().is_err(), "the way to the tables leads out");
    }
}
