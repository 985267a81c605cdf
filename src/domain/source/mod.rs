//! Sources: repositories cloned into a session's sandbox before its first command.
//!
//! Configured by an environment, an agent, a schedule or trigger, and the session itself; pinned in
//! `session.created`; read by the worker that creates the sandbox. Pure: rules and their error
//! messages. The values are passed to git verbatim, so none may be parsed as an option, leave the
//! workspace, or refer to another repository.

mod progress;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use url::Url;
use utoipa::ToSchema;

use super::{
    CredentialId,
    network::{BadHost, canonical},
    problem::Problem,
};

pub(crate) use progress::{PROGRESS, Progress, SourceLog, SourceStatus, State};

/// Provider name of credentials that open repositories.
pub(crate) const PROVIDER: &str = "git";
/// Max number of sources of one session.
pub(crate) const SOURCES_MAX: usize = 16;
/// Default directory of sources.
pub(crate) const DIRECTORY: &str = "/workspace/sources";

const WORKSPACE: &str = "/workspace";
const URL_BYTES_MAX: usize = 1_000;
const NAME_BYTES_MAX: usize = 100;
const REF_BYTES_MAX: usize = 250;
const PATH_BYTES_MAX: usize = 500;
const DEPTH_MAX: u32 = 1_000_000;

/// A repository to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = SessionSource)]
pub struct Repository {
    /// `https://host/path` without a credential, or `file:///path` of a repository that the
    /// operator allows to be cloned. Excludes `repo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// `owner/name` on github.com. Excludes `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// A branch, a tag, or a full ref such as `refs/pull/7/head`; the repository's default branch
    /// when absent.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The commit to check out: 40 or 64 hexadecimal digits; the commit of `ref` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha: Option<String>,
    /// Unique name within the session; the last part of the URL when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Target directory within `/workspace`; `/workspace/sources/<name>` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Number of commits of history to fetch; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Id or name of a credential of the provider `git` whose `base_url` is a prefix of the URL. When
    /// absent, the organization's default credential if it matches, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
}

/// A source that is pinned to a session; immutable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinnedSource {
    pub name: String,
    pub url: String,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none", default)]
    pub reference: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sha: Option<String>,
    /// Absolute path.
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub depth: Option<u32>,
    /// The credential's value may change; its id is fixed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>)]
    pub credential_id: Option<CredentialId>,
}

/// Location of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RepositoryLocation {
    /// On a host, over TLS.
    Host {
        /// Canonical host name.
        host: String,
        port: u16,
        /// Without a trailing `.git`.
        path: String,
    },
    /// On the worker's own disk.
    Local(PathBuf),
}

/// Parses a repository URL.
///
/// # Errors
/// A message for the caller.
pub(crate) fn place(url: &str) -> Result<RepositoryLocation, &'static str> {
    const WORDS: &str = "must be https://host/path without user, query or fragment, or file:///path";
    if url.len() > URL_BYTES_MAX || url.chars().any(|character| character.is_control() || character == '\\') {
        return Err(WORDS);
    }
    let parsed = Url::parse(url).map_err(|_| WORDS)?;
    let has_more = parsed.query().is_some() || parsed.fragment().is_some();
    if has_more || !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(WORDS);
    }
    if parsed.scheme() == "file" && parsed.host().is_none() {
        let path = parsed.to_file_path().map_err(|()| WORDS)?;
        return if path.parent().is_some() { Ok(RepositoryLocation::Local(path)) } else { Err(WORDS) };
    }
    if parsed.scheme() != "https" {
        return Err(WORDS);
    }
    let host = canonical(parsed.host_str().unwrap_or_default()).map_err(|bad| match bad {
        BadHost::Address => "must name a host, not an address",
        BadHost::Name | BadHost::Wildcard => WORDS,
    })?;
    // The validated path is the one that is sent; no spelling may refer to another path.
    let path = parsed.path().trim_end_matches('/');
    let is_plain = |segment: &str| !matches!(segment, "" | "." | "..");
    let lower = path.to_ascii_lowercase();
    let is_escaped =
        ["%2f", "%5c", "%2e", "%25", "%3b", "%0", ";"].iter().any(|escape| lower.contains(escape));
    let path = path.strip_suffix(".git").unwrap_or(path);
    if is_escaped || !path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_plain)) {
        return Err(WORDS);
    }
    Ok(RepositoryLocation::Host { host, port: parsed.port().unwrap_or(443), path: path.to_owned() })
}

