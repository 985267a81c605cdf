//! Leases that a worker holds: renewed together, and read for what their holders have to know.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use super::{Kind, millis};
use crate::{
    base::Id,
    domain::{OrgId, SessionId, TurnId},
    store::{Result, Store},
};

/// State of a held job, for its holder.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    pub org: OrgId,
    pub session: SessionId,
    pub kind: Kind,
    pub epoch: i64,
    /// The turn that a caller asked to cancel.
    pub cancel_turn: Option<TurnId>,
    /// Number of operations requested so far, while one is unanswered.
    pub operations: Option<i32>,
    /// A turn is due, but another job holds the session.
    pub is_wanted: bool,
    /// A caller paused the session.
    pub is_paused: bool,
}

/// State of a lease that its holder must react to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// It is another's now, or may be.
    pub lost: bool,
    /// The turn that a caller asked to end.
    pub cancel_turn: Option<TurnId>,
    /// Number of callers' operations on the sandbox so far; `None` when none is open.
    pub operations: Option<i32>,
    /// A turn wants the session, which another job holds.
    pub is_wanted: bool,
    /// A caller paused the session.
    pub is_paused: bool,
}

/// Jobs of one holder, as parallel arrays.
#[derive(Clone, Debug, Default)]
pub struct Held {
    orgs: Vec<Uuid>,
    sessions: Vec<Uuid>,
    kinds: Vec<&'static str>,
}

#[derive(FromRow)]
struct WatchRow {
    org_id: Uuid,
    session_id: Uuid,
    kind: String,
    epoch: i64,
    cancel_turn_id: Option<Uuid>,
    operations: Option<i32>,
    is_wanted: bool,
    is_paused: bool,
}

/// Columns for a holder, of the session `s` and its held job `j`.
macro_rules! told {
    () => {
        "j.org_id, j.session_id, j.kind, s.epoch, s.cancel_turn_id,
                    case when exists (
                        select from operation o
                        where o.org_id = s.org_id and o.session_id = s.session_id and o.completed_at is null
                    ) then s.operations end as operations,
                    j.kind = 'operation' and exists (
                        select from job t
                        where t.org_id = s.org_id and t.session_id = s.session_id and t.kind = 'turn'
                          and t.ready_at <= now()
                    ) as is_wanted,
                    s.hold is not distinct from 'paused' as is_paused"
    };
}

/// Held jobs and what their holders have to know.
macro_rules! watched {
    () => {
        concat!(
            "select ",
            told!(),
            " from unnest($2::uuid[], $3::uuid[], $4::text[]) as h (org_id, session_id, kind)
             join job j on j.org_id = h.org_id and j.session_id = h.session_id and j.kind = h.kind
             join session s on s.org_id = h.org_id and s.session_id = h.session_id
             where j.worker_id = $1"
        )
    };
}

impl Held {
    /// Adds one job.
    pub fn push(&mut self, org: OrgId, session: SessionId, kind: Kind) {
        self.orgs.push(org.uuid());
        self.sessions.push(session.uuid());
        self.kinds.push(kind.word());
    }
}

impl Store {
    /// Renews leases. A job that is missing from the result is no longer held.
    ///
    /// A job whose row another transaction has locked is left for the next time: of a process that stopped in a
    /// transaction, that lease must not cost all others. Its row is in the result, as it was.
    pub async fn renew(&self, worker: Uuid, lease: Duration, held: &Held) -> Result<Vec<Watched>> {
        let rows = sqlx::query_as(concat!(
            "with h as (
                select j.org_id, j.session_id, j.kind
                from unnest($2::uuid[], $3::uuid[], $4::text[]) as h (org_id, session_id, kind)
                join job j using (org_id, session_id, kind)
                where j.worker_id = $1
                for update of j skip locked
             ), renewed as (
                update job j
                set ready_at = now() + $5 * interval '1 millisecond'
                from h
                where j.org_id = h.org_id
                  and j.session_id = h.session_id
                  and j.kind = h.kind
             )
             ",
            watched!()
        ))
        .bind(worker)
        .bind(&held.orgs)
        .bind(&held.sessions)
        .bind(&held.kinds)
        .bind(millis(lease))
        .fetch_all(&self.lease)
        .await?;
        Ok(watched(rows))
    }

    /// Reads held jobs without renewing them.
    pub async fn watch(&self, worker: Uuid, held: &Held) -> Result<Vec<Watched>> {
        let rows = sqlx::query_as(watched!())
            .bind(worker)
            .bind(&held.orgs)
            .bind(&held.sessions)
            .bind(&held.kinds)
            .fetch_all(&self.lease)
            .await?;
        Ok(watched(rows))
    }
}

fn watched(rows: Vec<WatchRow>) -> Vec<Watched> {
    let watched = |row: WatchRow| Watched {
        org: Id::from_uuid(row.org_id),
        session: Id::from_uuid(row.session_id),
        kind: Kind::from_word(&row.kind),
        epoch: row.epoch,
        cancel_turn: row.cancel_turn_id.map(Id::from_uuid),
        operations: row.operations,
        is_wanted: row.is_wanted,
        is_paused: row.is_paused,
    };
    rows.into_iter().map(watched).collect()
}
