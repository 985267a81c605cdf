//! The command line of the OCI runtime.
//!
//! Called by `local`; starts `runc` or a program that takes the same arguments.
//! Every call has a time, its own process group and no environment but a PATH; its
//! output goes into files, because the box inherits them and a pipe would stay
//! open as long as the box lives.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{process::Command, time::timeout};

use super::layout::remove_dir;
use crate::{
    base::{limit, text},
    domain::SandboxId,
    sandbox::Fault,
};

/// Where programs of the system are, whatever the service's own PATH says.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An OCI runtime and where it keeps its state.
#[derive(Clone, Debug)]
pub struct Runtime {
    program: PathBuf,
    state_dir: PathBuf,
}

impl Runtime {
    /// # Errors
    /// `Unavailable` when there is no such program.
    pub fn find(program: &str, state_dir: PathBuf) -> Result<Self, Fault> {
        let own_path = std::env::var("PATH").unwrap_or_default();
        let directories = own_path.split(':').chain(PATH.split(':')).filter(|path| path.starts_with('/'));
        // Joining an absolute program gives the program itself.
        let mut candidates = directories.map(|directory| Path::new(directory).join(program));
        match candidates.find(|path| path.is_file()) {
            Some(program) => Ok(Self { program, state_dir }),
            None => Err(Fault::Unavailable(format!("{program} was not found; run scripts/setup"))),
        }
    }

    /// Makes a container of the bundle and starts it. Returns the host's pid of
    /// its first process.
    pub async fn run(&self, sandbox: SandboxId, bundle: &Path) -> Result<Pid, Fault> {
        let pid_file = bundle.join("pid");
        let id = sandbox.to_string();
        let arguments: [&std::ffi::OsStr; 7] = [
            "run".as_ref(),
            "--detach".as_ref(),
            "--bundle".as_ref(),
            bundle.as_ref(),
            "--pid-file".as_ref(),
            pid_file.as_ref(),
            id.as_ref(),
        ];
        let status = self.command(bundle, &arguments, limit::RUNTIME_COMMAND_TIMEOUT).await?;
        let pid = fs::read_to_string(&pid_file).ok().and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
        match pid {
            Some(pid) if status.success() => Ok(pid),
            _ => Err(Fault::Unavailable(format!("the runtime did not start it: {}", last_words(bundle)))),
        }
    }

    /// Kills and deletes a container, if the runtime knows it. What it still knows
    /// afterwards is for the caller to find out: it exits 0 over some failures.
    pub async fn delete(&self, sandbox: SandboxId, logs: &Path) -> Result<(), Fault> {
        if !self.knows(sandbox) {
            return Ok(());
        }
        let id = sandbox.to_string();
        let arguments: [&std::ffi::OsStr; 3] = ["delete".as_ref(), "--force".as_ref(), id.as_ref()];
        self.command(logs, &arguments, limit::RUNTIME_COMMAND_TIMEOUT).await.map(|_| ())
    }

    /// Whether the runtime has state of a container.
    pub fn knows(&self, sandbox: SandboxId) -> bool {
        self.state(sandbox).exists()
    }

    /// Removes state that a delete left behind. Only when no process is left.
    pub fn forget(&self, sandbox: SandboxId) -> io::Result<()> {
        remove_dir(&self.state(sandbox))
    }

    fn state(&self, sandbox: SandboxId) -> PathBuf {
        self.state_dir.join(sandbox.to_string())
    }

    async fn command(
        &self,
        logs: &Path,
        arguments: &[&std::ffi::OsStr],
        patience: Duration,
    ) -> Result<ExitStatus, Fault> {
        let failed = |error: io::Error| Fault::Unavailable(format!("the runtime did not start: {error}"));
        let output = File::options().create(true).append(true).open(logs.join("init.log")).map_err(failed)?;
        let mut child = Command::new(&self.program)
            .arg("--root")
            .arg(&self.state_dir)
            .arg("--log")
            .arg(logs.join("runtime.log"))
            .args(["--log-format", "json"])
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
                // The runtime's helpers hold locks of their own.
                let _ = group.map(|group| kill_process_group(group, Signal::KILL));
                Err(Fault::Unavailable(format!("the runtime did not answer for {patience:?}")))
            }
        }
    }
}

/// What the runtime or init said last, for the one who reads the fault.
pub fn last_words(logs: &Path) -> String {
    let runtime = tail(&logs.join("runtime.log"));
    let message = runtime.lines().rev().find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(line.get("msg")?.as_str()?.to_owned())
    });
    let message = message.or_else(|| tail(&logs.join("init.log")).lines().last().map(str::to_owned));
    let message = message.unwrap_or_else(|| "it left no message".to_owned());
    text::truncate(&message, limit::INIT_MESSAGE_BYTES_MAX).to_owned()
}

fn tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(limit::RUNTIME_LOG_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.take(limit::RUNTIME_LOG_BYTES_MAX).read_to_end(&mut bytes)?;
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

    #[test]
    fn the_last_words_are_the_runtimes_own() {
        let logs = tempfile::tempdir().unwrap();
        assert_eq!(last_words(logs.path()), "it left no message");
        fs::write(logs.path().join("init.log"), "sojourn-init: no room\n").unwrap();
        assert_eq!(last_words(logs.path()), "sojourn-init: no room");
        fs::write(logs.path().join("runtime.log"), "{\"level\":\"error\",\"msg\":\"no cgroup\"}\n").unwrap();
        assert_eq!(last_words(logs.path()), "no cgroup");
    }
}
