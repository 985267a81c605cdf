//! Command line of the OCI runtime.
//!
//! Called by `local`; starts `runc`, gVisor's `runsc`, or a program with the arguments of `runc`. Every call
//! has a time limit, its own process group and only PATH as its environment. Output goes to files, because
//! the sandbox inherits the descriptors and a pipe would stay open as long as the sandbox lives.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{process::Command, time::timeout};

use super::layout::remove_dir;
use crate::{
    base::{limit, text},
    domain::SandboxId,
    sandbox::Fault,
};

/// Directories of system programs, independent of the service's own PATH.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// gVisor options: the systrap platform (no KVM), access to the host's Unix sockets (init's and the proxy's),
/// only a loopback network, no overlay on the read-only root file system, and the sandbox's seccomp filter
/// also inside gVisor.
const GVISOR: [&str; 5] =
    ["--platform=systrap", "--host-uds=all", "--network=none", "--overlay2=none", "--oci-seccomp"];
/// Oldest supported gVisor release, as its release day. Debian 12's own, of 2022, lacks `--host-uds` and
/// loses containers.
const GVISOR_OLDEST: u32 = 20_240_101;

/// Oldest supported release of runc: that of Debian 12, which has the fixes of later ones.
const RUNC_OLDEST: (u32, u32, u32) = (1, 1, 5);

/// An OCI runtime and its state directory.
#[derive(Clone, Debug)]
pub(super) struct Runtime {
    program: PathBuf,
    state_dir: PathBuf,
    /// Whether sandboxes run on gVisor's kernel, which the host sees as one process.
    pub is_gvisor: bool,
}

impl Runtime {
    /// # Errors
    /// `Unavailable` when the program is missing or too old.
    pub(super) fn find(program: &str, state_dir: PathBuf) -> Result<Self, Fault> {
        let Some(path) = find_program(program) else {
            return Err(Fault::Unavailable(format!("{program} was not found; run scripts/setup")));
        };
        let asked = std::process::Command::new(&path).arg("--version").stdin(Stdio::null()).output();
        let version =
            asked.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
        if let Some(old) =
            version.strip_prefix("runc version ").map(first_line).filter(|one| is_before(one, RUNC_OLDEST))
        {
            let (major, minor, patch) = RUNC_OLDEST;
            return Err(Fault::Unavailable(format!(
                "{program} is runc {old}, which is too old: use {major}.{minor}.{patch} or newer with its security fixes; \
                run scripts/setup"
            )));
        }
        let Some(version) = version.strip_prefix("runsc version ") else {
            return Ok(Self { program: path, state_dir, is_gvisor: false });
        };
        let version = first_line(version);
        match release_day(version) {
            Some(day) if day < GVISOR_OLDEST => Err(Fault::Unavailable(format!(
                "{program} is gVisor {version}, which is too old: use a release of 2024 or newer, \
                such as the one in Debian's backports; run scripts/setup --test"
            ))),
            Some(_) | None => Ok(Self { program: path, state_dir, is_gvisor: true }),
        }
    }

    /// Creates a container from the bundle and starts it.
    ///
    /// The host's pid of its first process is written to the bundle's file `pid`. `before` is a program with
    /// arguments that finally executes the runtime; if it is empty, the runtime is started directly.
    pub(super) async fn run(
        &self,
        sandbox: SandboxId,
        bundle: &Path,
        before: &[OsString],
    ) -> Result<(), Fault> {
        let pid_file = bundle.join("pid");
        let id = sandbox.to_string();
        let arguments: [&OsStr; 7] = [
            "run".as_ref(),
            "--detach".as_ref(),
            "--bundle".as_ref(),
            bundle.as_ref(),
            "--pid-file".as_ref(),
            pid_file.as_ref(),
            id.as_ref(),
        ];
        let status = self.command(bundle, before, &arguments).await?;
        match status.success() && pid_file.exists() {
            true => Ok(()),
            false => {
                Err(Fault::Unavailable(format!("the runtime did not start it: {}", last_message(bundle))))
            }
        }
    }

    /// Kills and deletes a container, if the runtime has state of it. The caller checks afterwards whether
    /// state is left, because the runtime exits with 0 after some failures.
    pub(super) async fn delete(&self, sandbox: SandboxId, logs: &Path) -> Result<(), Fault> {
        if !self.knows(sandbox) {
            return Ok(());
        }
        let id = sandbox.to_string();
        let arguments: [&OsStr; 3] = ["delete".as_ref(), "--force".as_ref(), id.as_ref()];
        self.command(logs, &[], &arguments).await.map(|_| ())
    }

    /// Whether the runtime has state of a container.
    pub(super) fn knows(&self, sandbox: SandboxId) -> bool {
        self.state(sandbox).next().is_some()
    }

    /// Removes state that a delete left. Only call this when no process is left.
    pub(super) fn remove_state(&self, sandbox: SandboxId) -> io::Result<()> {
        for path in self.state(sandbox) {
            if path.is_dir() { remove_dir(&path)? } else { fs::remove_file(&path)? }
        }
        Ok(())
    }

