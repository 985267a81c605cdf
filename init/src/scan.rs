//! Formats of a scan and of a fetch: entries of a list of files, paths of a call, marks in a stream of contents.
//!
//! Encoded by the file helper and decoded by the client in the service's `sandbox` module, or the other way
//! round. Numbers are little endian. Both sides check what they decode before anything is allocated.
//!
//! A fetch answers with one stream of bytes. For each path in order it has [`CONTENT`], the size as u64, that
//! many bytes, then [`UNCHANGED`] or [`CHANGED`]; or only [`GONE`].

use std::io;

use crate::protocol::ROOTS;

/// Maximum length of a path in bytes: it can be opened in one call.
pub const PATH_BYTES_MAX: usize = 4_000;
/// Maximum length of a link's target in bytes, in Linux.
pub const TARGET_BYTES_MAX: usize = 4_096;
/// A size and a content follow.
pub const CONTENT: u8 = 0;
/// There is no regular file at this path any more, or it cannot be read.
pub const GONE: u8 = 1;
/// Size and times of the file were the same before and after its content was read.
pub const UNCHANGED: u8 = 0;
/// The file changed while its content was read: the content may be of two versions, and has zeros where the
/// file became shorter.
pub const CHANGED: u8 = 1;

/// Type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A regular file.
    File,
    Directory,
    /// A symbolic link.
    Link,
}

/// State of a file, directory or link, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanEntry {
    /// Below the name of a root, without a leading slash: see [`is_path`].
    pub path: Vec<u8>,
    pub kind: EntryKind,
    /// Permissions, at most 0o7777.
    pub mode: u32,
    /// Size of a file in bytes; 0 for directories and links.
    pub size: u64,
    /// Time of the last change of the content, in nanoseconds since 1970; at the end of the range for later times.
    pub mtime_ns: i64,
    /// Time of the last change of content or state, which commands cannot set.
    pub ctime_ns: i64,
    pub inode: u64,
    /// Number of hard links.
    pub links: u64,
    /// Target of a link; empty for files and directories.
    pub target: Vec<u8>,
}

impl ScanEntry {
    /// Appends the entry to a part.
    pub fn encode(&self, part: &mut Vec<u8>) {
        part.push(match self.kind {
            EntryKind::File => 0,
            EntryKind::Directory => 1,
            EntryKind::Link => 2,
        });
        part.extend_from_slice(&self.mode.to_le_bytes());
        let (mtime, ctime) = (self.mtime_ns.cast_unsigned(), self.ctime_ns.cast_unsigned());
        for number in [self.size, mtime, ctime, self.inode, self.links] {
            part.extend_from_slice(&number.to_le_bytes());
        }
        for bytes in [&self.path, &self.target] {
            part.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            part.extend_from_slice(bytes);
        }
    }

    /// Takes the first entry of a part.
    ///
    /// # Errors
    /// `UnexpectedEof` when the part ends within the entry; `InvalidData` when it is no entry of the session's
    /// files.
    pub fn decode(part: &mut &[u8]) -> io::Result<Self> {
        let kind = match take::<1>(part)? {
            [0] => EntryKind::File,
            [1] => EntryKind::Directory,
            [2] => EntryKind::Link,
            _ => return Err(invalid("an entry has an unknown type")),
        };
        let mode = u32::from_le_bytes(take(part)?);
        let entry = Self {
            kind,
            mode,
            size: number(part)?,
            mtime_ns: number(part)?.cast_signed(),
            ctime_ns: number(part)?.cast_signed(),
            inode: number(part)?,
            links: number(part)?,
            path: text(part, PATH_BYTES_MAX)?,
            target: text(part, TARGET_BYTES_MAX)?,
        };
        if !is_path(&entry.path) {
            return Err(invalid("a path is outside of the session's files"));
        }
        if mode > 0o7777 || (kind == EntryKind::Link) == entry.target.is_empty() {
            return Err(invalid("the state of an entry is impossible"));
        }
        Ok(entry)
    }
}

/// Whether this names a root, or something below one: components without `.`, `..` and empty ones, at most
/// [`PATH_BYTES_MAX`] bytes.
pub fn is_path(path: &[u8]) -> bool {
    let mut names = path.split(|&byte| byte == b'/');
    let root = names.next().unwrap_or_default();
    path.len() <= PATH_BYTES_MAX
        && !path.contains(&0)
        && ROOTS.iter().any(|(name, _)| name.as_bytes() == root)
        && names.all(|name| !matches!(name, b"" | b"." | b".."))
}

/// Appends a path to the payload of a fetch.
pub fn encode_path(path: &[u8], payload: &mut Vec<u8>) {
    payload.extend_from_slice(path);
    payload.push(0);
}

