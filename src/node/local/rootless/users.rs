//! Subordinate ids: the users of sandboxes where the service runs as an ordinary user.
//!
//! Created by `Local::new`. The machine assigns an ordinary user a range of additional ids (`/etc/subuid`),
//! and `newuidmap` maps them into a user namespace. A program started here is root of a new namespace, in
//! which the service's user is root and the range keeps its host ids. It can traverse the service's
//! directories, and change the owner of and remove files of the sandboxes' users. It has no access to
//! anything of the host that the service has no access to.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use rustix::process::geteuid;
use tokio::process::Command;

use super::super::{layout::IdRange, runtime};
use crate::{
    base::{limit, text},
    domain::SessionId,
    sandbox::Fault,
};

/// Programs that write the mappings, with elevated privileges.
const MAPPERS: [&str; 2] = ["newuidmap", "newgidmap"];
/// Lowest id that is proposed for a range; lower ids belong to accounts.
const PROPOSED_MIN: u32 = 100_000;
/// Size of a proposed range, the default of `useradd`.
const PROPOSED_COUNT: u32 = 65_536;

/// Subordinate ids of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Users {
    unshare: PathBuf,
    /// Name of the service's user.
    pub name: String,
    /// First subordinate user id. In the namespace, the group ids start at the same number.
    first: u32,
    first_group: u32,
    pub count: u32,
}

impl Users {
    /// Finds the subordinate ids of the service's user and tests their mapping.
    ///
    /// # Errors
    /// `Unavailable` with a one-line reason and the command that fixes it.
    pub(crate) fn find() -> Result<Self, Fault> {
        let unusable = |why: String| {
            Fault::Unavailable(format!(
                "the service is not root, and the requirements of rootless sandboxes are not met: {why}"
            ))
        };
        for mapper in MAPPERS {
            if runtime::find_program(mapper).is_none() {
                let words = format!("{mapper} was not found: sudo apt-get install uidmap");
                return Err(unusable(words));
            }
        }
        let unshare = runtime::find_program("unshare")
            .ok_or_else(|| unusable("unshare was not found: sudo apt-get install util-linux".to_owned()))?;
        let uid = geteuid().as_raw();
        let name = name_of(uid).unwrap_or_else(|| uid.to_string());
        let tables = ["/etc/subuid", "/etc/subgid"].map(|path| fs::read_to_string(path).unwrap_or_default());
        let [ids, groups] = tables.each_ref().map(|table| subordinate_range(table, &name, uid));
        let (Some((first, ids)), Some((first_group, groups))) = (ids, groups) else {
            return Err(unusable(missing_ids_message(&name, &tables)));
        };
        let users = Self { unshare, name, first, first_group, count: ids.min(groups) };
        users.probe().map_err(unusable)?;
        Ok(users)
    }

    /// Host ids that a session's sandboxes use. Sessions share ranges if there are few; they stay isolated.
    pub(crate) fn ids(&self, session: SessionId) -> IdRange {
        let ranges = u128::from(self.count / IdRange::IDS);
        let index = u32::try_from(session.uuid().as_u128() % ranges).expect("the count fits in 32 bits");
        IdRange { first: self.first + index * IdRange::IDS }
    }

    /// Whether this is the service's own id or a subordinate one.
    pub(crate) fn owns(&self, uid: u32) -> bool {
        uid == geteuid().as_raw() || (self.first..self.first + self.count).contains(&uid)
    }

    /// Command line prefix that runs a program as root over the subordinate users.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let Self { first, first_group, count, .. } = self;
        let users = format!("--map-users={first},{first},{count}");
        let groups = format!("--map-groups={first_group},{first},{count}");
        let mut words = vec![self.unshare.clone().into_os_string()];
        words.extend([users, groups].map(OsString::from));
        words.extend(
            ["--user", "--map-root-user", "--mount", "--propagation=private", "--"].map(OsString::from),
        );
        words
    }

    /// Command for a program that runs as root over the subordinate users.
    pub(crate) fn command(&self, program: &str) -> Command {
        let words = self.words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// Changes the owner of a file to a subordinate user.
    pub(crate) async fn give(&self, path: &Path, owner: u32) -> Result<(), Fault> {
        let failed =
            |words: String| Fault::Unavailable(format!("the owner of a file cannot be changed: {words}"));
        let mut chown = self.command("chown");
        chown.arg("--no-dereference").arg(format!("{owner}:{owner}")).arg(path);
        chown.env_clear().env("PATH", runtime::PATH).stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(limit::RUNTIME_COMMAND_TIMEOUT, chown.output()).await {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => Err(failed(last_line(&output))),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("chown did not end in time".to_owned())),
        }
    }

    /// Runs `true` as root over the subordinate users.
    fn probe(&self) -> Result<(), String> {
        let words = self.words();
        let asked = std::process::Command::new(&words[0])
            .args(&words[1..])
            .arg("true")
            .env_clear()
            .env("PATH", runtime::PATH)
            .stdin(Stdio::null())
            .output();
        match asked {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("users cannot be mapped ({}): {}", last_line(&output), likely_fix())),
            Err(error) => Err(format!("unshare cannot be run: {error}")),
        }
    }
}