/// Returns whether a credential for `base_url` may be sent to `place`.
pub(crate) fn covers(base_url: &str, place: &RepositoryLocation) -> bool {
    let RepositoryLocation::Host { host, port, path } = place else { return false };
    let Some(base) = base(base_url) else { return false };
    let is_below = path
        .strip_prefix(base.2.as_str())
        .is_some_and(|rest| base.2.is_empty() || rest.is_empty() || rest.starts_with('/'));
    base.0 == *host && base.1 == *port && is_below
}

/// Returns host, port and path prefix of a base URL; a host alone covers all of its paths.
pub(crate) fn base(base_url: &str) -> Option<(String, u16, String)> {
    let whole = format!("{}/x", base_url.trim_end_matches('/'));
    match place(&whole).ok()? {
        RepositoryLocation::Host { host, port, path } => {
            let path = path.strip_suffix("/x")?;
            Some((host, port, path.strip_suffix(".git").unwrap_or(path).to_owned()))
        }
        RepositoryLocation::Local(_) => None,
    }
}

impl Repository {
    /// Validates the repository and returns its source, without a credential.
    ///
    /// # Errors
    /// The invalid field, and a message for the caller.
    pub fn pinned(&self) -> Result<PinnedSource, Problem> {
        let wrong = |field: &str, words: &str| Err((field.to_owned(), words.to_owned()));
        let url = match (&self.url, &self.repo) {
            (Some(url), None) => url.clone(),
            (None, Some(slug)) if is_slug(slug) => format!("https://github.com/{slug}"),
            (None, Some(_)) => return wrong("repo", "must be owner/name on github.com"),
            (Some(_), Some(_)) | (None, None) => return wrong("url", "or `repo` must be set, not both"),
        };
        let place = match place(&url) {
            Ok(place) => place,
            Err(words) => return wrong("url", words),
        };
        if self.reference.as_ref().is_some_and(|reference| !is_reference(reference)) {
            return wrong("ref", "must be a branch or tag name, or begin with refs/");
        }
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if self.sha.as_ref().is_some_and(|sha| ![40, 64].contains(&sha.len()) || !sha.bytes().all(is_digit)) {
            return wrong("sha", "must be a full commit id: 40 or 64 lower-case hexadecimal digits");
        }
        if self.depth.is_some_and(|depth| !(1..=DEPTH_MAX).contains(&depth)) {
            return wrong("depth", "must be 1 to 1000000");
        }
        let is_local = matches!(place, RepositoryLocation::Local(_));
        if is_local && (self.depth.is_some() || self.credential.is_some()) {
            return wrong(if self.depth.is_some() { "depth" } else { "credential" }, "requires an https URL");
        }
        let own = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let name = self.name.as_deref().unwrap_or(own.strip_suffix(".git").unwrap_or(own));
        if !is_name(name) {
            return wrong("name", "must be letters, digits, `.`, `_` and `-`, and not begin with `.` or `-`");
        }
        let path = match &self.path {
            None => format!("{DIRECTORY}/{name}"),
            Some(path) => match within_workspace(path) {
                Some(path) => path,
                None => return wrong("path", "must be a directory below /workspace, without `..` or `.git`"),
            },
        };
        let (reference, sha, depth) = (self.reference.clone(), self.sha.clone(), self.depth);
        Ok(PinnedSource { name: name.to_owned(), url, reference, sha, path, depth, credential_id: None })
    }
}

