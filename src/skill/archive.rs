//! The archive of one folder: its checks, and the form in which it is stored.
//!
//! The stored form depends only on the files: equal folders have equal bytes, whoever packed them.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Component, Path},
};

use bytes::Bytes;
use serde::Deserialize;
use tar::{Archive, Builder, Entry, EntryType, Header};

use crate::{
    base::{
        limit::{
            FILE_NAME_BYTES_MAX, SKILL_BYTES_MAX, SKILL_DEPTH_MAX, SKILL_DESCRIPTION_CHARS_MAX,
            SKILL_FILES_MAX, SKILL_HEADER_BYTES_MAX, SKILL_NAME_BYTES_MAX, SKILL_PATH_BYTES_MAX,
        },
        seal::sha256,
        text::{self, hex},
    },
    domain::skill::{SKILL_FILE, is_name},
};

/// A skill as it was uploaded.
#[derive(Clone, Debug)]
pub struct SkillArchive {
    pub name: String,
    pub description: String,
    /// Number of its files.
    pub files: u32,
    /// SHA-256 of `content` in hex.
    pub sha256: String,
    /// Tar archive of its files, in the order of their paths, which begin with the name.
    pub content: Bytes,
}

/// A file of a skill.
struct SkillFile {
    content: Vec<u8>,
    is_executable: bool,
}

type Folder = BTreeMap<String, SkillFile>;

/// Header of a `SKILL.md` (agentskills.io/specification). Other fields are allowed and have no effect.
#[derive(Deserialize)]
struct SkillHeader {
    name: String,
    description: String,
}

/// Reads an archive of a folder that has `SKILL.md`, or whose only folder has it.
///
/// # Errors
/// Words for the caller.
pub(super) fn read(archive: &[u8]) -> Result<SkillArchive, String> {
    let folder = without_parent(unpack(archive)?);
    let Some(file) = folder.get(SKILL_FILE) else {
        return Err(format!(
            "the archive has no {SKILL_FILE} at its root; pack the folder with `tar -C FOLDER -cf skill.tar .`"
        ));
    };
    let SkillHeader { name, description } = header(&file.content)?;
    if !is_name(&name) {
        return Err(format!(
            "`name` in {SKILL_FILE} must have 1 to {SKILL_NAME_BYTES_MAX} characters of a-z, 0-9 and -"
        ));
    }
    let description = description.trim().to_owned();
    if !(1..=SKILL_DESCRIPTION_CHARS_MAX).contains(&description.chars().count()) {
        return Err(format!(
            "`description` in {SKILL_FILE} must have 1 to {SKILL_DESCRIPTION_CHARS_MAX} characters"
        ));
    }
    let files = u32::try_from(folder.len()).unwrap_or(u32::MAX);
    let content = pack(&name, folder).map_err(|error| format!("the archive cannot be stored: {error}"))?;
    if content.len() > SKILL_BYTES_MAX {
        return Err(format!("a skill may have at most {} MiB", SKILL_BYTES_MAX >> 20));
    }
    Ok(SkillArchive { name, description, files, sha256: hex(&sha256(&content)), content: content.into() })
}

fn unpack(archive: &[u8]) -> Result<Folder, String> {
    let unreadable = |error: std::io::Error| format!("the body is not a tar archive: {error}");
    let mut folder = Folder::new();
    for entry in Archive::new(archive).entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let Some((path, file)) = read_entry(&mut entry)? else { continue };
        if folder.contains_key(&path) {
            return Err(format!("`{path}` is in the archive twice"));
        }
        folder.insert(path, file);
        if folder.len() > SKILL_FILES_MAX {
            return Err(format!("a skill may have at most {SKILL_FILES_MAX} files"));
        }
    }
    let is_in_file = |path: &str| {
        path.match_indices('/').map(|(at, _)| &path[..at]).any(|above| folder.contains_key(above))
    };
    match folder.keys().find(|path| is_in_file(path)) {
        Some(path) => Err(format!("`{path}` is below a file of the archive")),
        None => Ok(folder),
    }
}

