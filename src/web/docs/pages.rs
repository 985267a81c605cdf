//! The files of `docs/`: their text, and the targets of links between them.

use std::{
    borrow::Cow,
    path::{Component, Path},
};

use rust_embed::{EmbeddedFile, RustEmbed};

/// Markdown files of the repository's `docs/`; a debug build reads them from disk.
#[derive(RustEmbed)]
#[folder = "docs"]
#[include = "*.md"]
struct Files;

const README: &str = include_str!("../../../README.md");

/// Text of a file, given by its path in the repository.
pub(super) fn text(file: &str) -> Option<Cow<'static, str>> {
    if file == "README.md" {
        return Some(README.into());
    }
    let name = file.strip_prefix("docs/").filter(|name| is_plain(name))?;
    let EmbeddedFile { data, .. } = Files::get(name)?;
    match data {
        Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::from),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::from),
    }
}

/// Address at which a file of the repository is served; `None` for other files.
pub(super) fn address(file: &str) -> Option<String> {
    match file {
        "README.md" => Some("/docs/readme".to_owned()),
        "docs/README.md" => Some("/docs".to_owned()),
        "openapi.yaml" => Some("/docs/openapi.yaml".to_owned()),
        file => file.strip_prefix("docs/")?.strip_suffix(".md").map(|name| format!("/docs/{name}")),
    }
}

/// Target of a link in `file`: absolute links and anchors are unchanged, a file becomes its address. `None`
/// if the file is not served.
pub(super) fn target(link: &str, file: &str) -> Option<String> {
    let is_absolute = link.starts_with('/') || link.starts_with("https://") || link.starts_with("http://");
    if is_absolute || link.starts_with('#') {
        return Some(link.to_owned());
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let mut whole: Vec<&str> = file.split('/').collect();
    whole.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(whole.pop()),
            part => whole.push(part),
        }
    }
    let address = address(&whole.join("/"))?;
    Some(anchor.map_or_else(|| address.clone(), |anchor| format!("{address}#{anchor}")))
}

/// Whether a name has only normal path components, so that it cannot leave the directory.
fn is_plain(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_between_files_becomes_one_between_pages() {
        let from = "docs/events/turn.completed.md";
        for (link, leads) in [
            ("../errors.md#errors-of-a-turn", Some("/docs/errors#errors-of-a-turn")),
            ("agent.message.md", Some("/docs/events/agent.message")),
            ("../README.md", Some("/docs")),
            ("../../README.md", Some("/docs/readme")),
            ("../../openapi.yaml", Some("/docs/openapi.yaml")),
            ("../../Dockerfile", None),
            ("#example", Some("#example")),
            ("https://nexte.st/", Some("https://nexte.st/")),
            ("/docs/api", Some("/docs/api")),
        ] {
            assert_eq!(target(link, from).as_deref(), leads, "{link}");
        }
        assert_eq!(target("docs/limits.md", "README.md").as_deref(), Some("/docs/limits"));
    }
}
