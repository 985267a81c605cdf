//! Transfer of a local repository into a sandbox as a git bundle.
//!
//! The sandbox never sees the directory: git reads it in this process, and the bundle is written into the
//! sandbox as files, part by part. The allowed directories are checked after all links of the repository
//! and its object directory are resolved.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    time::timeout,
};

use super::{Failed, Failure, clone::Cloning};
use crate::{
    base::{
        limit::{EXEC_SUMMARY_BYTES_MAX, SOURCE_BYTES_MAX, SOURCE_PART_BYTES, SOURCE_TIMEOUT},
        text,
    },
    net::LocalDirectories,
};

/// A bundle in the sandbox.
pub(crate) struct Sent {
    /// Directory of the bundle's parts, one file each, ordered by name.
    pub directory: String,
    pub bytes: u64,
}

impl Cloning<'_> {
    /// Writes a bundle of the repository at `path` into the sandbox.
    pub(super) async fn send_bundle(&self, path: &Path) -> Result<Sent, Failed> {
        let allowed = &self.session.sandboxes.local_sources;
        let git_dir = find(allowed, path).await?;
        let directory = format!("/workspace/.{}.parts/{}", self.mark(), self.clone_id);
        let mut wanted = vec!["HEAD".to_owned(), "--branches".to_owned(), "--tags".to_owned()];
        wanted.extend(self.source.reference.iter().filter(|name| name.starts_with("refs/")).cloned());
        let mut child = git(&git_dir)
            .args(["bundle", "create", "--quiet", "-"])
            .args(&wanted)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::for_now(format!("git does not start: {error}")))?;
        let (mut output, mut errors) =
            (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
        let (sent, words) =
            tokio::join!(timeout(SOURCE_TIMEOUT, parts(self, &directory, &mut output)), last(&mut errors));
        let bytes =
            sent.map_err(|_| Failure::for_good(Failure::TIMEOUT, "it could not be read in time"))??;
        let ended = child.wait().await.map_err(|error| Failure::for_now(error.to_string()))?;
        if ended.success() {
            return Ok(Sent { directory, bytes });
        }
        let code = if words.contains("bad revision") { Failure::REF_NOT_FOUND } else { Failure::CHECKOUT };
        Err(Failure::for_good(code, words).into())
    }
}

/// Writes `output` into the sandbox part by part; returns its size in bytes.
async fn parts(
    cloning: &Cloning<'_>,
    directory: &str,
    output: &mut (impl AsyncRead + Unpin),
) -> Result<u64, Failed> {
    let mut bytes = 0;
    for number in 0.. {
        let mut part = Vec::with_capacity(SOURCE_PART_BYTES);
        let mut limited = output.take(SOURCE_PART_BYTES as u64);
        let read = limited.read_to_end(&mut part).await;
        read.map_err(|error| Failure::for_now(format!("it could not be read: {error}")))?;
        if part.is_empty() {
            break;
        }
        bytes += part.len() as u64;
        if bytes > SOURCE_BYTES_MAX {
            let message = format!("it is larger than {} MiB", SOURCE_BYTES_MAX >> 20);
            return Err(Failure::for_good(Failure::TOO_LARGE, message).into());
        }
        cloning.sandbox.write_file(cloning.sandbox_fence, &format!("{directory}/{number:06}"), &part).await?;
    }
    Ok(bytes)
}

/// The git directory of the repository at `path`, if that and its objects are in allowed directories.
async fn find(allowed: &LocalDirectories, path: &Path) -> Result<PathBuf, Failure> {
    let refused = |words: String| Failure::for_good(Failure::NOT_ALLOWED, words);
    let outside = |error: crate::net::NotLocal| refused(format!("the repository {error}"));
    let path = allowed.resolve(path).map_err(outside)?;
    let asked = Command::new("git")
        .args(["rev-parse", "--path-format=absolute", "--git-common-dir"])
        .current_dir(&path)
        .env_clear()
        .envs(environment())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let asked = timeout(SOURCE_TIMEOUT, asked).await.map_err(|error| Failure::for_now(error.to_string()))?;
    let asked = asked.map_err(|error| Failure::for_now(format!("git does not start: {error}")))?;
    let told = String::from_utf8_lossy(&asked.stdout);
    if !asked.status.success() || told.trim().is_empty() {
        return Err(refused("there is no repository".to_owned()));
    }
    // Parts of a repository may be elsewhere: by a link, a `.git` file, or a list of other object
    // directories.
    let git_dir = allowed.resolve(Path::new(told.trim())).map_err(outside)?;
    let objects = allowed.resolve(&git_dir.join("objects")).map_err(outside)?;
    if objects.join("info/alternates").exists() {
        return Err(refused("the repository borrows objects of another one".to_owned()));
    }
    Ok(git_dir)
}

fn git(git_dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("--git-dir").arg(git_dir).env_clear().envs(environment()).stdin(Stdio::null());
    command.current_dir("/").kill_on_drop(true);
    command
}

/// Environment of git: reads a directory of the operator, whichever user owns the files.
fn environment() -> Vec<(&'static str, String)> {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned());
    vec![
        ("PATH", path),
        ("LC_ALL", "C".to_owned()),
        ("GIT_CONFIG_NOSYSTEM", "1".to_owned()),
        ("GIT_CONFIG_GLOBAL", "/dev/null".to_owned()),
        ("GIT_CONFIG_COUNT", "1".to_owned()),
        ("GIT_CONFIG_KEY_0", "safe.directory".to_owned()),
        ("GIT_CONFIG_VALUE_0", "*".to_owned()),
        ("GIT_NO_REPLACE_OBJECTS", "1".to_owned()),
        ("GIT_NO_LAZY_FETCH", "1".to_owned()),
    ]
}

/// The last bytes of git's error output.
async fn last(errors: &mut (impl AsyncRead + Unpin)) -> String {
    let mut said = Vec::new();
    let _ = errors.take(SOURCE_PART_BYTES as u64).read_to_end(&mut said).await;
    let from = said.len().saturating_sub(EXEC_SUMMARY_BYTES_MAX);
    text::printable(&said[from..]).trim().to_owned()
}