/// Returns the file of an entry; `None` for a directory.
fn read_entry(entry: &mut Entry<'_, &[u8]>) -> Result<Option<(String, SkillFile)>, String> {
    let path = entry.path_bytes();
    let shown = text::truncate(&String::from_utf8_lossy(&path[..path.len().min(SKILL_PATH_BYTES_MAX)]), 100)
        .to_owned();
    // `tar` writes `./` before each path.
    if path.len() > SKILL_PATH_BYTES_MAX + 2 {
        return Err(format!("`{shown}...` must have at most {SKILL_PATH_BYTES_MAX} bytes"));
    }
    let path = entry.path().map_err(|_| format!("`{shown}` is no path"))?;
    let path = path_within(&path).map_err(|words| format!("`{shown}` {words}"))?;
    match entry.header().entry_type() {
        EntryType::Directory | EntryType::XGlobalHeader => return Ok(None),
        EntryType::Regular | EntryType::Continuous => {}
        _ => return Err(format!("`{shown}` is neither a file nor a directory; links are not allowed")),
    }
    if path.is_empty() {
        return Err(format!("`{shown}` is no path of a file"));
    }
    if is_sparse(entry).map_err(|error| format!("`{shown}` cannot be read: {error}"))? {
        return Err(format!("`{shown}` is a sparse file; pack it without --sparse"));
    }
    let mode = entry.header().mode().map_err(|_| format!("`{shown}` has no mode"))?;
    let mut content = Vec::new();
    entry.read_to_end(&mut content).map_err(|error| format!("`{shown}` cannot be read: {error}"))?;
    if content.len() as u64 != entry.size() {
        return Err(format!("`{shown}` is cut off"));
    }
    Ok(Some((path, SkillFile { content, is_executable: mode & 0o111 != 0 })))
}

/// Returns whether pax headers say that the content is that of a sparse file.
fn is_sparse(entry: &mut Entry<'_, &[u8]>) -> std::io::Result<bool> {
    for extension in entry.pax_extensions()?.into_iter().flatten() {
        if extension?.key_bytes().starts_with(b"GNU.sparse.") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns a path below the root, with `/`.
fn path_within(path: &Path) -> Result<String, String> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) if name.len() > FILE_NAME_BYTES_MAX => {
                return Err(format!("has a name of more than {FILE_NAME_BYTES_MAX} bytes"));
            }
            Component::Normal(name) => parts.push(name.to_str().ok_or("is not UTF-8")?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err("is outside of the folder".to_owned());
            }
        }
    }
    if parts.len() > SKILL_DEPTH_MAX {
        return Err(format!("is more than {SKILL_DEPTH_MAX} levels deep"));
    }
    let path = parts.join("/");
    if path.len() > SKILL_PATH_BYTES_MAX || path.contains(char::is_control) {
        return Err(format!("must have at most {SKILL_PATH_BYTES_MAX} bytes, without control characters"));
    }
    Ok(path)
}

/// Removes the directory that contains everything, if `SKILL.md` is in it.
fn without_parent(folder: Folder) -> Folder {
    let first =
        folder.keys().next().and_then(|path| path.split_once('/')).map(|(first, _)| format!("{first}/"));
    let Some(parent) = first.filter(|parent| {
        folder.keys().all(|path| path.starts_with(parent))
            && folder.contains_key(&format!("{parent}{SKILL_FILE}"))
    }) else {
        return folder;
    };
    folder.into_iter().map(|(path, file)| (path[parent.len()..].to_owned(), file)).collect()
}

/// Returns the header of a `SKILL.md`: YAML between two lines of `---`.
fn header(content: &[u8]) -> Result<SkillHeader, String> {
    let missing = || {
        format!(
            "{SKILL_FILE} must begin with a line `---`, YAML with `name` and `description`, and a line `---`"
        )
    };
    let text = std::str::from_utf8(content).map_err(|_| format!("{SKILL_FILE} is not UTF-8"))?;
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return Err(missing());
    }
    let mut yaml = String::new();
    loop {
        match lines.next() {
            Some(line) if line.trim_end() == "---" => break,
            Some(line) if yaml.len() + line.len() < SKILL_HEADER_BYTES_MAX => {
                yaml += line;
                yaml.push('\n');
            }
            Some(_) | None => return Err(missing()),
        }
    }
    yaml_serde::from_str(&yaml).map_err(|error| format!("the header of {SKILL_FILE} cannot be read: {error}"))
}

