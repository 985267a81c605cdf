//! The cluster on disk: created once by `initdb`, its settings written at each start.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{
    Error, Progress,
    binaries::Binaries,
    location::{self, Location, PORT},
    os_user,
    os_user::OsUser,
    roles,
};

pub(super) const SETTINGS: &str = "postgresql.conf";
const ACCESS: &str = "pg_hba.conf";
const NAMES: &str = "pg_ident.conf";

/// Creates the cluster unless it exists.
///
/// The cluster gets its final name when it is complete, so the next start after a crash does not
/// take a partial cluster for a complete one.
pub(super) async fn ensure(
    location: &Location,
    os_user: &OsUser,
    binaries: &Binaries,
    progress: Progress<'_>,
) -> Result<(), Error> {
    if location.cluster_major()?.is_some() {
        return Ok(());
    }
    progress(&format!("creating a database cluster with {} (once, a few seconds)", binaries.version()));
    let draft = make_draft(location, os_user)?;
    let mut initdb = os_user.command(&binaries.initdb(), location.home());
    initdb.arg("--pgdata").arg(&draft).args(["--username", roles::SUPERUSER, "--auth", "peer"]);
    // The C locale sorts the same on every machine. It also survives an upgrade of the C library,
    // which silently corrupts indexes of other locales.
    initdb.args(["--encoding", "UTF8", "--locale", "C", "--data-checksums", "--no-instructions"]);
    let made = os_user::output(initdb, "initdb").await?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        return Err(Error::Refused(format!("initdb failed: {}", said.trim().replace('\n', " "))));
    }
    // A rename survives a crash only after the parent directory is synced.
    fs::rename(&draft, location.cluster())
        .and_then(|()| fs::File::open(location.home())?.sync_all())
        .map_err(Error::io(format!("could not create {}", location.cluster().display())))
}

/// Creates an empty directory that no `initdb` of a killed service still writes to.
fn make_draft(location: &Location, os_user: &OsUser) -> Result<PathBuf, Error> {
    const PREFIX: &str = "pgdata.new-";
    let removed = fs::read_dir(location.home()).and_then(|entries| {
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    });
    removed.map_err(Error::io(format!("could not clear {}", location.home().display())))?;
    let draft = location.home().join(format!("{PREFIX}{}", std::process::id()));
    location::make_private(&draft, os_user)?;
    Ok(draft)
}

/// Writes the three settings files. The server's user can read but not write them.
pub(super) fn write_settings(location: &Location, os_user: &OsUser) -> Result<(), Error> {
    write(&location.settings(SETTINGS), &settings(location))?;
    write(&location.settings(ACCESS), ACCESS_RULES)?;
    write(&location.settings(NAMES), &names(os_user))
}

// The kernel reports the user at the other end of the socket, and the map lists the roles that the
// user may take. There are no passwords.
const ACCESS_RULES: &str = "\
# Written by sojourn at each start.
local all all peer map=sojourn
local replication all peer map=sojourn
";

fn names(os_user: &OsUser) -> String {
    let mut lines = String::from("# Written by sojourn at each start: map, system user, role.\n");
    let mut users = vec![&os_user.service, &os_user.account.name];
    users.dedup();
    for user in users {
        for role in [roles::SUPERUSER, roles::OWNER, roles::APP, roles::SYSTEM] {
            lines.push_str(&format!("sojourn \"{user}\" {role}\n"));
        }
    }
    lines
}

fn settings(location: &Location) -> String {
    let quoted = |path: &Path| path.to_string_lossy().replace('\\', "\\\\").replace('\'', "''");
    format!(
        "\
# Written by sojourn at each start; settings of your own: alter system.
listen_addresses = ''
port = {PORT}
unix_socket_directories = '{sockets}'
unix_socket_permissions = 0700
hba_file = '{access}'
ident_file = '{names}'

# Pools of a few processes, and a reserve for an operator.
max_connections = 200
shared_buffers = 128MB
max_wal_size = 1GB
# Statements are short: compiling them costs more than it saves.
jit = off
random_page_cost = 1.1

# An acknowledged event survives a crash of the machine.
fsync = on
synchronous_commit = on
full_page_writes = on

timezone = 'UTC'
log_timezone = 'UTC'
# A file a weekday, each overwritten a week later.
logging_collector = on
log_directory = '{log}'
log_filename = 'postgres-%a.log'
log_rotation_age = 1d
log_rotation_size = 0
log_truncate_on_rotation = on
log_line_prefix = '%m [%p] %u@%d '
# The detail of an error quotes rows, and rows hold what organizations wrote.
log_error_verbosity = terse
log_min_error_statement = panic
log_parameter_max_length = 0
",
        sockets = quoted(location.sockets()),
        access = quoted(&location.settings(ACCESS)),
        names = quoted(&location.settings(NAMES)),
        log = quoted(&location.log_dir()),
    )
}

/// Replaces a file atomically: a running server may read it at any time.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let draft = path.with_extension("conf.new");
    let written = fs::remove_file(&draft).or(Ok(())).and_then(|()| {
        let mut file = fs::File::options().create_new(true).write(true).open(&draft)?;
        // Undo the umask: the server runs as another user, which must read the file.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    });
    written.map_err(Error::io(format!("could not write {}", path.display())))
}
