//! Files that callers sent, in the sandbox of the session: written before the first call that runs there.
//!
//! A file in the sandbox lists those that were written, because the worker of the next turn knows of none.

use std::{collections::BTreeSet, sync::Mutex};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::Error;
use crate::{
    base::limit::{FILE_NAME_BYTES_MAX, FILE_WRITE_BYTES_MAX, SESSION_FILES_MAX},
    domain::{
        SandboxId,
        content::{FileRef, SANDBOX_FILES},
    },
    file::Files,
    sandbox::{Fault, Sandbox, SandboxFence},
};

/// Longest line of the list: the id of a file, and its name.
const LINE_BYTES: usize = FILE_NAME_BYTES_MAX + 64;

/// The files of one lease.
pub(super) struct PlacedFiles {
    files: Files,
    wanted: Mutex<Vec<FileRef>>,
    /// The sandbox, and the paths below [`SANDBOX_FILES`] that it has.
    placed: tokio::sync::Mutex<Option<(SandboxId, BTreeSet<String>)>>,
}

impl PlacedFiles {
    pub(super) fn new(files: Files) -> Self {
        Self { files, wanted: Mutex::default(), placed: tokio::sync::Mutex::default() }
    }

    /// Names the files that the sandbox has to have.
    pub(super) fn want(&self, files: &[FileRef]) {
        files.clone_into(&mut self.wanted.lock().expect("no holder panics"));
    }

    /// Writes the files that the sandbox does not have. One that it refuses, such as for a full disk, is left out.
    ///
    /// # Errors
    /// `Stale`; `LogUnavailable` while the blob store does not answer.
    pub(super) async fn place(&self, sandbox: &dyn Sandbox, fence: SandboxFence) -> Result<(), Error> {
        let wanted = self.wanted.lock().expect("no holder panics").clone();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut placed = self.placed.lock().await;
        if placed.as_ref().is_none_or(|(of, _)| *of != fence.sandbox) {
            let Some(listed) = listed(sandbox, fence).await? else { return Ok(()) };
            *placed = Some((fence.sandbox, listed));
        }
        let Some((_, present)) = placed.as_mut() else { return Ok(()) };
        let count = present.len();
        let missing = wanted.iter().filter(|file| file.path.starts_with(SANDBOX_FILES));
        for file in missing {
            if present.contains(key(file)) {
                continue;
            }
            let content = self.files.content(fence.org, file.file_id).await.map_err(|error| {
                Error::LogUnavailable(format!("a file of the session cannot be read: {error}"))
            })?;
            if let Some(content) = content
                && !is_done(write(sandbox, fence, file, content).await)?
            {
                return Ok(());
            }
            present.insert(key(file).to_owned());
        }
        if present.len() > count {
            let list = present.iter().map(|key| format!("{key}\n")).collect::<String>();
            is_done(sandbox.write_file(fence, &list_path(), list.as_bytes()).await)?;
        }
        Ok(())
    }
}

/// Returns the path of a file below [`SANDBOX_FILES`].
fn key(file: &FileRef) -> &str {
    file.path.trim_start_matches(SANDBOX_FILES)
}

fn list_path() -> String {
    format!("{SANDBOX_FILES}/.written")
}

/// Returns the files that the sandbox lists as written; `None` if it does not answer.
async fn listed(sandbox: &dyn Sandbox, fence: SandboxFence) -> Result<Option<BTreeSet<String>>, Error> {
    let most = SESSION_FILES_MAX * LINE_BYTES;
    match sandbox.read_file(fence, &list_path(), 0, most).await {
        Ok(part) => {
            let list = String::from_utf8_lossy(&part.content).into_owned();
            Ok(Some(list.lines().map(str::to_owned).collect()))
        }
        // A new sandbox, or a list that the agent replaced.
        Err(Fault::NotFound(_) | Fault::Refused(_)) => Ok(Some(BTreeSet::new())),
        Err(fault) => is_done(Err(fault)).map(|_| None),
    }
}

async fn write(
    sandbox: &dyn Sandbox,
    fence: SandboxFence,
    file: &FileRef,
    content: Bytes,
) -> Result<(), Fault> {
    if content.len() <= FILE_WRITE_BYTES_MAX {
        return sandbox.write_file(fence, &file.path, &content).await;
    }
    let Some((directory, name)) = file.path.rsplit_once('/') else { return Ok(()) };
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(Vec::with_capacity(content.len() + 4_096));
    let packed = archive.append_data(&mut header, name, &content[..]).and_then(|()| archive.into_inner());
    let packed = packed.map_err(|error| Fault::Unavailable(error.to_string()))?;
    let (sender, receiver) = mpsc::channel(1);
    let send = async {
        for part in packed.chunks(1 << 20) {
            if sender.send(Ok(Bytes::copy_from_slice(part))).await.is_err() {
                break;
            }
        }
        drop(sender);
    };
    let (written, ()) = tokio::join!(sandbox.write_tree(fence, directory, receiver), send);
    written
}

/// Returns whether a write is over. If the sandbox does not answer, the call that needs it finds out, and the write is tried
/// again.
fn is_done(written: Result<(), Fault>) -> Result<bool, Error> {
    match written {
        Ok(()) => Ok(true),
        Err(Fault::Stale) => Err(Error::Stale),
        Err(fault @ (Fault::Refused(_) | Fault::NotFound(_))) => {
            tracing::warn!(%fault, "a file of the session could not be written to its sandbox");
            Ok(true)
        }
        Err(Fault::Gone | Fault::Unavailable(_)) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_in_the_home_directory_of_the_sandbox() {
        assert_eq!(SANDBOX_FILES, format!("{}/files", sojourn_init::protocol::HOME));
    }
}