fn pack(name: &str, folder: Folder) -> std::io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (path, SkillFile { content, is_executable }) in folder {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(if is_executable { 0o755 } else { 0o644 });
        header.set_mtime(0);
        archive.append_data(&mut header, format!("{name}/{path}"), content.as_slice())?;
    }
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "---\nname: pdf\ndescription: Reads PDFs.\nallowed-tools: Bash\n---\nBody\n";

    fn packed(entries: &[(&str, &str, EntryType)]) -> Vec<u8> {
        let mut archive = Builder::new(Vec::new());
        for (path, content, kind) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o600);
            header.set_mtime(9);
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, content.as_bytes()).expect("in memory");
        }
        archive.into_inner().expect("in memory")
    }

    const FILE: EntryType = EntryType::Regular;

    #[test]
    fn equal_folders_have_equal_bytes() {
        let one = read(&packed(&[("SKILL.md", HEADER, FILE), ("a/b.py", "1", FILE)])).expect("a skill");
        let other = packed(&[
            ("./", "", EntryType::Directory),
            ("./a/", "", EntryType::Directory),
            ("./a/b.py", "1", FILE),
            ("./SKILL.md", HEADER, FILE),
        ]);
        let other = read(&other).expect("a skill");
        assert_eq!((&one.sha256, &one.content), (&other.sha256, &other.content));
        assert_eq!((one.name.as_str(), one.description.as_str(), one.files), ("pdf", "Reads PDFs.", 2));
        // The stored form is accepted, and stays the same.
        assert_eq!(read(&one.content).expect("a skill").sha256, one.sha256);
    }

    #[test]
    fn archives_that_are_no_skill_are_refused() {
        let deep = "d/".repeat(16) + "x";
        let (link, device) = (EntryType::Symlink, EntryType::Char);
        let long = format!("---\nname: a\ndescription: {}\n---\n", "d".repeat(1_025));
        for (entries, words) in [
            (vec![], "no SKILL.md"),
            (vec![("a/b/SKILL.md", HEADER, FILE)], "no SKILL.md"),
            (vec![("SKILL.md", "# Title", FILE)], "must begin with a line"),
            (vec![("SKILL.md", "---\nname: a\n", FILE)], "must begin with a line"),
            (vec![("SKILL.md", "---\nname: a\n---\n", FILE)], "description"),
            (vec![("SKILL.md", "---\nname: A b\ndescription: d\n---\n", FILE)], "`name`"),
            (vec![("SKILL.md", "---\nname: a\ndescription: ''\n---\n", FILE)], "`description`"),
            (vec![("SKILL.md", &long, FILE)], "`description`"),
            (vec![("SKILL.md", "---\nname: &a [*a]\n---\n", FILE)], "cannot be read"),
            (vec![("SKILL.md", HEADER, FILE), ("x", "", link)], "links are not allowed"),
            (vec![("SKILL.md", HEADER, FILE), ("x", "", device)], "neither a file"),
            (vec![("SKILL.md", HEADER, FILE), ("../x", "", FILE)], "outside of the folder"),
            (vec![("SKILL.md", HEADER, FILE), ("/x", "", FILE)], "outside of the folder"),
            (vec![("SKILL.md", HEADER, FILE), ("./SKILL.md", "", FILE)], "twice"),
            (vec![("SKILL.md", HEADER, FILE), (&deep, "", FILE)], "levels deep"),
            (vec![("SKILL.md", HEADER, FILE), ("a", "", FILE), ("a/b", "", FILE)], "below a file"),
        ] {
            let refused = read(&packed(&entries)).expect_err(words);
            assert!(refused.contains(words), "{words}: {refused}");
        }
        assert!(read(b"no archive").is_err());
        for (path, words) in
            [("n".repeat(256), "more than 255 bytes"), ("a/".repeat(1 << 20) + "x", "at most 512 bytes")]
        {
            let mut header = Header::new_gnu();
            header.set_size(0);
            header.set_mode(0o644);
            let mut archive = Builder::new(Vec::new());
            archive.append_data(&mut header, path, [].as_slice()).expect("in memory");
            let refused = read(&archive.into_inner().expect("in memory")).expect_err(words);
            assert!(refused.contains(words) && refused.len() < 300, "{words}: {refused}");
        }
        let many: Vec<_> = (0..SKILL_FILES_MAX).map(|at| format!("{at}")).collect();
        let mut entries: Vec<_> = many.iter().map(|name| (name.as_str(), "", FILE)).collect();
        entries.push(("SKILL.md", HEADER, FILE));
        assert!(read(&packed(&entries)).expect_err("too many").contains("at most 500 files"));
    }
}
