//! Root file system of a sandbox: an image plus packages.
//!
//! Validated where an environment is stored or sent with a session, resolved by the worker that
//! creates the sandbox. An organization names an image, never a path. A package name can be only a
//! name: no option, no URL, no file. Pure.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::base::{
    limit::{PACKAGE_BYTES_MAX, PACKAGES_MAX},
    seal::sha256,
    text::hex,
};

/// The image that consists of the machine's own programs.
pub const HOST: &str = "host";
/// The image that the service builds itself.
pub const DEBIAN: &str = "debian";

/// Max length of an image name, in bytes.
const IMAGE_BYTES_MAX: usize = 64;

/// Packages installed over the image before the first session uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Packages {
    /// Debian packages, such as `jq` or `jq=1.6-2.1`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apt: Vec<String>,
    /// Python packages, such as `requests`, `requests==2.32.3` or `requests[socks]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pip: Vec<String>,
    /// npm packages, such as `typescript`, `typescript@5.4.5` or `@types/node`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub npm: Vec<String>,
}

/// A root file system, identified by its contents.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RootFs {
    pub image: String,
    #[serde(default)]
    pub packages: Packages,
}

/// Build status of a root file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = EnvironmentBuild)]
pub struct Build {
    pub state: State,
    /// The end of the build output, at most 16 KiB.
    pub log: String,
    /// Error message of a failed build.
    #[schema(required)]
    pub error: Option<String>,
    /// Size of a root file system with packages, which counts for the organization that had it built. Null while it
    /// does not exist.
    #[schema(required)]
    pub bytes: Option<u64>,
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub started_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    pub completed_at: Option<OffsetDateTime>,
}

/// A root file system with packages that exists on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRootFs {
    pub bytes: u64,
    /// Time since a sandbox was last created on it; 0 while one exists.
    pub idle_seconds: u64,
}

/// State of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = EnvironmentBuildState)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Being built or waiting to be built; sessions wait for it.
    Building,
    Ready,
    /// The build failed; it is retried on the next request.
    Failed,
}

impl Default for RootFs {
    fn default() -> Self {
        Self { image: HOST.to_owned(), packages: Packages::default() }
    }
}

impl RootFs {
    /// Returns whether nothing has to be built: the machine's own programs.
    pub fn is_host(&self) -> bool {
        self.image == HOST
    }

    /// Returns the cache key; equal for equal image and packages.
    pub fn key(&self) -> String {
        let text = serde_json::to_string(self).expect("text serializes");
        hex(&sha256(text.as_bytes())[..16])
    }
}

impl Packages {
    /// Returns whether no package is named.
    pub fn is_empty(&self) -> bool {
        self.apt.is_empty() && self.pip.is_empty() && self.npm.is_empty()
    }

    /// Sorted and without duplicates, so that equal sets of packages compare equal.
    pub(super) fn sorted(&self) -> Self {
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort();
            names.dedup();
            names
        };
        Self { apt: sorted(&self.apt), pip: sorted(&self.pip), npm: sorted(&self.npm) }
    }

    /// Returns the first invalid field.
    pub(super) fn problem(&self) -> Option<Problem> {
        if self.apt.len() + self.pip.len() + self.npm.len() > PACKAGES_MAX {
            return Some(("packages".to_owned(), format!("must have at most {PACKAGES_MAX} in total")));
        }
        let kinds: [Rule<'_>; 3] = [
            ("apt", &self.apt, is_apt, "must be a package, such as `jq` or `jq=1.6-2.1`"),
            (
                "pip",
                &self.pip,
                is_pip,
                "must be a package, such as `requests`, `requests==2.32.3` or `requests[socks]`",
            ),
            (
                "npm",
                &self.npm,
                is_npm,
                "must be a package, such as `typescript`, `typescript@5.4.5` or `@types/node`",
            ),
        ];
        kinds.into_iter().find_map(|(kind, names, is_name, words)| {
            let at = names.iter().position(|name| name.len() > PACKAGE_BYTES_MAX || !is_name(name))?;
            Some((format!("packages.{kind}[{at}]"), words.to_owned()))
        })
    }
}

/// Validation of one installer's packages: its name, the packages, the check, the message.
type Rule<'a> = (&'static str, &'a [String], fn(&str) -> bool, &'static str);

/// Returns whether `name` is a valid image name; it becomes part of a path of the service.
pub fn is_image_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let first = |name: &str| name.as_bytes()[0].is_ascii_alphanumeric();
    (1..=IMAGE_BYTES_MAX).contains(&name.len()) && name.bytes().all(inner) && first(name)
}

/// Debian's rule for names (Policy 5.6.1). A trailing `-` would remove the package.
fn is_apt(text: &str) -> bool {
    let (name, version) = text.split_once('=').map_or((text, None), |(name, version)| (name, Some(version)));
    let of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    name.len() >= 2
        && name.bytes().all(of_name)
        && begins_well(name)
        && !name.ends_with(['-', '.'])
        && version.is_none_or(|version| is_version(version, b".+~:-"))
}

/// A PEP 508 name, extras by the same rule, and one PEP 440 version.
fn is_pip(text: &str) -> bool {
    let (text, version) = text.split_once("==").map_or((text, None), |(text, version)| (text, Some(version)));
    let (name, extras) = match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        Some((name, extras)) => (name, Some(extras)),
        None => (text, None),
    };
    let is_name = |name: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        name.bytes().all(inner) && begins_well(name) && ends_well(name)
    };
    is_name(name)
        && !is_archive(name)
        && extras.is_none_or(|extras| extras.split(',').all(is_name))
        && version.is_none_or(|version| is_version(version, b".!+_-"))
}

