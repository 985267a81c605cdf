//! Timers that agents set for themselves. When one is due, the database's clock says.

use std::time::Duration;

use uuid::Uuid;

use super::{Result, Store, Tx, column::storable, record::Fence};
use crate::{
    base::{Id, Timestamp},
    domain::{OrgId, SessionId, scheduled_wake::When},
};

/// What came of the wake for a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// It goes off at this time; the same for every repeat of its call.
    At(Timestamp),
    /// That time is over; this is what the database takes the time to be.
    Past(Timestamp),
    /// That is further ahead than timers go.
    TooFar(Timestamp),
    /// The session has as many timers as it may.
    Full,
    /// The lease is another's, or the session is closed.
    Stale,
}

/// A timer to set, by the call that asks for it.
#[derive(Clone, Copy, Debug)]
pub struct NewScheduledWake<'a> {
    pub call_id: &'a str,
    pub when: When,
    pub note: &'a str,
    /// How far ahead it may be, and how many a session may have.
    pub ahead_max: Duration,
    pub pending_max: i64,
}

/// A timer that went off.
#[derive(Clone, Debug)]
pub struct Due {
    pub org: OrgId,
    pub session: SessionId,
    pub call_id: String,
    pub note: String,
}

impl Store {
    /// Sets a timer of a leased session, once for each call.
    pub async fn set_scheduled_wake(&self, fence: Fence, wake: NewScheduledWake<'_>) -> Result<Set> {
        let (org, session) = (fence.org.uuid(), fence.session.uuid());
        let mut tx = self.system.begin().await?;
        // Shared: an archive waits for this and then removes the timer, or is waited for.
        let now: Option<(Timestamp,)> = sqlx::query_as(
            "select now()
             from session
             where org_id = $1 and session_id = $2 and epoch = $3 and status <> 'archived'
             for share",
        )
        .bind(org)
        .bind(session)
        .bind(fence.epoch)
        .fetch_optional(&mut *tx)
        .await?;
        let Some((now,)) = now else { return Ok(Set::Stale) };
        let before: Option<(Timestamp,)> = sqlx::query_as(
            "select fire_at from scheduled_wake where org_id = $1 and session_id = $2 and call_id = $3",
        )
        .bind(org)
        .bind(session)
        .bind(wake.call_id)
        .fetch_optional(&mut *tx)
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
        .fetch_one(&mut *tx)
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
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Set::At(fire_at))
    }

    /// Timers that went off, of organizations that may work, the longest waiting first.
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
    /// Marks a timer as gone off; false when another process did, or it is no more. The
    /// caller holds the session's row.
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

    /// Removes the timers of a session that is closed.
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
