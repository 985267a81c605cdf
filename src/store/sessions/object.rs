//! Objects: immutable bytes in the blob store, which stay as long as something refers to them.
//!
//! The row is written before the upload, a reference after it (see `migrations/0044_object.sql`). A worker that deletes an
//! object claims it, deletes the blob, then the row. Organizations never share objects: that one exists would tell what
//! another one has.

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::{
        Id, Timestamp,
        limit::{OBJECT_REMOVAL_TTL, OBJECT_UNUSED_TTL},
        text::hex,
    },
    domain::OrgId,
    store::{Result, Store, column::count},
};

/// An object that a worker has claimed to delete it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedObject {
    pub org: OrgId,
    /// SHA-256 of the bytes.
    pub digest: [u8; 32],
    /// The time of the claim, which tells it from others.
    removing_at: Timestamp,
}

#[derive(FromRow)]
struct Row {
    org_id: Uuid,
    digest: [u8; 32],
    removing_at: Timestamp,
}

impl From<Row> for UnusedObject {
    fn from(row: Row) -> Self {
        let Row { org_id, digest, removing_at } = row;
        Self { org: Id::from_uuid(org_id), digest, removing_at }
    }
}

/// Returns the blob key of an object.
pub fn key(org: OrgId, digest: &[u8; 32]) -> String {
    format!("{}/objects/{}", org.uuid(), hex(digest))
}

impl Store {
    /// Writes the row of an object that is uploaded next; an existing one stays for `OBJECT_UNUSED_TTL` from now.
    ///
    /// Returns false while a worker deletes the object: try again until its row is gone or its claim has ended, at most
    /// `OBJECT_REMOVAL_TTL`.
    pub async fn begin_upload(&self, org: OrgId, digest: &[u8; 32], bytes: u64) -> Result<bool> {
        let done = sqlx::query(
            "insert into object as o (org_id, digest, bytes, kept_until)
             values ($1, $2, $3, now() + $4 * interval '1 second')
             on conflict (org_id, digest) do update
             set kept_until = excluded.kept_until, removing_at = null
             where o.removing_at is null or o.removing_at < now() - $5 * interval '1 second'",
        )
        .bind(org.uuid())
        .bind(digest.as_slice())
        .bind(count(bytes))
        .bind(OBJECT_UNUSED_TTL.as_secs_f64())
        .bind(OBJECT_REMOVAL_TTL.as_secs_f64())
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Claims up to `limit` objects to which nothing refers, for `OBJECT_REMOVAL_TTL`. By the index `object_unused`.
    ///
    /// One whose claim has ended is claimed again after another `OBJECT_REMOVAL_TTL`, in which an upload may take it.
    pub async fn claim_unused_objects(&self, limit: i64) -> Result<Vec<UnusedObject>> {
        // A reference that commits before the lock changes `used`, which is read again then. One that has the lock is
        // skipped.
        let rows: Vec<Row> = sqlx::query_as(
            "update object o
             set removing_at = now()
             from (
                 select u.org_id, u.digest
                 from object u
                 where not u.used
                   and u.kept_until < now()
                   and (u.removing_at is null or u.removing_at < now() - $1 * interval '1 second')
                   and not exists (
                       select from object_ref r where r.org_id = u.org_id and r.digest = u.digest
                   )
                 order by u.kept_until
                 limit $2
                 for update of u skip locked
             ) unused
             where o.org_id = unused.org_id and o.digest = unused.digest
             returning o.org_id, o.digest, o.removing_at",
        )
        .bind((2 * OBJECT_REMOVAL_TTL).as_secs_f64())
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// Deletes the row of a claimed object, after its blob. Returns false if an upload has taken it, or another worker.
    pub async fn delete_object(&self, object: &UnusedObject) -> Result<bool> {
        let deleted = sqlx::query(
            "delete from object where org_id = $1 and digest = $2 and removing_at = $3 and not used",
        )
        .bind(object.org.uuid())
        .bind(object.digest.as_slice())
        .bind(object.removing_at)
        .execute(&self.system)
        .await?;
        Ok(deleted.rows_affected() > 0)
    }
}