/// Paths of the payload of a fetch.
///
/// # Errors
/// `InvalidData` when one of them is incomplete or outside of the session's files.
pub fn decode_paths(payload: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    if payload.is_empty() {
        return Ok(Vec::new());
    }
    let paths = payload.strip_suffix(&[0]).ok_or_else(|| invalid("a path has no end"))?;
    let path = |path: &[u8]| match is_path(path) {
        true => Ok(path.to_vec()),
        false => Err(invalid("a path is outside of the session's files")),
    };
    paths.split(|&byte| byte == 0).map(path).collect()
}

fn take<const BYTES: usize>(part: &mut &[u8]) -> io::Result<[u8; BYTES]> {
    let (head, rest) = part.split_first_chunk::<BYTES>().ok_or(io::ErrorKind::UnexpectedEof)?;
    *part = rest;
    Ok(*head)
}

fn number(part: &mut &[u8]) -> io::Result<u64> {
    take(part).map(u64::from_le_bytes)
}

/// Takes a length and that many bytes.
fn text(part: &mut &[u8], bytes_max: usize) -> io::Result<Vec<u8>> {
    let length = usize::try_from(u32::from_le_bytes(take(part)?)).unwrap_or(usize::MAX);
    if length > bytes_max {
        return Err(invalid("a name is too long"));
    }
    let (text, rest) = part.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
    *part = rest;
    Ok(text.to_vec())
}

fn invalid(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> [ScanEntry; 3] {
        let file = ScanEntry {
            path: b"workspace/line\nend\xff".to_vec(),
            kind: EntryKind::File,
            mode: 0o4755,
            size: u64::MAX,
            mtime_ns: i64::MIN,
            ctime_ns: i64::MAX,
            inode: 7,
            links: 2,
            target: Vec::new(),
        };
        let directory =
            ScanEntry { path: b"home".to_vec(), kind: EntryKind::Directory, size: 0, ..file.clone() };
        let target = vec![b'x'; TARGET_BYTES_MAX];
        let path = [b"home/".as_slice(), &[b'y'; PATH_BYTES_MAX - 5]].concat();
        let link = ScanEntry { path, kind: EntryKind::Link, target, size: 0, ..file.clone() };
        [file, directory, link]
    }

    #[test]
    fn entries_come_back_one_after_the_other() {
        let mut part = Vec::new();
        for entry in entries() {
            entry.encode(&mut part);
        }
        let mut left = part.as_slice();
        for entry in entries() {
            assert_eq!(ScanEntry::decode(&mut left).unwrap(), entry);
        }
        assert!(left.is_empty());
    }

    #[test]
    fn a_cut_entry_is_an_error() {
        for entry in entries() {
            let mut part = Vec::new();
            entry.encode(&mut part);
            for end in 0..part.len() {
                assert!(ScanEntry::decode(&mut &part[..end]).is_err(), "{end} bytes were accepted");
            }
        }
    }

    #[test]
    fn an_impossible_entry_is_an_error() {
        let [file, directory, link] = entries();
        let bad = [
            ScanEntry { path: b"/workspace/a".to_vec(), ..file.clone() },
            ScanEntry { path: vec![b'a'; PATH_BYTES_MAX + 1], ..file.clone() },
            ScanEntry { mode: 0o10000, ..file.clone() },
            ScanEntry { target: b"a".to_vec(), ..file },
            ScanEntry { target: b"a".to_vec(), ..directory },
            ScanEntry { target: Vec::new(), ..link.clone() },
            ScanEntry { target: vec![b'a'; TARGET_BYTES_MAX + 1], ..link },
        ];
        for entry in bad {
            let mut part = Vec::new();
            entry.encode(&mut part);
            let error = ScanEntry::decode(&mut part.as_slice()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{entry:?}");
        }
        // An unknown type, and a name that announces 4 GiB.
        assert!(ScanEntry::decode(&mut [3; 200].as_slice()).is_err());
        let huge = [[0; 45].as_slice(), &[0xff; 4]].concat();
        assert_eq!(ScanEntry::decode(&mut huge.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_path_stays_below_a_root() {
        for good in [b"workspace".as_slice(), b"home/a", b"workspace/..a/...", b"workspace/\xff\n"] {
            assert!(is_path(good), "{good:?} was refused");
        }
        for bad in [
            b"".as_slice(),
            b"/",
            b"/workspace",
            b"tmp/a",
            b"workspaces",
            b"..",
            b"workspace/",
            b"workspace//a",
            b"workspace/./a",
            b"workspace/a/..",
            b"workspace/a\0b",
        ] {
            assert!(!is_path(bad), "{bad:?} was accepted");
        }
    }

    #[test]
    fn paths_of_a_call_come_back() {
        let paths = [b"workspace/line\nend".to_vec(), b"home/\xff".to_vec()];
        let mut payload = Vec::new();
        for path in &paths {
            encode_path(path, &mut payload);
        }
        assert_eq!(decode_paths(&payload).unwrap(), paths);
        assert_eq!(decode_paths(b"").unwrap(), Vec::<Vec<u8>>::new());
        for bad in [b"\0".as_slice(), b"home", b"home/a\0home", b"home\0\0", b"/etc/passwd\0"] {
            assert!(decode_paths(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
