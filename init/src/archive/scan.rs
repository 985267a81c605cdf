//! List of the session's files: a walk that opens no file, follows no link and changes no mode.
//!
//! Commands may be running: entries that disappear during the walk are skipped. So are files and directories that
//! their owner closed, unlike in a checkpoint, which opens them while nothing else runs.

use std::{
    ffi::{CStr, CString},
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Stat, readlinkat, statat},
    io::Errno,
};
use sojourn_init::{
    frame,
    protocol::{Answer, ROOTS},
    scan::{EntryKind, PATH_BYTES_MAX, ScanEntry},
};

use super::{is_gone, names, open_directory, refused, size, times};

/// Size from which a part is sent, in bytes.
const PART_BYTES: usize = 64 << 10;
/// Permissions of the owner without which a file, or a directory, is closed.
const READABLE: u32 = 0o400;
const WALKABLE: u32 = 0o500;

pub(super) fn run(caller: &mut UnixStream, entries_max: u64) -> io::Result<()> {
    let mut roots = ROOTS;
    roots.sort_unstable();
    list(caller, &roots, entries_max)
}

/// Lists directories: the name in the list, the path in the sandbox.
fn list(out: &mut impl Write, roots: &[(&str, &str)], entries_max: u64) -> io::Result<()> {
    let mut scanner = Scanner { out, part: Vec::new(), entries: 0, entries_max };
    for &(name, path) in roots {
        scanner.count()?;
        let path = CString::new(path)?;
        scanner.entry(CWD, &path, name.as_bytes()).map_err(|error| match is_closed(&error) {
            // Without it, the list would be one of removed files.
            true => refused(format!("{name}: the sandbox's user has no permission to read it")),
            false => error,
        })?;
    }
    scanner.flush()
}

struct Scanner<'a, W> {
    out: &'a mut W,
    /// Entries that are not sent yet.
    part: Vec<u8>,
    /// Names that were read so far, also those of closed files.
    entries: u64,
    entries_max: u64,
}

impl<W: Write> Scanner<'_, W> {
    fn entry(&mut self, parent: impl AsFd, name: &CStr, path: &[u8]) -> io::Result<()> {
        let parent = parent.as_fd();
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_open = |permissions: u32| stat.st_mode & permissions == permissions;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if is_open(WALKABLE) => self.directory(parent, name, path, &stat),
            FileType::RegularFile if is_open(READABLE) => self.add(path, EntryKind::File, &stat, Vec::new()),
            FileType::Directory | FileType::RegularFile => Err(Errno::ACCESS.into()),
            FileType::Symlink => match readlinkat(parent, name, Vec::new()) {
                // It was replaced.
                Err(Errno::INVAL) => Ok(()),
                target => self.add(path, EntryKind::Link, &stat, target?.into_bytes()),
            },
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(()),
        }
    }

    fn directory(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &[u8], stat: &Stat) -> io::Result<()> {
        let directory = open_directory(parent, name)?;
        // Counted as they are read: a directory with more names than memory ends here.
        let below = names(&directory, |entry| {
            let may_be_listed = matches!(
                entry.file_type(),
                FileType::Directory | FileType::RegularFile | FileType::Symlink | FileType::Unknown
            );
            if may_be_listed {
                self.count()?;
            }
            Ok(may_be_listed)
        })?;
        self.add(path, EntryKind::Directory, stat, Vec::new())?;
        for name in below {
            let path = [path, b"/", name.as_bytes()].concat();
            match self.entry(&directory, &name, &path) {
                Err(error) if is_gone(&error) || is_closed(&error) => {}
                listed => listed?,
            }
        }
        Ok(())
    }

    /// # Errors
    /// `InvalidInput` at more entries than were asked for.
    fn count(&mut self) -> io::Result<()> {
        self.entries += 1;
        match self.entries > self.entries_max {
            true => Err(refused(format!("there are more than {} files", self.entries_max))),
            false => Ok(()),
        }
    }

    fn add(&mut self, path: &[u8], kind: EntryKind, stat: &Stat, target: Vec<u8>) -> io::Result<()> {
        if path.len() > PATH_BYTES_MAX {
            return Err(refused(format!("a path is longer than {PATH_BYTES_MAX} bytes")));
        }
        let (mtime_ns, ctime_ns) = times(stat);
        let entry = ScanEntry {
            path: path.to_vec(),
            kind,
            mode: stat.st_mode & 0o7777,
            size: if kind == EntryKind::File { size(stat) } else { 0 },
            mtime_ns,
            ctime_ns,
            inode: stat.st_ino,
            links: wide(stat.st_nlink),
            target,
        };
        entry.encode(&mut self.part);
        if self.part.len() >= PART_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.part.is_empty() {
            frame::write(self.out, &Answer::Part {}, &self.part)?;
            self.part.clear();
        }
        Ok(())
    }
}

