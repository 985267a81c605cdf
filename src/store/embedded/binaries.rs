//! Finds the system's `initdb` and `postgres` of a suitable major version.
//!
//! A cluster runs only with the major version that created it, so several installations may be
//! checked.

use std::{
    collections::HashSet,
    env,
    path::{Path, PathBuf},
};

use super::{Error, location::Location, os_user, os_user::OsUser};

/// Oldest major version that the service's SQL supports.
const MAJOR_MIN: u32 = 15;

/// One installation of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binaries {
    dir: PathBuf,
    major: u32,
}

impl Binaries {
    /// Finds the installation for this cluster.
    ///
    /// An existing cluster needs its own major version. A new cluster takes the first installation
    /// that is new enough: on PATH, then in the directories of the distributions, newest first.
    ///
    /// # Errors
    /// `Refused` when none fits.
    pub(super) async fn find(location: &Location, os_user: &OsUser) -> Result<Self, Error> {
        let made_by = location.cluster_major()?;
        let mut others = Vec::new();
        for dir in candidates() {
            let Some(major) = major_of(&dir, os_user).await else { continue };
            if made_by.map_or(major >= MAJOR_MIN, |made_by| major == made_by) {
                return Ok(Self { dir, major });
            }
            others.push(major.to_string());
        }
        others.dedup();
        Err(Error::Refused(missing_message(&others.join(" and "), made_by, location.home())))
    }

    /// Returns the product name and major version, for messages.
    pub(super) fn version(&self) -> String {
        format!("Postgres {}", self.major)
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.dir.join("initdb")
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.dir.join("postgres")
    }
}

/// Returns the newest installed major version that suits a new cluster.
pub fn newest() -> Option<u32> {
    let majors = candidates().into_iter().filter_map(|dir| {
        let said = std::process::Command::new(dir.join("postgres")).arg("--version").output().ok()?;
        let said = String::from_utf8(said.stdout).ok()?;
        said.split(|character: char| !character.is_ascii_digit()).find(|part| !part.is_empty())?.parse().ok()
    });
    majors.max().filter(|major| *major >= MAJOR_MIN)
}

fn missing_message(others: &str, made_by: Option<u32>, home: &Path) -> String {
    let found = if others.is_empty() { "none" } else { others };
    match made_by {
        None if others.is_empty() => {
            "initdb was not found: run scripts/setup, or set DATABASE_URL".to_owned()
        }
        None => format!(
            "Postgres {MAJOR_MIN} or newer is needed, found {found}: run scripts/setup, or set DATABASE_URL"
        ),
        Some(major) => format!(
            "the database in {} was made by Postgres {major}, found {found}: install Postgres {major} again \
             (and move to another version by pg_dumpall and psql, if you want to)",
            home.display(),
        ),
    }
}

fn candidates() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = Vec::new();
    for dir in env::split_paths(&path).filter(|dir| dir.is_absolute()) {
        // Links are resolved, because a server finds its own files relative to its real path.
        if let (Ok(initdb), Ok(_)) = (dir.join("initdb").canonicalize(), dir.join("postgres").canonicalize())
        {
            dirs.extend(initdb.parent().map(Path::to_owned));
        }
    }
    // Debian and derivatives; Red Hat and derivatives.
    dirs.extend(versions_in("/usr/lib/postgresql", ""));
    dirs.extend(versions_in("/usr", "pgsql-"));
    let mut seen = HashSet::new();
    dirs.retain(|dir| seen.insert(dir.clone()));
    dirs
}

/// Returns `<base>/<prefix><major>/bin` directories, newest first.
fn versions_in(base: &str, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in Path::new(base).read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let version = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(leading_number);
        if let Some(major) = version {
            found.push((major, entry.path().join("bin")));
        }
    }
    found.sort();
    found.into_iter().rev().map(|(_, dir)| dir).collect()
}

/// Runs `postgres --version` as the user that will run the server.
///
/// That user may not have access to an installation below a home directory.
async fn major_of(dir: &Path, os_user: &OsUser) -> Option<u32> {
    if !dir.join("initdb").is_file() {
        return None;
    }
    // Older servers refuse to start in a directory that their user cannot read.
    let mut command = os_user.command(&dir.join("postgres"), Path::new("/"));
    command.arg("--version");
    let said = os_user::output(command, "postgres --version").await.ok()?;
    parse_version(&String::from_utf8_lossy(&said.stdout))
}

fn parse_version(text: &str) -> Option<u32> {
    leading_number(text.strip_prefix("postgres (PostgreSQL) ")?)
}

fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_every_form_of_release() {
        for (text, major) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta2\n", Some(18)),
            ("postgres (PostgreSQL) 17\n", Some(17)),
            ("postgres (EnterpriseDB) 15\n", None),
            ("", None),
        ] {
            assert_eq!(parse_version(text), major, "{text:?}");
        }
    }

    #[test]
    fn a_missing_or_wrong_postgres_gives_one_line_with_the_fix() {
        let home = Path::new("/d/postgres");
        for (others, made_by, line) in [
            ("", None, "initdb was not found: run scripts/setup, or set DATABASE_URL"),
            ("13", None, "Postgres 15 or newer is needed, found 13: run scripts/setup, or set DATABASE_URL"),
            (
                "17",
                Some(15),
                "the database in /d/postgres was made by Postgres 15, found 17: install Postgres 15 again \
                 (and move to another version by pg_dumpall and psql, if you want to)",
            ),
        ] {
            assert_eq!(missing_message(others, made_by, home), line);
        }
    }
}
