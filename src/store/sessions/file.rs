//! Stored files, and the sessions that use them.

use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    base::{Id, Timestamp, limit::FILE_UNUSED_AFTER},
    domain::{
        FileId, OrgId, SessionId,
        content::{FileRef, ModelImage, sandbox_path},
    },
    store::{
        Result, Store, Tx,
        column::{from_json, json},
    },
};

/// A stored file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    pub id: FileId,
    pub name: String,
    pub media_type: String,
    pub bytes: u64,
    /// In hex.
    pub sha256: String,
    /// The image that a model gets, if the file is one.
    pub image: Option<ModelImage>,
    /// Whether it exists until it is deleted; otherwise it is deleted with the last session that uses it.
    pub kept: bool,
    pub created_at: Timestamp,
}

impl StoredFile {
    /// Returns the file as an event names it.
    pub fn reference(&self) -> FileRef {
        FileRef {
            file_id: self.id,
            name: self.name.clone(),
            path: sandbox_path(self.id, &self.name),
            media_type: self.media_type.clone(),
            bytes: self.bytes,
            sha256: self.sha256.clone(),
            image: self.image.clone(),
        }
    }
}

#[derive(FromRow)]
struct Row {
    file_id: Uuid,
    name: String,
    media_type: String,
    bytes: i64,
    sha256: String,
    image: Option<String>,
    kept: bool,
    created_at: Timestamp,
}

impl Row {
    fn file(self) -> Result<StoredFile> {
        Ok(StoredFile {
            id: Id::from_uuid(self.file_id),
            name: self.name,
            media_type: self.media_type,
            bytes: self.bytes.cast_unsigned(),
            sha256: self.sha256,
            image: self.image.as_deref().map(from_json).transpose()?,
            kept: self.kept,
            created_at: self.created_at,
        })
    }
}

macro_rules! files {
    ($rest:literal) => {
        concat!(
            "select f.file_id, f.name, f.media_type, f.bytes, f.sha256, f.image::text, f.kept, f.created_at
             from file f ",
            $rest
        )
    };
}

