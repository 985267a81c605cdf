//! Contents of some of the session's files, in one stream.
//!
//! Commands may be running, and what was a file in a scan may be a link or a pipe by now: each component of a path
//! is opened without following a link, and only the content of a regular file is read.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use rustix::{
    fs::{CWD, FileType, Mode, Stat, fstat, openat},
    io::Errno,
};
use sojourn_init::{
    protocol::ROOTS,
    scan::{CHANGED, CONTENT, GONE, UNCHANGED},
};

use super::{AS_IT_IS, PART_BYTES, open_directory, pack::Parts, size, times};

pub(super) fn run(caller: &mut UnixStream, paths: &[Vec<u8>]) -> io::Result<()> {
    let mut out = Parts::new(caller);
    send(&mut out, &ROOTS, paths)?;
    out.flush()
}

/// Sends files below directories: the name in the paths, the path in the sandbox.
fn send(out: &mut impl Write, roots: &[(&str, &str)], paths: &[Vec<u8>]) -> io::Result<()> {
    let mut opener = Opener { roots, directories: Vec::new() };
    let mut buffer = vec![0; PART_BYTES];
    for path in paths {
        match opener.open(path) {
            Ok((file, stat)) => send_content(out, file, &stat, &mut buffer)?,
            Err(_) => out.write_all(&[GONE])?,
        }
    }
    Ok(())
}

/// Opens files. The directories of one stay open for the next, which is often beside it.
struct Opener<'a> {
    roots: &'a [(&'a str, &'a str)],
    /// Directories of the last path with their names, from the root.
    directories: Vec<(Vec<u8>, OwnedFd)>,
}

impl Opener<'_> {
    fn open(&mut self, path: &[u8]) -> Result<(File, Stat), Errno> {
        let mut names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        let name = names.pop().unwrap_or_default();
        let opened = self.directories.iter().zip(&names);
        let shared = opened.take_while(|((opened, _), name)| opened.as_slice() == **name).count();
        self.directories.truncate(shared);
        for name in &names[shared..] {
            let directory = match self.directories.last() {
                Some((_, parent)) => open_directory(parent, *name)?,
                None => open_directory(CWD, self.root(name)?)?,
            };
            self.directories.push((name.to_vec(), directory));
        }
        // A root itself has no parent.
        let (_, parent) = self.directories.last().ok_or(Errno::ISDIR)?;
        let file = openat(parent, name, AS_IT_IS, Mode::empty())?;
        let stat = fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((File::from(file), stat)),
            _ => Err(Errno::INVAL),
        }
    }

    fn root(&self, name: &[u8]) -> Result<&str, Errno> {
        let root = self.roots.iter().find(|(root, _)| root.as_bytes() == name);
        root.map(|(_, path)| *path).ok_or(Errno::NOENT)
    }
}

/// Sends the size of a file, that many bytes, and whether it changed meanwhile.
fn send_content(out: &mut impl Write, mut file: File, before: &Stat, buffer: &mut [u8]) -> io::Result<()> {
    let mut left = size(before);
    out.write_all(&[CONTENT])?;
    out.write_all(&left.to_le_bytes())?;
    let mut is_complete = true;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let length = match is_complete.then(|| file.read(&mut buffer[..wanted])) {
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => continue,
            Some(Ok(length)) if length > 0 => length,
            // It became shorter, or cannot be read further.
            _ => {
                is_complete = false;
                buffer[..wanted].fill(0);
                wanted
            }
        };
        out.write_all(&buffer[..length])?;
        left -= length as u64;
    }
    let state = |stat: &Stat| (size(stat), times(stat));
    let is_unchanged = is_complete && fstat(&file).is_ok_and(|after| state(&after) == state(before));
    out.write_all(&[if is_unchanged { UNCHANGED } else { CHANGED }])
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::fs::symlink, path::Path, process};

    use super::*;

    /// Returns the bytes that are sent for these paths below a root.
    fn sent(root: &Path, paths: &[&str]) -> Vec<u8> {
        let paths: Vec<_> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        let mut out = Vec::new();
        send(&mut out, &[("workspace", root.to_str().unwrap())], &paths).unwrap();
        out
    }

    #[test]
    fn only_regular_files_are_sent_and_no_link_is_followed() {
        let root = env::temp_dir().join(format!("sojourn-fetch-{}", process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "content").unwrap();
        fs::write(root.join("a/empty"), "").unwrap();
        symlink("file", root.join("a/b/link")).unwrap();
        symlink("a", root.join("beside")).unwrap();
        let file = [[CONTENT, 7, 0, 0, 0, 0, 0, 0, 0].as_slice(), b"content", &[UNCHANGED]].concat();
        let empty = [CONTENT, 0, 0, 0, 0, 0, 0, 0, 0, UNCHANGED];
        let all = sent(
            &root,
            &[
                "workspace/a/b/file",
                "workspace/a/b/link",
                "workspace/beside/b/file",
                "workspace/a/b",
                "workspace/a/empty",
                "workspace/missing/file",
                "workspace",
                "home/file",
                "workspace/a/b/file/below",
                "workspace/a/b/file",
            ],
        );
        fs::remove_dir_all(&root).unwrap();
        let gone: &[u8] = &[GONE];
        let expected: [&[u8]; 10] = [&file, gone, gone, gone, &empty, gone, gone, gone, gone, &file];
        assert_eq!(all, expected.concat());
    }

    #[test]
    fn a_file_that_became_shorter_is_filled_up_and_changed() {
        let path = env::temp_dir().join(format!("sojourn-fetch-short-{}", process::id()));
        fs::write(&path, "content").unwrap();
        let file = File::open(&path).unwrap();
        let before = fstat(&file).unwrap();
        fs::write(&path, "con").unwrap();
        let mut out = Vec::new();
        send_content(&mut out, file, &before, &mut [0; 2]).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(out[9..], [b"con\0\0\0\0".as_slice(), &[CHANGED]].concat());
    }
}
