//! The operating system user that runs the server, and commands run as that user.
//!
//! Postgres refuses to run as root. A service that runs as root uses the user `sojourn`, which it
//! creates if missing; any other service uses its own user. An existing cluster runs as its owner.

use std::{
    io,
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use tokio::process::Command;

use super::{Error, Progress};
use crate::base::limit;

const SYSTEM_USER: &str = "sojourn";

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name, as the kernel's peer check reports it.
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Home directory, which may not exist.
    pub home: PathBuf,
}

impl Account {
    /// Finds a user by name or id. Uses `getent`, because not every user is in `/etc/passwd`.
    ///
    /// # Errors
    /// `getent` cannot be run.
    pub async fn find(user: &str) -> Result<Option<Self>, Error> {
        let mut getent = Command::new("getent");
        getent.args(["passwd", user]);
        let found = output(getent, "getent").await?;
        Ok(Self::parse(&String::from_utf8_lossy(&found.stdout)))
    }

    /// Parses a line of `/etc/passwd` (passwd(5)).
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.lines().next()?.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1)?.into();
        Some(Self { name: name.to_owned(), uid, gid, home })
    }

    /// Returns the topmost directory on `path` that this user has no access to.
    ///
    /// `path` is absolute and contains no links.
    pub fn first_inaccessible_dir<'a>(&self, path: &'a Path) -> io::Result<Option<&'a Path>> {
        let mut barred = None;
        for dir in path.ancestors() {
            let data = dir.metadata()?;
            let bit = match (data.uid() == self.uid, data.gid() == self.gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            if data.mode() & bit == 0 {
                barred = Some(dir);
            }
        }
        Ok(barred)
    }
}

/// An operating system user that owns a cluster and runs its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OsUser {
    pub account: Account,
    /// User of the service itself, which connects to the server.
    pub service: String,
}

impl OsUser {
    /// Returns the owner of the cluster or, if there is none, its future owner.
    pub(super) async fn for_cluster(cluster: &Path, progress: Progress<'_>) -> Result<Self, Error> {
        let me = rustix::process::geteuid();
        if !me.is_root() {
            let account = named(me.as_raw()).await?;
            return Ok(Self { service: account.name.clone(), account });
        }
        let service = named(0).await?.name;
        let owner = cluster.metadata().map(|data| data.uid()).unwrap_or(0);
        let account = match owner {
            0 => system_user(progress).await?,
            owner => named(owner).await?,
        };
        Ok(Self { account, service })
    }

    /// Builds a command that runs as this user.
    ///
    /// It has neither the service's terminal nor its environment, which may contain provider keys.
    pub(super) fn command(&self, program: &Path, current_dir: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("LC_ALL", "C").current_dir(current_dir).stdin(Stdio::null());
        // Its own process group: Ctrl-C at the terminal is for the service, which still needs the
        // database while it drains.
        command.process_group(0);
        let Account { uid, gid, .. } = self.account;
        if rustix::process::geteuid().as_raw() != uid {
            // Also drops the supplementary groups.
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Makes this user the owner of a path.
    pub(super) fn give(&self, path: &Path) -> Result<(), Error> {
        let Account { name, uid, gid, .. } = &self.account;
        let what = || format!("could not change the owner of {} to user {name}", path.display());
        chown(path, Some(*uid), Some(*gid)).map_err(Error::io(what()))
    }
}

/// Runs a short program to its end.
pub(super) async fn output(mut command: Command, what: &str) -> Result<Output, Error> {
    let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(limit::EMBEDDED_START_TIMEOUT, run).await {
        Ok(output) => output.map_err(Error::io(format!("could not run {what}"))),
        Err(_) => {
            Err(Error::Refused(format!("{what} did not end in time: is the machine or disk overloaded?")))
        }
    }
}

async fn named(uid: u32) -> Result<Account, Error> {
    Account::find(&uid.to_string()).await?.ok_or_else(|| {
        Error::Refused(format!(
            "user id {uid} has no name and Postgres needs one: add it to /etc/passwd, or set DATABASE_URL"
        ))
    })
}

async fn system_user(progress: Progress<'_>) -> Result<Account, Error> {
    if let Some(user) = Account::find(SYSTEM_USER).await? {
        return Ok(user);
    }
    progress("creating the system user sojourn, which runs the embedded database");
    let mut useradd = Command::new("useradd");
    useradd.args(["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]);
    useradd.args(["--shell", "/usr/sbin/nologin", SYSTEM_USER]);
    let made = output(useradd, "useradd").await?;
    // Another process may have created it meanwhile, so only the lookup counts.
    Account::find(SYSTEM_USER).await?.ok_or_else(|| {
        let said = String::from_utf8_lossy(&made.stderr);
        Error::Refused(format!(
            "the system user sojourn could not be created: {}",
            said.trim().replace('\n', " ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::Account;

    #[test]
    fn a_passwd_line_gives_name_ids_and_home() {
        let line = "sojourn:x:994:993::/nonexistent:/usr/sbin/nologin\n";
        let account = Account { name: "sojourn".to_owned(), uid: 994, gid: 993, home: "/nonexistent".into() };
        assert_eq!(Account::parse(line), Some(account));
        for line in ["", "\n", "sojourn", "sojourn:x:many:993::/:/bin/sh", ":x:1:1::/:/bin/sh", "a:x:1:1"] {
            assert_eq!(Account::parse(line), None, "{line:?}");
        }
    }
}