impl Tx {
    /// Stores the row of a file.
    pub async fn insert_file(&mut self, file: &StoredFile) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "insert into file (org_id, file_id, name, media_type, bytes, sha256, image, kept, created_at)
             values ($1, $2, $3, $4, $5, $6, $7::json, $8, $9)",
        )
        .bind(org)
        .bind(file.id.uuid())
        .bind(&file.name)
        .bind(&file.media_type)
        .bind(file.bytes.cast_signed())
        .bind(&file.sha256)
        .bind(file.image.as_ref().map(json))
        .bind(file.kept)
        .bind(file.created_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Returns the bytes of all files of the organization.
    pub async fn file_bytes(&mut self) -> Result<u64> {
        let org = self.org.uuid();
        let bytes: i64 =
            sqlx::query_scalar("select coalesce(sum(bytes), 0)::bigint from file where org_id = $1")
                .bind(org)
                .fetch_one(self.connection())
                .await?;
        Ok(bytes.cast_unsigned())
    }

    /// Reads one file.
    pub async fn file(&mut self, file: FileId) -> Result<StoredFile> {
        let org = self.org.uuid();
        let row: Row =
            sqlx::query_as(files!("where f.org_id = $1 and f.file_id = $2 and (f.kept or f.used)"))
                .bind(org)
                .bind(file.uuid())
                .fetch_one(self.connection())
                .await?;
        row.file()
    }

    /// Returns a file of a session with these bytes.
    pub async fn session_file_by_digest(
        &mut self,
        session: SessionId,
        sha256: &str,
    ) -> Result<Option<StoredFile>> {
        let org = self.org.uuid();
        let row: Option<Row> = sqlx::query_as(files!(
            "join session_file s on s.org_id = f.org_id and s.file_id = f.file_id
             where f.org_id = $1 and s.session_id = $2 and f.sha256 = $3
             order by f.file_id
             limit 1"
        ))
        .bind(org)
        .bind(session.uuid())
        .bind(sha256)
        .fetch_optional(self.connection())
        .await?;
        row.map(Row::file).transpose()
    }

    /// Returns a page of files, newest first, of one session if it is named.
    pub async fn files(
        &mut self,
        session: Option<SessionId>,
        below: Option<FileId>,
        limit: i64,
    ) -> Result<Vec<StoredFile>> {
        let org = self.org.uuid();
        let query = match session.is_some() {
            false => sqlx::query_as(files!(
                "where f.org_id = $1 and (f.kept or f.used) and ($2::uuid is null or f.file_id < $2)
                 order by f.file_id desc limit $3"
            )),
            true => sqlx::query_as(files!(
                "join session_file s on s.org_id = f.org_id and s.file_id = f.file_id
                 where f.org_id = $1 and ($2::uuid is null or f.file_id < $2) and s.session_id = $4
                 order by f.file_id desc limit $3"
            )),
        };
        let query = query.bind(org).bind(below.map(Id::uuid)).bind(limit);
        let query = match session {
            None => query,
            Some(session) => query.bind(session.uuid()),
        };
        let rows: Vec<Row> = query.fetch_all(self.connection()).await?;
        rows.into_iter().map(Row::file).collect()
    }

    /// Records that a session uses files. Returns the number of files that it uses now.
    ///
    /// # Errors
    /// `Conflict("session_file_exists")` if a file does not exist.
    pub async fn use_files(&mut self, session: SessionId, files: &[FileId]) -> Result<usize> {
        let org = self.org.uuid();
        let ids: Vec<_> = files.iter().map(|file| file.uuid()).collect();
        // A session that is deleted meanwhile uses none.
        sqlx::query(
            "insert into session_file (org_id, session_id, file_id)
             select s.org_id, s.session_id, f.file_id
             from (select org_id, session_id from session where org_id = $1 and session_id = $2 for key share) s
             cross join unnest($3::uuid[]) f (file_id)
             on conflict do nothing",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(&ids)
        .execute(self.connection())
        .await?;
        sqlx::query(
            "update file f set used = true
             from session_file s
             where f.org_id = $1 and f.file_id = any($3) and not f.used
               and s.org_id = f.org_id and s.session_id = $2 and s.file_id = f.file_id",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(&ids)
        .execute(self.connection())
        .await?;
        let count: i64 =
            sqlx::query_scalar("select count(*) from session_file where org_id = $1 and session_id = $2")
                .bind(org)
                .bind(session.uuid())
                .fetch_one(self.connection())
                .await?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Keeps a file until it is deleted.
    pub async fn keep_file(&mut self, file: FileId) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("update file set kept = true where org_id = $1 and file_id = $2")
            .bind(org)
            .bind(file.uuid())
            .execute(self.connection())
            .await?;
        Ok(())
    }

    /// Deletes a file; its blobs are removed later.
    ///
    /// # Errors
    /// `Conflict("session_file_exists")` while a session uses it.
    pub async fn delete_file(&mut self, file: FileId) -> Result<()> {
        let org = self.org.uuid();
        let deleted = sqlx::query("delete from file where org_id = $1 and file_id = $2")
            .bind(org)
            .bind(file.uuid())
            .execute(self.connection())
            .await?;
        if deleted.rows_affected() == 0 { Err(crate::store::Error::NotFound) } else { Ok(()) }
    }
}

impl Store {
    /// Deletes files that were stored for a request which was not accepted. Returns their number. By the index
    /// `file_unused`.
    pub async fn delete_unused_files(&self, limit: i64) -> Result<u64> {
        let deleted = sqlx::query(
            "delete from file
             where (org_id, file_id) in (
                 select org_id, file_id from file
                 where not kept and not used and created_at < now() - $1 * interval '1 second'
                 order by created_at
                 limit $2
                 for update skip locked
             )",
        )
        .bind(FILE_UNUSED_AFTER.as_secs_f64())
        .bind(limit)
        .execute(&self.system)
        .await?;
        Ok(deleted.rows_affected())
    }
}

/// Returns the blob key of the bytes of a file.
pub(crate) fn content_key(org: OrgId, file: FileId) -> String {
    format!("{}/{}/content", org.uuid(), file.uuid())
}

/// Returns the blob key of the image that was made from a file.
pub(crate) fn image_key(org: OrgId, file: FileId) -> String {
    format!("{}/{}/image", org.uuid(), file.uuid())
}
