//! Reads and writes of directories as tar archives.
//!
//! Called by `operation`. Archives are transferred through the blob store, like single files. The sandbox
//! packs and unpacks the archive as its own user; this process only counts its bytes.

use std::{
    fs::File,
    io::{Read, Seek},
};

use bytes::Bytes;
use tokio::{io::AsyncWriteExt, sync::mpsc, task::spawn_blocking};

use super::file::{OperationBlob, away};
use crate::{
    base::limit::{ARCHIVE_BYTES_MAX, ARCHIVE_PART_BYTES, ARCHIVE_PARTS_WAITING},
    blob::{self, Blobs},
    domain::operation::{Answer, Failure},
    journal,
    sandbox::{Fault, Sandbox, SandboxFence},
};

/// Copies the contents of a directory into the blob store as an archive.
pub(crate) async fn read(
    sandbox: &dyn Sandbox,
    sandbox_fence: SandboxFence,
    place: &OperationBlob<'_>,
    path: &str,
) -> Result<Answer, Fault> {
    let (sender, receiver) = mpsc::channel(ARCHIVE_PARTS_WAITING);
    let blob = journal::operation_blob(place.fence.org, place.fence.session, place.operation);
    let (packed, kept) =
        tokio::join!(sandbox.read_tree(sandbox_fence, path, sender), keep(place.blobs, receiver));
    let (file, bytes) = match kept.map_err(|error| away(&error))? {
        Some(kept) => kept,
        // The receiver was dropped at the size limit, so the sandbox stopped.
        None => {
            let message = format!(
                "the archive is larger than {ARCHIVE_BYTES_MAX} bytes; read the subdirectories one by one"
            );
            return Ok(Answer::Failed { code: Failure::TooLarge, message });
        }
    };
    packed?;
    place.blobs.put_file(&blob, file).await.map_err(|error| away(&error))?;
    Ok(Answer::Read { blob, bytes, size: bytes })
}

/// Writes the received parts to a file; returns it with its size, `None` above `ARCHIVE_BYTES_MAX`.
async fn keep(blobs: &Blobs, mut parts: mpsc::Receiver<Bytes>) -> Result<Option<(File, u64)>, blob::Error> {
    let mut file = tokio::fs::File::from_std(blobs.scratch()?);
    let mut bytes = 0;
    while let Some(part) = parts.recv().await {
        bytes += part.len() as u64;
        if bytes > ARCHIVE_BYTES_MAX {
            return Ok(None);
        }
        file.write_all(&part).await?;
    }
    file.flush().await?;
    let mut file = file.into_std().await;
    file.rewind()?;
    Ok(Some((file, bytes)))
}

/// Unpacks a blob below a directory.
#[expect(clippy::disallowed_methods, reason = "ends with its channel")]
pub(crate) async fn write(
    sandbox: &dyn Sandbox,
    sandbox_fence: SandboxFence,
    place: &OperationBlob<'_>,
    path: &str,
    blob: &str,
) -> Result<Answer, Fault> {
    let mut file = place.blobs.get_file(blob).await.map_err(|error| away(&error))?;
    let bytes = file.metadata().map_err(|error| away(&error.into()))?.len();
    let (sender, receiver) = mpsc::channel(ARCHIVE_PARTS_WAITING);
    // If the sandbox refuses the rest, it drops the receiver: that ends this task.
    let sent = spawn_blocking(move || {
        loop {
            let mut part = Vec::with_capacity(ARCHIVE_PART_BYTES);
            let read = file.by_ref().take(ARCHIVE_PART_BYTES as u64).read_to_end(&mut part);
            let (part, is_last) = match read {
                Ok(0) => return,
                Ok(_) => (Ok(part.into()), false),
                Err(error) => (Err(away(&error.into())), true),
            };
            if sender.blocking_send(part).is_err() || is_last {
                return;
            }
        }
    });
    // The blob remains: a worker that serves this again after a crash writes the same.
    sandbox.write_tree(sandbox_fence, path, receiver).await?;
    sent.await.map_err(|error| Fault::Unavailable(error.to_string()))?;
    Ok(Answer::Written { bytes })
}
