//! Client tokens: a browser's key to one session.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Result, Store, Tx, column};
use crate::{
    base::{Id, Timestamp},
    domain::{Level, OrgId, SessionId},
};

/// A token that is valid now.
#[derive(Clone, Debug)]
pub struct LiveToken {
    pub org: OrgId,
    pub session: SessionId,
    pub scopes: Vec<String>,
    /// The token gives access to no level beyond this one.
    pub level: Level,
}

/// A token to store.
#[derive(Debug)]
pub struct NewToken {
    /// Hash of its secret, with the deployment's pepper.
    pub hash: Vec<u8>,
    pub scopes: Vec<String>,
    pub level: Level,
    pub expires_at: Timestamp,
}

#[derive(FromRow)]
struct Row {
    org_id: Uuid,
    session_id: Uuid,
    scopes: Vec<String>,
    level: i16,
}

impl Tx {
    /// Stores a token's hash and deletes the session's expired tokens.
    pub async fn create_token(&mut self, session: SessionId, new: &NewToken) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "with expired as (
                delete from client_token where org_id = $1 and session_id = $3 and expires_at < now()
             )
             insert into client_token (org_id, hash, session_id, scopes, level, expires_at)
             values ($1, $2, $3, $4, $5, $6)",
        )
        .bind(org)
        .bind(&new.hash)
        .bind(session.uuid())
        .bind(&new.scopes)
        .bind(column::threshold(new.level))
        .bind(new.expires_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Deletes every token of a session.
    pub async fn delete_tokens(&mut self, session: SessionId) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("delete from client_token where org_id = $1 and session_id = $2")
            .bind(org)
            .bind(session.uuid())
            .execute(self.connection())
            .await?;
        Ok(())
    }
}

impl Store {
    /// Deletes one batch of expired tokens. By the index `client_token_expiry`.
    pub async fn delete_expired_tokens(&self, batch: i64) -> Result<u64> {
        let done = sqlx::query(
            "delete from client_token
             where (org_id, session_id, hash) in (
                 select org_id, session_id, hash
                 from client_token
                 where expires_at < now()
                 order by expires_at
                 limit $1
                 for update skip locked
             )",
        )
        .bind(batch)
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected())
    }

    /// Reads the live token of a bearer secret, by the unique index `client_token_hash`.
    pub async fn find_token(&self, secret: &str) -> Result<Option<LiveToken>> {
        let row: Option<Row> = sqlx::query_as(
            "select org_id, session_id, scopes, level
             from client_token
             join org using (org_id)
             where hash = $1 and expires_at > now() and suspended_at is null",
        )
        .bind(self.master.fingerprint(secret).as_slice())
        .fetch_optional(&self.system)
        .await?;
        row.map(|row| {
            Ok(LiveToken {
                org: Id::from_uuid(row.org_id),
                session: Id::from_uuid(row.session_id),
                scopes: row.scopes,
                level: column::level(row.level)?,
            })
        })
        .transpose()
    }
}