/// A name with an optional scope, and one version or tag.
fn is_npm(text: &str) -> bool {
    let (scope, rest) = match text.strip_prefix('@') {
        Some(rest) => match rest.split_once('/') {
            Some((scope, rest)) => (Some(scope), rest),
            None => return false,
        },
        None => (None, text),
    };
    let (name, version) = rest.split_once('@').map_or((rest, None), |(name, version)| (name, Some(version)));
    let is_name = |name: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        name.bytes().all(inner) && begins_well(name)
    };
    is_name(name)
        && !is_archive(name)
        && scope.is_none_or(is_name)
        && version.is_none_or(|version| is_version(version, b".+-") && !is_archive(version))
}

fn is_version(version: &str, marks: &[u8]) -> bool {
    version.bytes().all(|byte| byte.is_ascii_alphanumeric() || marks.contains(&byte)) && begins_well(version)
}

/// A text with such a start is neither an option nor a path.
fn begins_well(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

fn ends_well(text: &str) -> bool {
    text.bytes().next_back().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// Returns whether installers would treat the name as a local file.
fn is_archive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".tgz", ".tar", ".gz", ".bz2", ".xz", ".zip", ".whl", ".deb"].iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(kind: &str, name: &str) -> Packages {
        serde_json::from_value(serde_json::json!({ kind: [name] })).unwrap()
    }

    #[test]
    fn a_package_is_a_name_and_perhaps_a_version() {
        for (kind, name) in [
            ("apt", "jq"),
            ("apt", "g++"),
            ("apt", "libssl-dev"),
            ("apt", "python3.11"),
            ("apt", "jq=1.6-2.1"),
            ("apt", "x11-apps=1:7.7+9~deb12u1"),
            ("pip", "requests"),
            ("pip", "Flask_SQLAlchemy"),
            ("pip", "requests==2.32.3"),
            ("pip", "requests[socks,use_chardet]==2.32.3.post1"),
            ("npm", "left-pad"),
            ("npm", "typescript@5.4.5"),
            ("npm", "typescript@next"),
            ("npm", "@types/node"),
            ("npm", "@types/node@20.1.0-beta.1+5"),
        ] {
            assert_eq!(packages(kind, name).problem(), None, "{kind} {name}");
        }
    }

    /// Separated by `|`, because some contain spaces.
    const NO_APT: &str = "|j|-o|--reinstall|jq-|jq/sid|./jq.deb|JQ|jq jq|jq*|jq.|jq=|jq=-1|jq=1 2|jq=1/2|jq;id|\
        jq\nid|$(id)|~nfoo|?name(x)";
    const NO_PIP: &str = "|-r|--index-url=x|-e.|.|./x|a/b|git+https://a.example/b|a @ https://b|a>=1|a==1,<2|a==|\
        a==-1|a[|a[]|a[b|a]|a b|a;b|a.whl|a.tar.gz|https://a.example/b.whl";
    const NO_NPM: &str = "|-g|--registry=x|.|./x|a/b|github:a/b|https://a.example/b.tgz|git+ssh://a|a@npm:b|a@file:b|\
        a@../b|a@|@a|@a/|@/a|@a/b/c|a.tgz|a@1.tgz|A|a b|a@>=1|a@*|../a|~|a\0";

    #[test]
    fn what_an_installer_would_read_otherwise_is_refused() {
        for (kind, names) in [("apt", NO_APT), ("pip", NO_PIP), ("npm", NO_NPM)] {
            for name in names.split('|') {
                let problem = packages(kind, name).problem();
                let expected = Some(format!("packages.{kind}[0]"));
                assert_eq!(problem.map(|(field, _)| field), expected, "{kind} {name:?}");
            }
        }
        let long = packages("apt", &"a".repeat(PACKAGE_BYTES_MAX + 1));
        assert!(long.problem().is_some());
        let many = Packages { apt: vec!["jq".to_owned(); PACKAGES_MAX + 1], ..Packages::default() };
        assert!(many.problem().is_some());
    }

    #[test]
    fn an_image_is_a_name_and_never_a_path() {
        for name in ["host", "debian", "ml-cuda_12.4", "a", "0"] {
            assert!(is_image_name(name), "{name}");
        }
        for name in
            ["", ".", "..", ".a", "-a", "/a", "a/b", "A", "a b", "a:b", "a\0", "\u{e4}", &"a".repeat(65)]
        {
            assert!(!is_image_name(name), "{name}");
        }
    }

    #[test]
    fn the_same_packages_in_another_order_are_the_same() {
        let rootfs = |apt: [&str; 3]| {
            let config = serde_json::json!({ "image": "debian", "packages": { "apt": apt } });
            RootFs::of(Some(&serde_json::from_value(config).unwrap()), HOST).key()
        };
        assert_eq!(rootfs(["jq", "tree", "jq"]), rootfs(["tree", "jq", "tree"]));
        assert_ne!(rootfs(["jq", "tree", "jq"]), rootfs(["jq", "jq", "jq"]));
        assert!(RootFs::of(None, HOST).is_host() && !RootFs::of(None, DEBIAN).is_host());
    }
}
