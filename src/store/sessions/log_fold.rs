//! Stored folds of long logs.

use crate::{
    domain::{OrgId, SessionId},
    store::{Result, Store},
};

impl Store {
    /// Returns the stored fold of a session's log, if it has this version.
    pub async fn load_log_fold(
        &self,
        org: OrgId,
        session: SessionId,
        version: i32,
    ) -> Result<Option<Vec<u8>>> {
        let fold = sqlx::query_scalar(
            "select fold from log_fold where org_id = $1 and session_id = $2 and version = $3",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .bind(version)
        .fetch_optional(&self.system)
        .await?;
        Ok(fold)
    }

    /// Stores the fold of a log up to `seq`, unless a later one of this version is stored.
    pub async fn store_log_fold(
        &self,
        org: OrgId,
        session: SessionId,
        version: i32,
        seq: i64,
        fold: &[u8],
    ) -> Result<()> {
        // The lock keeps the session from being deleted meanwhile; a deleted one gets no row.
        sqlx::query(
            "with s as (
                 select org_id, session_id
                 from session
                 where org_id = $1 and session_id = $2
                 for key share
             )
             insert into log_fold (org_id, session_id, version, seq, fold)
             select s.org_id, s.session_id, $3, $4, $5
             from s
             on conflict (org_id, session_id) do update
             set version = excluded.version, seq = excluded.seq, fold = excluded.fold, stored_at = now()
             where log_fold.version <> excluded.version or log_fold.seq < excluded.seq",
        )
        .bind(org.uuid())
        .bind(session.uuid())
        .bind(version)
        .bind(seq)
        .bind(fold)
        .execute(&self.system)
        .await?;
        Ok(())
    }
}