/// Returns the first invalid field of a list of sources.
pub(crate) fn problem(sources: &[Repository]) -> Option<Problem> {
    if sources.len() > SOURCES_MAX {
        return Some(("sources".to_owned(), format!("must have at most {SOURCES_MAX} items")));
    }
    let mut pinned = Vec::with_capacity(sources.len());
    for (at, source) in sources.iter().enumerate() {
        match source.pinned() {
            Ok(source) => pinned.push(source),
            Err((field, words)) => return Some((format!("sources[{at}].{field}"), words)),
        }
    }
    together(&pinned).map(|words| ("sources".to_owned(), words))
}

/// Returns a conflict between sources in one workspace.
pub(crate) fn together(sources: &[PinnedSource]) -> Option<String> {
    if sources.len() > SOURCES_MAX {
        return Some(format!("must have at most {SOURCES_MAX}, incl. those of the environment and agent"));
    }
    let is_within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    sources.iter().enumerate().find_map(|(at, source)| {
        sources[..at].iter().find_map(|other| {
            if source.name == other.name {
                return Some(format!("contains two sources named `{}`", source.name));
            }
            let meet = is_within(&source.path, &other.path) || is_within(&other.path, &source.path);
            meet.then(|| format!("contains `{}` and `{}` at overlapping paths", other.name, source.name))
        })
    })
}

/// Adds the sources of a parent session to those of its child, but none that the child has no place for.
pub(crate) fn join(own: &mut Vec<PinnedSource>, inherited: Vec<PinnedSource>) {
    for source in inherited {
        own.push(source);
        if together(own).is_some() {
            own.pop();
        }
    }
}

/// Merges two lists; a source in `over` replaces one of the same name in `lower`.
pub(crate) fn overridden_by(mut lower: Vec<Repository>, over: &[Repository]) -> Vec<Repository> {
    let name = |source: &Repository| source.pinned().map(|pinned| pinned.name).ok();
    lower.retain(|source| !over.iter().any(|other| name(other) == name(source)));
    lower.extend(over.iter().cloned());
    lower
}

/// Returns the paragraph about sources for the agent's prompt; empty without sources.
pub(crate) fn told(sources: &[PinnedSource]) -> String {
    if sources.is_empty() {
        return String::new();
    }
    let line = |source: &PinnedSource| {
        let what = source.sha.as_ref().or(source.reference.as_ref());
        let at = what.map(|what| format!(" at {what}")).unwrap_or_default();
        format!("- {}: {}{at}\n", source.path, source.url)
    };
    let lines: String = sources.iter().map(line).collect();
    format!("\n\nThese repositories are cloned into the sandbox:\n{lines}")
}

fn is_slug(slug: &str) -> bool {
    slug.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

fn is_name(name: &str) -> bool {
    let is_alphabetic_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_alphabetic_byte)
        && !name.starts_with(['.', '-'])
}

/// Follows git-check-ref-format(1), and must not look like an option.
fn is_reference(name: &str) -> bool {
    let is_bad = |character: char| character.is_control() || " ~^:?*[\\".contains(character);
    let is_part =
        |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock") && part != "@";
    (1..=REF_BYTES_MAX).contains(&name.len())
        && !name.starts_with('-')
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(is_bad)
        && name.split('/').all(is_part)
        && name != "refs"
}

/// Returns the absolute path if it is strictly below the workspace.
fn within_workspace(path: &str) -> Option<String> {
    let relative = match path.strip_prefix('/') {
        None => path,
        Some(_) => path.strip_prefix(WORKSPACE)?.strip_prefix('/')?,
    };
    let relative = relative.trim_end_matches('/');
    let is_plain = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.eq_ignore_ascii_case(".git")
            && !part.chars().any(char::is_control)
    };
    let is_sound = relative.len() <= PATH_BYTES_MAX && relative.split('/').all(is_plain);
    is_sound.then(|| format!("{WORKSPACE}/{relative}"))
}

#[cfg(test)]
mod tests;