    /// State of a container: a directory named by its id, or gVisor's files whose names start with it. All
    /// ids have the same length.
    fn state(&self, sandbox: SandboxId) -> impl Iterator<Item = PathBuf> {
        let id = sandbox.to_string();
        let entries = fs::read_dir(&self.state_dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(move |path| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(id.as_bytes()))
        })
    }

    async fn command(
        &self,
        logs: &Path,
        before: &[OsString],
        arguments: &[&OsStr],
    ) -> Result<ExitStatus, Fault> {
        let patience = limit::RUNTIME_COMMAND_TIMEOUT;
        let failed = |error: io::Error| Fault::Unavailable(format!("the runtime did not start: {error}"));
        let output = File::options().create(true).append(true).open(logs.join("init.log")).map_err(failed)?;
        let mut words = before.iter().map(OsString::as_os_str).chain([self.program.as_os_str()]);
        let mut child = Command::new(words.next().unwrap_or_default())
            .args(words)
            .arg("--root")
            .arg(&self.state_dir)
            .arg("--log")
            .arg(logs.join("runtime.log"))
            .args(["--log-format", "json"])
            .args(if self.is_gvisor { GVISOR.as_slice() } else { &[] })
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        match timeout(patience, child.wait()).await {
            Ok(status) => status.map_err(failed),
            Err(_) => {
                // Kill the group: the runtime's helpers hold locks of their own.
                let _ = group.map(|group| kill_process_group(group, Signal::KILL));
                Err(Fault::Unavailable(format!("the runtime did not end within {patience:?}")))
            }
        }
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Whether a version such as `1.1.5+ds1` is before another; one that cannot be read is not.
fn is_before(version: &str, oldest: (u32, u32, u32)) -> bool {
    let mut numbers = version.split(|character: char| !character.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) => (major, minor, patch) < oldest,
        _ => false,
    }
}

/// Release day in `release-20240729.0` or `0.0~20240729.0`, as a number.
fn release_day(version: &str) -> Option<u32> {
    version.split(|character: char| !character.is_ascii_digit()).find(|part| part.len() == 8)?.parse().ok()
}

/// Finds a program by name or absolute path.
pub(super) fn find_program(program: &str) -> Option<PathBuf> {
    let own_path = std::env::var("PATH").unwrap_or_default();
    let directories = own_path.split(':').chain(PATH.split(':')).filter(|path| path.starts_with('/'));
    // Joining an absolute path yields that path.
    let mut candidates = directories.map(|directory| Path::new(directory).join(program));
    candidates.find(|path| path.is_file())
}

/// Last message of the runtime, else of init, for an error message.
pub(super) fn last_message(logs: &Path) -> String {
    let runtime = tail(&logs.join("runtime.log"), limit::RUNTIME_LOG_BYTES_MAX);
    let message = runtime.lines().rev().find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(line.get("msg")?.as_str()?.to_owned())
    });
    let message = message.or_else(|| {
        tail(&logs.join("init.log"), limit::RUNTIME_LOG_BYTES_MAX).lines().last().map(str::to_owned)
    });
    let message = message.unwrap_or_else(|| "it left no message".to_owned());
    text::truncate(&message, limit::INIT_MESSAGE_BYTES_MAX).to_owned()
}

/// Last non-empty line of an output, for an error message.
pub(super) fn last_line(said: &str) -> &str {
    let line = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    text::truncate(line.unwrap_or("it left no message"), 1_000)
}

/// Last bytes of a file that only the service's own programs write.
pub(super) fn tail(path: &Path, bytes_max: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_runtime_is_one_clear_line() {
        let fault = Runtime::find("no-such-runtime", PathBuf::new()).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "the sandbox is not available: no-such-runtime was not found; run scripts/setup"
        );
    }

    /// A program that states a version as `name` does.
    fn stating(name: &str, version: &str) -> Result<Runtime, Fault> {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(name);
        let script = format!("#!/bin/sh\necho '{name} version {version}'\necho 'spec: 1.0.2'\n");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Runtime::find(program.to_str().unwrap(), PathBuf::new())
    }

    #[test]
    fn an_old_runc_is_refused_in_one_clear_line() {
        for old in ["1.0.3", "1.1.4-0ubuntu1"] {
            let fault = stating("runc", old).unwrap_err().to_string();
            assert!(fault.contains(&format!("runc {old}")) && fault.ends_with("scripts/setup"), "{fault}");
        }
        for version in ["1.1.5+ds1", "1.3.0", "main"] {
            assert!(!stating("runc", version).unwrap().is_gvisor, "{version}");
        }
    }

    #[test]
    fn an_ancient_gvisor_is_refused_in_one_clear_line() {
        let fault = stating("runsc", "0.0~20221219.0").unwrap_err().to_string();
        assert!(
            fault.contains("gVisor 0.0~20221219.0") && fault.ends_with("scripts/setup --test"),
            "{fault}"
        );
        for version in ["0.0~20240729.0", "release-20250101.0", "VERSION_MISSING"] {
            assert!(stating("runsc", version).unwrap().is_gvisor, "{version}");
        }
    }

    #[test]
    fn the_last_words_are_the_runtimes_own() {
        let logs = tempfile::tempdir().unwrap();
        assert_eq!(last_message(logs.path()), "it left no message");
        fs::write(logs.path().join("init.log"), "sojourn-init: no space\n").unwrap();
        assert_eq!(last_message(logs.path()), "sojourn-init: no space");
        fs::write(logs.path().join("runtime.log"), "{\"level\":\"error\",\"msg\":\"no cgroup\"}\n").unwrap();
        assert_eq!(last_message(logs.path()), "no cgroup");
    }
}