fn is_closed(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::ACCESS)
}

/// A number of `stat` that has 32 bits on some architectures.
fn wide(number: impl Into<u64>) -> u64 {
    number.into()
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
        path::{Path, PathBuf},
        process,
    };

    use super::*;

    /// A directory that is removed at the end.
    struct Ground(PathBuf);

    impl Ground {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("sojourn-scan-{name}-{}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// Parts of a list, or the reason of its refusal.
        fn parts(&self, entries_max: u64) -> Result<Vec<Vec<u8>>, String> {
            let mut sent = Vec::new();
            let roots = [("workspace", self.0.to_str().unwrap())];
            list(&mut sent, &roots, entries_max).map_err(|error| error.to_string())?;
            let (mut left, mut parts) = (sent.as_slice(), Vec::new());
            while !left.is_empty() {
                let (answer, part) = frame::read::<Answer>(&mut left).unwrap();
                assert_eq!(answer, Answer::Part {});
                parts.push(part);
            }
            Ok(parts)
        }

        fn entries(&self) -> Vec<ScanEntry> {
            let mut entries = Vec::new();
            for part in self.parts(1_000).unwrap() {
                let mut left = part.as_slice();
                while !left.is_empty() {
                    entries.push(ScanEntry::decode(&mut left).unwrap());
                }
            }
            entries
        }
    }

    impl Drop for Ground {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn close(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_list_is_depth_first_and_leaves_out_what_is_closed() {
        let ground = Ground::new("order");
        let at = |name: &str| ground.0.join(name);
        for directory in ["a", "a/empty", "closed", "listed"] {
            fs::create_dir(at(directory)).unwrap();
        }
        for file in ["a/x", "a.b", "closed/x", "listed/x", "secret"] {
            fs::write(at(file), "four").unwrap();
        }
        symlink("/nowhere", at("link")).unwrap();
        fs::hard_link(at("a/x"), at("z")).unwrap();
        close(&at("a/x"), 0o4750);
        for (name, mode) in [("secret", 0o200), ("closed", 0o000), ("listed", 0o600)] {
            close(&at(name), mode);
        }
        let entries = ground.entries();
        let modes =
            ["secret", "closed", "listed"].map(|name| fs::metadata(at(name)).unwrap().mode() & 0o7777);
        for name in ["closed", "listed"] {
            close(&at(name), 0o700);
        }
        let paths: Vec<_> = entries.iter().map(|entry| String::from_utf8_lossy(&entry.path)).collect();
        let expected = ["", "/a", "/a/empty", "/a/x", "/a.b", "/link", "/z"];
        assert_eq!(paths, expected.map(|path| format!("workspace{path}")));
        assert_eq!(modes, [0o200, 0, 0o600], "a mode was changed");
        let (x, link, z) = (&entries[3], &entries[5], &entries[6]);
        let meta = fs::metadata(at("z")).unwrap();
        assert_eq!((z.kind, z.mode, z.size, z.links), (EntryKind::File, 0o4750, 4, 2));
        assert_eq!((z.inode, z.mtime_ns), (meta.ino(), meta.mtime() * 1_000_000_000 + meta.mtime_nsec()));
        assert_eq!(z.ctime_ns, meta.ctime() * 1_000_000_000 + meta.ctime_nsec());
        assert_eq!(ScanEntry { path: z.path.clone(), ..x.clone() }, *z);
        assert_eq!(
            (link.kind, link.size, link.target.as_slice()),
            (EntryKind::Link, 0, b"/nowhere".as_slice())
        );
    }

    #[test]
    fn more_entries_than_were_asked_for_are_refused() {
        let ground = Ground::new("many");
        for number in 0..1_500 {
            fs::write(ground.0.join(format!("{number:0>200}")), "").unwrap();
        }
        let parts = ground.parts(1_501).unwrap();
        assert!(parts.len() > 3, "{} parts", parts.len());
        assert!(parts.iter().all(|part| part.len() < PART_BYTES + 1_000));
        assert_eq!(ground.parts(1_500), Err("there are more than 1500 files".to_owned()));
    }

    #[test]
    fn a_closed_root_is_no_empty_list() {
        let ground = Ground::new("closed");
        close(&ground.0, 0o300);
        let refused = ground.parts(10);
        close(&ground.0, 0o700);
        let reason = "workspace: the sandbox's user has no permission to read it";
        assert_eq!(refused, Err(reason.to_owned()));
    }
}