/// The most likely fix when ids cannot be mapped.
fn likely_fix() -> &'static str {
    let is = |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "sudo sysctl kernel.unprivileged_userns_clone=1"
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "sudo sysctl user.max_user_namespaces=16384"
    } else if fs::read_to_string("/proc/self/status").is_ok_and(|text| text.contains("NoNewPrivs:\t1")) {
        "start the service without no_new_privs (systemd: NoNewPrivileges=no): newuidmap needs its privileges"
    } else {
        "this needs util-linux 2.38 or newer, and a kernel that lets users create user namespaces"
    }
}

/// Largest range of a user: first id and count. Lines of subuid(5) are `user:first:count`, with the user as
/// name or number.
fn subordinate_range(table: &str, name: &str, uid: u32) -> Option<(u32, u32)> {
    let number = uid.to_string();
    let line = |line: &str| {
        let mut fields = line.trim().split(':');
        let is_own = fields.next().is_some_and(|user| user == name || user == number);
        let (first, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let is_whole = count >= IdRange::IDS && first.checked_add(count).is_some();
        (is_own && is_whole).then_some((first, count))
    };
    table.lines().filter_map(line).max_by_key(|(_, count)| *count)
}

/// Error text for a user without subordinate ids; proposes a range after all existing ones.
fn missing_ids_message(name: &str, tables: &[String]) -> String {
    let end = |line: &str| {
        let mut numbers = line.trim().split(':').skip(1).map(|field| field.parse::<u32>().unwrap_or(0));
        Some(numbers.next()?.saturating_add(numbers.next()?))
    };
    let ends = tables.iter().flat_map(|table| table.lines()).filter_map(end);
    let first = ends.max().unwrap_or(0).max(PROPOSED_MIN);
    let last = first.saturating_add(PROPOSED_COUNT - 1);
    format!(
        "user {name} has no range of {} subordinate ids in /etc/subuid and /etc/subgid: \
         sudo usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {name}",
        IdRange::IDS
    )
}

/// Reads the name through `getent`, because not every user is in /etc/passwd.
fn name_of(uid: u32) -> Option<String> {
    let asked = std::process::Command::new("getent").args(["passwd", &uid.to_string()]).output().ok()?;
    let line = String::from_utf8_lossy(&asked.stdout).into_owned();
    let name = line.split(':').next()?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

fn last_line(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().last().unwrap_or("no output");
    text::truncate(line, limit::INIT_MESSAGE_BYTES_MAX).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "root:100000:65536\nada:165536:4096\nada:300000:65536\n1001:1:70000\nbob:500000:4095\n";

    #[test]
    fn the_widest_range_of_a_user_is_taken() {
        assert_eq!(subordinate_range(TABLE, "ada", 1_000), Some((300_000, 65_536)));
        assert_eq!(subordinate_range(TABLE, "eve", 1_001), Some((1, 70_000)), "by number");
        assert_eq!(subordinate_range(TABLE, "bob", 1_002), None, "too few for one session");
        assert_eq!(subordinate_range("", "ada", 1_000), None);
    }

    #[test]
    fn a_user_without_subordinate_ids_is_proposed_a_free_range() {
        let said = missing_ids_message("bob", &[TABLE.to_owned(), String::new()]);
        let command = "sudo usermod --add-subuids 504095-569630 --add-subgids 504095-569630 bob";
        assert!(said.ends_with(command), "{said}");
        assert!(
            missing_ids_message("bob", &[String::new(), String::new()])
                .contains("--add-subuids 100000-165535")
        );
    }

    proptest::proptest! {
        #[test]
        fn every_session_gets_ids_of_the_range(bits: u128, count in 4_096u32..200_000) {
            let users = Users {
                unshare: PathBuf::new(), name: String::new(), first: 100_000, first_group: 7, count,
            };
            let ids = users.ids(SessionId::from_uuid(uuid::Uuid::from_u128(bits)));
            assert!(ids.first >= 100_000 && ids.first + IdRange::IDS <= 100_000 + count);
        }
    }
}
