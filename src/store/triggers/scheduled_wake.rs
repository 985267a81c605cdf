//! Scheduled wakes, which agents set for their own sessions. The database's clock decides when one
//! is due.

use std::time::Duration;

use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    column::storable,
    record::{Fence, leased},
};
use crate::{
    base::{Id, Timestamp},
    domain::{OrgId, SessionId, scheduled_wake::When},
};

/// Result of setting a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// It fires at this time; a retry of the same call returns the same time.
    At(Timestamp),
    /// The requested time has passed; this is the database's time.
    Past(Timestamp),
    /// The requested time is too far ahead; this is the database's time.
    TooFar(Timestamp),
    /// The session has the maximum number of pending wakes.
    Full,
    /// Another worker holds the lease, or the session is archived.
    Stale,
}

/// A wake to set, identified by the call that requests it.
#[derive(Clone, Copy, Debug)]
pub struct NewScheduledWake<'a> {
    pub call_id: &'a str,
    pub when: When,
    pub note: &'a str,
    /// Maximum time ahead, and maximum number of pending wakes of a session.
    pub ahead_max: Duration,
    pub pending_max: i64,
}

/// A due wake.
#[derive(Clone, Debug)]
pub struct Due {
    pub org: OrgId,
    pub session: SessionId,
    pub call_id: String,
    pub note: String,
}

impl Store {
    /// Sets a wake of a leased session, once for each call.
    pub async fn set_scheduled_wake(&self, fence: Fence, wake: NewScheduledWake<'_>) -> Result<Set> {
        let (org, session) = (fence.org.uuid(), fence.session.uuid());
        let mut tx = self.system.begin().await?;
        // Shared lock: either an archive waits for this and then deletes the wake, or this waits
        // for the archive.
        let now: Option<(Timestamp,)> =
            sqlx::query_as(concat!("select now() ", leased!(), " for share of u"))
                .bind(org)
                .bind(session)
                .bind(fence.epoch)
                .fetch_optional(&mut tx)
                .await?;
        let Some((now,)) = now else { return Ok(Set::Stale) };
        let before: Option<(Timestamp,)> = sqlx::query_as(
            "select fire_at from scheduled_wake where org_id = $1 and session_id = $2 and call_id = $3",
        )
        .bind(org)
        .bind(session)
        .bind(wake.call_id)
        .fetch_optional(&mut tx)
        .await?;
        if let Some((fire_at,)) = before {
            return Ok(Set::At(fire_at));
        }
        let fire_at = match wake.when {
            When::At(at) => at,
            When::After(delay) => now + delay,
        };
        if fire_at <= now {
            return Ok(Set::Past(now));
        }
        if fire_at > now + wake.ahead_max {
            return Ok(Set::TooFar(now));
        }
        let (pending,): (i64,) = sqlx::query_as(
            "select count(*) from scheduled_wake where org_id = $1 and session_id = $2 and fired_at is null",
        )
        .bind(org)
        .bind(session)
        .fetch_one(&mut tx)
        .await?;
        if pending >= wake.pending_max {
            return Ok(Set::Full);
        }
        sqlx::query(
            "insert into scheduled_wake (org_id, session_id, call_id, fire_at, note) values ($1, $2, $3, $4, $5)",
        )
        .bind(org)
        .bind(session)
        .bind(wake.call_id)
        .bind(fire_at)
        .bind(storable(wake.note))
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        Ok(Set::At(fire_at))
    }

    /// Returns due wakes of active organizations, the longest waiting first.
    ///
    /// By the index `scheduled_wake_due`.
    pub async fn due_scheduled_wakes(&self, limit: i64) -> Result<Vec<Due>> {
        let rows: Vec<(Uuid, Uuid, String, String)> = sqlx::query_as(
            "select r.org_id, r.session_id, r.call_id, r.note
             from scheduled_wake r
             join org t using (org_id)
             where r.fired_at is null and r.fire_at <= now() and t.suspended_at is null and t.deleted_at is null
             order by r.fire_at
             limit $1",
        )
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        let due = |(org, session, call_id, note)| Due {
            org: Id::from_uuid(org),
            session: Id::from_uuid(session),
            call_id,
            note,
        };
        Ok(rows.into_iter().map(due).collect())
    }
}

impl Tx {
    /// Marks a wake as fired; false when another process did, or it was deleted.
    ///
    /// The caller holds the lock on the session's row.
    pub async fn take_scheduled_wake(&mut self, session: SessionId, call_id: &str) -> Result<bool> {
        let org = self.org.uuid();
        let done = sqlx::query(
            "update scheduled_wake
             set fired_at = now()
             where org_id = $1 and session_id = $2 and call_id = $3 and fired_at is null",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(call_id)
        .execute(self.connection())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Deletes the wakes of an archived session.
    pub async fn delete_scheduled_wakes(&mut self, session: SessionId) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("delete from scheduled_wake where org_id = $1 and session_id = $2")
            .bind(org)
            .bind(session.uuid())
            .execute(self.connection())
            .await?;
        Ok(())
    }
}
