//! Folders as archives, for skills.

/// A tar archive of these files.
pub fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(if path.ends_with(".sh") { 0o755 } else { 0o644 });
        archive.append_data(&mut header, path, content.as_bytes()).expect("in memory");
    }
    archive.into_inner().expect("in memory")
}

/// The `SKILL.md` of a skill.
pub fn instructions(name: &str, body: &str) -> String {
    format!("---\nname: {name}\ndescription: Says {name}.\n---\n{body}\n")
}
