//! Reads, writes and lists of files in a session's sandbox.
//!
//! Called by `operation`. The bytes are transferred through the blob store, because the caller's
//! request may be in a process on another machine. This process never opens a path of the sandbox; the
//! sandbox does, as its user.

use std::io::Write;

use bytes::Bytes;

use super::output;
use crate::{
    base::{
        limit::{
            DIRECTORY_BYTES_MAX, DIRECTORY_ENTRIES_MAX, FILE_PART_BYTES, FILE_TIMEOUT, FILE_WRITE_BYTES_MAX,
        },
        text,
    },
    blob::{self, Blobs},
    domain::{
        OperationId,
        operation::{Answer, Entry},
    },
    journal,
    sandbox::{Exec, Fault, OutputStream, Sandbox, SandboxFence},
    store::record::Fence,
};

/// Location of an operation's bytes in the blob store.
pub(crate) struct OperationBlob<'a> {
    pub blobs: &'a Blobs,
    pub fence: Fence,
    pub operation: OperationId,
}

/// Copies part of a file into the blob store.
pub(crate) async fn read(
    sandbox: &dyn Sandbox,
    sandbox_fence: SandboxFence,
    place: &OperationBlob<'_>,
    path: &str,
    offset: u64,
    bytes_max: u64,
) -> Result<Answer, Fault> {
    let mut file = place.blobs.scratch().map_err(|error| away(&error))?;
    let (mut bytes, mut size) = (0, 0);
    loop {
        let wanted = (bytes_max - bytes).min(FILE_PART_BYTES as u64) as usize;
        let part = sandbox.read_file(sandbox_fence, path, offset + bytes, wanted).await?;
        size = part.size.max(size);
        if part.content.is_empty() || wanted == 0 {
            break;
        }
        // A sandbox may return more than was requested.
        let content = &part.content[..part.content.len().min(wanted)];
        file.write_all(content).map_err(|error| Fault::Unavailable(error.to_string()))?;
        bytes += content.len() as u64;
    }
    std::io::Seek::rewind(&mut file).map_err(|error| Fault::Unavailable(error.to_string()))?;
    let blob = journal::operation_blob(place.fence.org, place.fence.session, place.operation);
    place.blobs.put_file(&blob, file).await.map_err(|error| away(&error))?;
    Ok(Answer::Read { blob, bytes, size })
}

/// Replaces a file with the contents of a blob.
pub(crate) async fn write(
    sandbox: &dyn Sandbox,
    sandbox_fence: SandboxFence,
    place: &OperationBlob<'_>,
    path: &str,
    blob: &str,
) -> Result<Answer, Fault> {
    let content: Bytes = place.blobs.get(blob).await.map_err(|error| away(&error))?;
    if content.len() > FILE_WRITE_BYTES_MAX {
        return Err(Fault::Refused(format!(
            "a file that is written must not exceed {FILE_WRITE_BYTES_MAX} bytes"
        )));
    }
    sandbox.write_file(sandbox_fence, path, &content).await?;
    // The blob remains: a worker that serves this again after a crash writes the same.
    Ok(Answer::Written { bytes: content.len() as u64 })
}

/// Lists a directory with the sandbox's `find`.
pub(crate) async fn list(
    sandbox: &dyn Sandbox,
    sandbox_fence: SandboxFence,
    place: &OperationBlob<'_>,
    path: &str,
) -> Result<Answer, Fault> {
    let id = format!("d-{}", place.operation);
    let program = ["find", path, "-mindepth", "1", "-maxdepth", "1", "-printf", r"%y\t%s\t%T@\t%f\0"];
    let exec = Exec {
        id: id.clone(),
        argv: program.map(str::to_owned).to_vec(),
        cwd: String::new(),
        env: vec![("LC_ALL".to_owned(), "C.UTF-8".to_owned())],
        timeout: FILE_TIMEOUT,
        output_bytes_max: DIRECTORY_BYTES_MAX,
        is_service: false,
    };
    sandbox.start(sandbox_fence, &exec).await?;
    let exit = sandbox.wait(sandbox_fence, &id).await?;
    if exit.code != 0 && exit.stdout_bytes == 0 {
        let words =
            text::printable(&output::read(sandbox, sandbox_fence, &id, OutputStream::Stderr, 1_024).await?);
        let words = words.trim().to_owned();
        return Err(match words.contains("No such file") {
            true => Fault::NotFound(words),
            false => Fault::Refused(words),
        });
    }
    let kept = exit.stdout_bytes.min(DIRECTORY_BYTES_MAX);
    let listed = output::read(sandbox, sandbox_fence, &id, OutputStream::Stdout, kept).await?;
    let mut entries: Vec<Entry> = listed.split_inclusive(|byte| *byte == 0).filter_map(entry).collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let is_cut = exit.stdout_bytes > DIRECTORY_BYTES_MAX || entries.len() > DIRECTORY_ENTRIES_MAX;
    entries.truncate(DIRECTORY_ENTRIES_MAX);
    Ok(Answer::Listed { entries, is_cut })
}

/// Parses one NUL-terminated entry of `find`; `None` if its end was cut off.
fn entry(queue: &[u8]) -> Option<Entry> {
    let queue = String::from_utf8_lossy(queue.strip_suffix(b"\0")?).into_owned();
    let mut fields = queue.splitn(4, '\t');
    let kind = match fields.next()? {
        "f" => "file",
        "d" => "directory",
        "l" => "link",
        _ => "other",
    };
    let bytes = fields.next()?.parse().ok()?;
    let modified = fields.next()?.split('.').next()?.parse().ok()?;
    Some(Entry { name: fields.next()?.to_owned(), kind: kind.to_owned(), bytes, modified })
}

pub(crate) fn away(error: &blob::Error) -> Fault {
    Fault::Unavailable(format!("the blob store: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything_but_its_end() {
        let listed = entry(b"f\t12\t1700000000.5\ta\tb\nc\0").expect("an entry");
        assert_eq!((listed.name.as_str(), listed.bytes, listed.modified), ("a\tb\nc", 12, 1_700_000_000));
        assert_eq!(entry(b"d\t1\t1.0\tcut"), None, "its end is missing");
        assert_eq!(entry(b"nonsense\0"), None);
    }
}
