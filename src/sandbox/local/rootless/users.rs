//! The users of sandboxes where the service is an ordinary one: its subordinate ids.
//!
//! Made by `Local::new`. The machine gives an ordinary user a range of further ids
//! (`/etc/subuid`), and `newuidmap` maps them into a user namespace. A program that is
//! started here is root of a fresh namespace that has the service's own user as its root
//! and the range under its own numbers: it may pass the service's directories, and give
//! and remove what belongs to users of sandboxes. Nothing of the host that the service could
//! not touch is within its reach.

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

/// The programs that make the mapping, with rights of their own.
const MAPPERS: [&str; 2] = ["newuidmap", "newgidmap"];
/// The smallest id that is proposed for a range; below it are those of people.
const PROPOSED_MIN: u32 = 100_000;
/// How many are proposed, as `useradd` gives.
const PROPOSED_COUNT: u32 = 65_536;

/// The ids that are lent to the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Users {
    unshare: PathBuf,
    /// The name of the service's user.
    pub name: String,
    /// The first user id; in the namespace it is also that of the groups.
    first: u32,
    first_group: u32,
    pub count: u32,
}

impl Users {
    /// Looks what the service's user is lent, and whether the kernel lets it be used.
    ///
    /// # Errors
    /// `Unavailable` with one line: what is missing, and the command that fixes it.
    pub fn find() -> Result<Self, Fault> {
        let unusable = |why: String| {
            Fault::Unavailable(format!(
                "the service is not root, and sandboxes without root need more: {why}"
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
        let [ids, groups] = tables.each_ref().map(|table| lent(table, &name, uid));
        let (Some((first, ids)), Some((first_group, groups))) = (ids, groups) else {
            return Err(unusable(no_ids(&name, &tables)));
        };
        let users = Self { unshare, name, first, first_group, count: ids.min(groups) };
        users.probe().map_err(unusable)?;
        Ok(users)
    }

    /// The host's ids that a session's sandboxes use. Sessions share ranges where there are
    /// few, which gives neither a way to the other.
    pub fn ids(&self, session: SessionId) -> IdRange {
        let ranges = u128::from(self.count / IdRange::IDS);
        let index = u32::try_from(session.uuid().as_u128() % ranges).expect("there are fewer ids");
        IdRange { first: self.first + index * IdRange::IDS }
    }

    /// Whether this is the service's own id or one of those.
    pub fn owns(&self, uid: u32) -> bool {
        uid == geteuid().as_raw() || (self.first..self.first + self.count).contains(&uid)
    }

    /// The words before a program that is to be root over those users.
    pub fn words(&self) -> Vec<OsString> {
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

    /// A short program that is root over those users.
    pub fn command(&self, program: &str) -> Command {
        let words = self.words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// Lets one user of sandboxes have a file.
    pub async fn give(&self, path: &Path, owner: u32) -> Result<(), Fault> {
        let failed =
            |words: String| Fault::Unavailable(format!("a file cannot be given to its user: {words}"));
        let mut chown = self.command("chown");
        chown.arg("--no-dereference").arg(format!("{owner}:{owner}")).arg(path);
        chown.env_clear().env("PATH", runtime::PATH).stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(limit::RUNTIME_COMMAND_TIMEOUT, chown.output()).await {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => Err(failed(last_line(&output))),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed("it takes too long".to_owned())),
        }
    }

    /// Does nothing, as root over those users.
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
            Ok(output) => Err(format!("users cannot be mapped ({}): {}", last_line(&output), cure())),
            Err(error) => Err(format!("unshare cannot be run: {error}")),
        }
    }
}

/// What most likely keeps a range from being mapped.
fn cure() -> &'static str {
    let is = |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "sudo sysctl kernel.unprivileged_userns_clone=1"
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "sudo sysctl user.max_user_namespaces=16384"
    } else if fs::read_to_string("/proc/self/status").is_ok_and(|text| text.contains("NoNewPrivs:\t1")) {
        "start the service without no_new_privs (systemd: NoNewPrivileges=no), newuidmap has rights of its own"
    } else {
        "it takes util-linux 2.38 or newer, and a kernel that lets users make user namespaces"
    }
}

/// The widest range of a user: its first id and how many there are. Lines of subuid(5) are
/// `user:first:count`, the user by name or number.
fn lent(table: &str, name: &str, uid: u32) -> Option<(u32, u32)> {
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

/// What to do for a user who is lent nothing: a range behind those of others.
fn no_ids(name: &str, tables: &[String]) -> String {
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

/// Through `getent`, as not every user stands in a file.
fn name_of(uid: u32) -> Option<String> {
    let asked = std::process::Command::new("getent").args(["passwd", &uid.to_string()]).output().ok()?;
    let line = String::from_utf8_lossy(&asked.stdout).into_owned();
    let name = line.split(':').next()?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

fn last_line(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().last().unwrap_or("it said nothing");
    text::truncate(line, limit::INIT_MESSAGE_BYTES_MAX).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "root:100000:65536\nada:165536:4096\nada:300000:65536\n1001:1:70000\nbob:500000:4095\n";

    #[test]
    fn the_widest_range_of_a_user_is_taken() {
        assert_eq!(lent(TABLE, "ada", 1_000), Some((300_000, 65_536)));
        assert_eq!(lent(TABLE, "eve", 1_001), Some((1, 70_000)), "by number");
        assert_eq!(lent(TABLE, "bob", 1_002), None, "too few for one session");
        assert_eq!(lent("", "ada", 1_000), None);
    }

    #[test]
    fn who_is_lent_nothing_is_told_a_range_behind_those_of_others() {
        let said = no_ids("bob", &[TABLE.to_owned(), String::new()]);
        let command = "sudo usermod --add-subuids 504095-569630 --add-subgids 504095-569630 bob";
        assert!(said.ends_with(command), "{said}");
        assert!(no_ids("bob", &[String::new(), String::new()]).contains("--add-subuids 100000-165535"));
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
