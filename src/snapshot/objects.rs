//! Packs as objects of their organization in the blob store: upload, and reads of a whole one or of a range.
//!
//! An object that is uploaded is deleted after `OBJECT_UNUSED_TTL`, unless an append refers to it until then
//! (`store::snapshot`).

use std::{fmt::Display, ops::Range, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::Error;
use crate::{
    base::{
        limit::{OBJECT_BYTES_MAX, OBJECT_PART_BYTES, OBJECT_REMOVAL_TTL, OBJECT_UNUSED_TTL},
        seal::sha256,
        text::hex,
    },
    blob::{self, Blobs},
    domain::OrgId,
    store::{Store, object},
};

/// Interval at which an upload looks whether the deletion of an object with the same bytes has ended.
const REMOVAL_POLL: Duration = Duration::from_millis(250);

/// Stores bytes as an object of an organization, durably. Returns their digest, which is its name.
///
/// Waits while a worker deletes an object with the same bytes. Dropping the future leaves at most an object that nothing
/// refers to, which is deleted after a while.
///
/// # Errors
/// `TooLarge` beyond `OBJECT_BYTES_MAX`, `Unavailable` when the database or the blob store does not answer.
pub async fn put_object(store: &Store, blobs: &Blobs, org: OrgId, bytes: Bytes) -> Result<[u8; 32], Error> {
    let size = bytes.len() as u64;
    if size > OBJECT_BYTES_MAX {
        return Err(Error::TooLarge(format!("an object has at most {} MiB", OBJECT_BYTES_MAX >> 20)));
    }
    let digest = digest_of(bytes.clone()).await?;
    let key = object::key(org, &digest);
    let began = Instant::now();
    loop {
        let begins = Instant::now();
        if !store.begin_upload(org, &digest, size).await.map_err(away)? {
            // Twice the time after which the claim of a worker that is gone has ended.
            if began.elapsed() >= 2 * OBJECT_REMOVAL_TTL {
                return Err(Error::Unavailable("an object with the same bytes is being deleted".to_owned()));
            }
            sleep(REMOVAL_POLL).await;
            continue;
        }
        let stored = match bytes.len() > OBJECT_PART_BYTES {
            true => blobs.put_parts(&key, bytes.clone()).await,
            false => blobs.put(&key, bytes.clone()).await,
        };
        stored.map_err(away)?;
        // Otherwise the process was frozen, and the row may be gone, without which nobody deletes the blob.
        if begins.elapsed() < OBJECT_UNUSED_TTL / 2 {
            return Ok(digest);
        }
    }
}

/// Reads an object, or a range of its bytes. Whole ones are compared with the digest; whoever reads a range verifies it.
///
/// # Errors
/// `Damaged` if the object is missing, has other bytes or ends before the range does. `Unavailable` when the blob store
/// does not answer.
pub async fn read_object(
    blobs: &Blobs,
    org: OrgId,
    digest: &[u8; 32],
    range: Option<Range<u64>>,
) -> Result<Bytes, Error> {
    let key = object::key(org, digest);
    let read = match range {
        Some(range) => read_range(blobs, &key, range).await,
        None => read_whole(blobs, &key, digest).await,
    };
    if let Err(error @ Error::Damaged(_)) = &read {
        metrics::counter!("sojourn_blobs_lost_total", "kind" => "object").increment(1);
        tracing::error!(org.id = %org, object = hex(digest), %error, "an object cannot be read");
    }
    read
}

async fn read_range(blobs: &Blobs, key: &str, range: Range<u64>) -> Result<Bytes, Error> {
    let wanted = range.end.saturating_sub(range.start);
    if wanted == 0 {
        return Ok(Bytes::new());
    }
    if wanted > OBJECT_BYTES_MAX {
        return Err(damaged("is shorter than a range of it"));
    }
    let error = match blobs.get_range(key, range.clone()).await {
        Ok(bytes) if bytes.len() as u64 == wanted => return Ok(bytes),
        Ok(_) => return Err(damaged("is shorter than a range of it")),
        Err(error) => error,
    };
    // So is an object that ends before the range begins.
    if matches!(error, blob::Error::Unavailable(_)) && blobs.size(key).await.map_err(failed)? < range.end {
        return Err(damaged("is shorter than a range of it"));
    }
    Err(failed(error))
}

async fn read_whole(blobs: &Blobs, key: &str, digest: &[u8; 32]) -> Result<Bytes, Error> {
    let size = blobs.size(key).await.map_err(failed)?;
    if size > OBJECT_BYTES_MAX {
        return Err(damaged("is too large"));
    }
    let mut content = BytesMut::new();
    let mut at = 0;
    while at < size {
        let end = size.min(at + OBJECT_PART_BYTES as u64);
        content.extend_from_slice(&read_range(blobs, key, at..end).await?);
        at = end;
    }
    let content = content.freeze();
    match digest_of(content.clone()).await? == *digest {
        true => Ok(content),
        false => Err(damaged("has other bytes")),
    }
}

/// Hashes on another thread: a pack takes up to a second.
#[expect(clippy::disallowed_methods, reason = "awaited at once")]
async fn digest_of(bytes: Bytes) -> Result<[u8; 32], Error> {
    spawn_blocking(move || sha256(&bytes)).await.map_err(away)
}

fn failed(error: blob::Error) -> Error {
    match error {
        blob::Error::NotFound => damaged("is missing from the blob store"),
        error @ (blob::Error::Timeout | blob::Error::Unavailable(_)) => away(error),
    }
}

fn damaged(reason: &str) -> Error {
    Error::Damaged(format!("its object {reason}"))
}

fn away(error: impl Display) -> Error {
    Error::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    #[tokio::test]
    async fn an_object_is_read_as_it_was_stored_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::local(&directory.path().join("blobs")).unwrap();
        let org = Origin::system().id();
        let content: Bytes = (0..OBJECT_PART_BYTES + 1_000).map(|at| (at % 251) as u8).collect();
        let digest = sha256(&content);
        let read = async |range: Option<Range<u64>>| read_object(&blobs, org, &digest, range).await;
        let is_damaged = |read: Result<Bytes, Error>| matches!(read, Err(Error::Damaged(_)));
        for range in [None, Some(0..10)] {
            assert!(is_damaged(read(range).await), "it is missing");
        }
        let key = object::key(org, &digest);
        blobs.put(&key, content.clone()).await.unwrap();
        assert!(read(None).await.unwrap() == content);
        assert_eq!(read(Some(5..300)).await.unwrap(), content[5..300]);
        assert_eq!(read(Some(7..7)).await.unwrap(), "");
        let end = content.len() as u64;
        for range in [end - 1..end + 1, end..end + 1, end + 5..end + 6, 0..u64::MAX] {
            assert!(is_damaged(read(Some(range)).await), "it ends before the range");
        }
        for other in [content.slice(1..), content.iter().rev().copied().collect()] {
            blobs.put(&key, other).await.unwrap();
            assert!(is_damaged(read(None).await), "it has other bytes");
        }
        assert!(is_damaged(read_object(&blobs, Origin::system().id(), &digest, None).await), "not shared");
    }
}
