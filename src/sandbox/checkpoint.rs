//! Checkpoints: the session's files as a zstd-compressed tar archive, one format for every provider.
//!
//! Called by `lifecycle` and `operation`. The archive is first written to an unnamed temporary file, because
//! the blob's key contains the SHA-256 of the compressed bytes, which is known only at the end. A checkpoint
//! counts as stored after it was read back from the blob store in full. Before a sandbox receives a byte of
//! one, the whole blob is read and its digest compared with its name.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, Write},
};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{Fault, Sandbox, SandboxFence};
use crate::{
    base::{
        limit::{ARCHIVE_PART_BYTES, ARCHIVE_PARTS_WAITING, CHECKPOINT_BYTES_MAX},
        text::hex,
    },
    blob::{self, Blobs},
};

/// zstd compression level: level 1 gives most of the reduction at the lowest CPU cost.
const LEVEL: i32 = 1;

/// A checkpoint in the blob store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// SHA-256 of the blob, in hexadecimal; also the last part of its key.
    pub digest: String,
    /// Size of the blob in bytes.
    pub bytes: u64,
}

/// Key prefix of a session's checkpoints in the blob store.
pub fn place(session: &str) -> String {
    format!("{session}/checkpoints")
}

/// Key of one checkpoint.
pub fn key(session: &str, digest: &str) -> String {
    format!("{}/{digest}", place(session))
}

/// Checkpoints the files of a sandbox below `session`.
///
/// Nothing is uploaded if the digest equals `known`, a checkpoint that the store already has. Dropping the
/// future leaves at most one blob, which is replaced or removed later.
///
/// # Errors
/// The sandbox's faults, and `Unavailable` when the files could not be stored in full.
#[expect(clippy::disallowed_methods, reason = "ends with its channel")]
pub async fn save(
    sandbox: &dyn Sandbox,
    fence: SandboxFence,
    blobs: &Blobs,
    session: &str,
    known: Option<&str>,
) -> Result<Saved, Fault> {
    let (sender, receiver) = mpsc::channel(ARCHIVE_PARTS_WAITING);
    let file = blobs.scratch().map_err(|error| away(&error))?;
    let compressed = spawn_blocking(move || compress(file, receiver));
    let packed = sandbox.pack(fence, sender).await;
    let compressed = compressed.await.map_err(|error| away(&error))?;
    packed?;
    let (file, saved) = compressed.map_err(|error| away(&error))?;
    if known == Some(saved.digest.as_str()) {
        return Ok(saved);
    }
    let key = key(session, &saved.digest);
    blobs.put_file(&key, file).await.map_err(|error| away(&error))?;
    let (_, stored) = read(blobs, &key).await?;
    if stored != saved.digest {
        return Err(Fault::Unavailable("the blob store returned other bytes than were written".to_owned()));
    }
    Ok(saved)
}

/// A checkpoint that was read in full and matches its digest.
#[derive(Debug)]
pub struct Fetched(File);

/// Fetches the checkpoint with this digest into a temporary file. Dropping the future leaves nothing.
///
/// # Errors
/// `NotFound` when the blob is missing from the store or does not match its digest.
pub async fn fetch(blobs: &Blobs, session: &str, digest: &str) -> Result<Fetched, Fault> {
    match read(blobs, &key(session, digest)).await? {
        (file, stored) if stored == digest => Ok(Fetched(file)),
        _ => Err(Fault::NotFound("the checkpoint does not match its digest".to_owned())),
    }
}

/// Unpacks a checkpoint into a new sandbox.
///
/// # Errors
/// The sandbox's faults.
#[expect(clippy::disallowed_methods, reason = "ends with its channel")]
pub async fn load(sandbox: &dyn Sandbox, fence: SandboxFence, checkpoint: Fetched) -> Result<(), Fault> {
    let (sender, receiver) = mpsc::channel(ARCHIVE_PARTS_WAITING);
    let expanded = spawn_blocking(move || expand(checkpoint.0, &sender));
    let unpacked = sandbox.unpack(fence, receiver).await;
    let expanded = expanded.await.map_err(|error| away(&error))?;
    // If the sandbox refused the archive, its fault is the one to return.
    unpacked.and(expanded)
}

/// Reads a blob into a temporary file and returns its digest.
#[expect(clippy::disallowed_methods, reason = "awaited at once")]
async fn read(blobs: &Blobs, key: &str) -> Result<(File, String), Fault> {
    let missing = |error: blob::Error| match error {
        blob::Error::NotFound => Fault::NotFound("the checkpoint is missing from the blob store".to_owned()),
        error @ (blob::Error::Timeout | blob::Error::Unavailable(_)) => away(&error),
    };
    let file = blobs.get_file(key).await.map_err(missing)?;
    let digested = spawn_blocking(move || digest(file)).await.map_err(|error| away(&error))?;
    digested.map_err(|error| away(&error))
}

fn compress(file: File, mut parts: mpsc::Receiver<Bytes>) -> io::Result<(File, Saved)> {
    let out = Digesting { inner: BufWriter::new(file), hasher: Sha256::new(), bytes: 0 };
    let mut encoder = zstd::Encoder::new(out, LEVEL)?;
    while let Some(part) = parts.blocking_recv() {
        encoder.write_all(&part)?;
    }
    let mut out = encoder.finish()?;
    out.flush()?;
    let saved = Saved { digest: hex(&out.hasher.finalize()), bytes: out.bytes };
    let mut file = out.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok((file, saved))
}

fn expand(file: File, parts: &mpsc::Sender<Result<Bytes, Fault>>) -> Result<(), Fault> {
    let read = || -> io::Result<()> {
        // Bounds decompression: a larger archive is a decompression bomb.
        let mut decoder = zstd::Decoder::new(file)?.take(CHECKPOINT_BYTES_MAX);
        loop {
            let mut part = vec![0; ARCHIVE_PART_BYTES];
            let mut filled = 0;
            while filled < part.len() {
                match decoder.read(&mut part[filled..])? {
                    0 => break,
                    length => filled += length,
                }
            }
            part.truncate(filled);
            if filled == 0 || parts.blocking_send(Ok(part.into())).is_err() {
                return Ok(());
            }
        }
    };
    let Err(error) = read() else { return Ok(()) };
    let fault = Fault::Refused(format!("the checkpoint cannot be read: {error}"));
    // Forward the fault: the sandbox must not accept a truncated archive as complete.
    let _ = parts.blocking_send(Err(fault.clone()));
    Err(fault)
}

fn digest(mut file: File) -> io::Result<(File, String)> {
    let mut hasher = Sha256::new();
    let mut reader = BufReader::new(&file);
    let mut chunk = vec![0; ARCHIVE_PART_BYTES];
    loop {
        match reader.read(&mut chunk)? {
            0 => break,
            length => hasher.update(&chunk[..length]),
        }
    }
    file.rewind()?;
    Ok((file, hex(&hasher.finalize())))
}

/// A writer that counts and hashes the bytes written.
struct Digesting<W> {
    inner: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..length]);
        self.bytes += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn away(error: &dyn std::fmt::Display) -> Fault {
    Fault::Unavailable(format!("the checkpoint cannot be stored or read: {error}"))
}
