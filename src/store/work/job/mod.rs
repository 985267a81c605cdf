//! Jobs: enqueued with their cause, claimed by a worker, renewed, released.
//!
//! Only the database's clock decides whether a lease has expired. The epoch is on the session's row
//! and the lease's end on the job's row; a claim changes both.

mod claim;
mod lease;
mod maintenance;

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

pub use self::{
    claim::{Claim, ClaimCursor, ClaimSize, Claimant, Claimed},
    lease::{Held, LeaseState, Watched},
};
use crate::domain::SessionId;
use crate::store::{Result, Store, Tx, generation::generation, parameter::named, record::next_epoch};

/// Type of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Run the pending turn.
    Turn,
    /// Remove the sandbox of an archived session.
    Cleanup,
    /// Maintain an idle sandbox that no turn uses.
    Idle,
    /// Serve callers' operations on the sandbox.
    Operation,
}

/// Makes the turn job of `$session_id` of `$org_id` ready, where `$wanted`, unless it is held.
///
/// The job runs on the node that has the session's sandbox. Returns it, unless the job was ready or held before.
macro_rules! turn_due {
    ($wanted:literal) => {
        concat!(
            "insert into job (org_id, session_id, kind, ready_at, node_id)
    select $org_id, $session_id, 'turn', now(), (
        select node_id from sandbox where org_id = $org_id and session_id = $session_id and state <> 'ended'
    )
    where ",
            $wanted,
            "
    on conflict (org_id, session_id, kind) do update
    set ready_at = now(), is_scheduled = false
    where job.worker_id is null and (job.is_scheduled or job.ready_at > now())
    returning node_id"
        )
    };
}
pub(in crate::store) use turn_due;

/// Columns of a [`DueTurn`] after `job_of_turn` (see [`turn_due`]) of `$session_id` of `$org_id`.
///
/// A job that was ready before is announced again: the worker that looked for it skipped it if a transaction,
/// perhaps this one, had the session.
macro_rules! due_turn {
    () => {
        "exists (
    select from job_of_turn
) or exists (
    select from job
    where org_id = $org_id and session_id = $session_id and kind = 'turn' and worker_id is null
) as is_ready, coalesce((select node_id from job_of_turn), (
    select node_id from job where org_id = $org_id and session_id = $session_id and kind = 'turn'
)) as node_id, (
    select worker_id from job where org_id = $org_id and session_id = $session_id and kind = 'operation'
) as worker_id"
    };
}
pub(in crate::store) use due_turn;

/// A job that became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The node that has the session's sandbox.
    pub node: Option<Uuid>,
}

/// Whom a due turn concerns.
#[derive(Clone, Copy, Debug, Default)]
pub struct DueTurn {
    /// Its job, unless a worker holds it.
    pub ready: Option<Ready>,
    /// The worker whose other job holds the session: it must yield.
    pub worker: Option<Uuid>,
}

/// Row of a [`DueTurn`].
#[derive(Clone, Copy, Debug, FromRow)]
pub(in crate::store) struct DueTurnRow {
    is_ready: bool,
    node_id: Option<Uuid>,
    worker_id: Option<Uuid>,
}

impl From<DueTurnRow> for DueTurn {
    fn from(row: DueTurnRow) -> Self {
        Self { ready: row.is_ready.then_some(Ready { node: row.node_id }), worker: row.worker_id }
    }
}

impl Kind {
    /// Returns the word in the column.
    pub fn word(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Cleanup => "cleanup",
            Self::Idle => "idle",
            Self::Operation => "operation",
        }
    }

    fn from_word(word: &str) -> Self {
        match word {
            "turn" => Self::Turn,
            "cleanup" => Self::Cleanup,
            "idle" => Self::Idle,
            _ => Self::Operation,
        }
    }
}

impl Tx {
    /// Returns the position of the session's job in the organization's queue, from 1.
    ///
    /// `None` when its job is not ready. By the index `job_ready`.
    pub async fn queue_position(&mut self, session: SessionId) -> Result<Option<i64>> {
        let org = self.org.uuid();
        let row: Option<(i64,)> = sqlx::query_as(
            "select (
                 select count(*) + 1
                 from job o
                 where o.org_id = $1
                   and o.worker_id is null
                   and not o.is_scheduled
                   and o.kind in ('turn', 'operation')
                   and (o.ready_at, o.session_id) < (j.ready_at, j.session_id)
             )
             from job j
             where j.org_id = $1 and j.session_id = $2 and j.kind = 'turn' and j.worker_id is null
               and not j.is_scheduled",
        )
        .bind(org)
        .bind(session.uuid())
        .fetch_optional(self.connection())
        .await?;
        Ok(row.map(|(position,)| position))
    }

    /// Makes a session's turn job ready.
    ///
    /// A worker that holds the turn job finds the input itself.
    pub async fn enqueue_turn(&mut self, session: SessionId) -> Result<DueTurn> {
        let query = named!(
            query_as(concat!("with job_of_turn as (", turn_due!("true"), ") select ", due_turn!())),
            { org_id: self.org.uuid(), session_id: session.uuid() }
        );
        let due: DueTurnRow = query.fetch_one(self.connection()).await?;
        Ok(due.into())
    }

    /// Returns the workers that hold a job of these sessions.
    ///
    /// No other worker can claim one while this transaction holds the lock of the session.
    pub async fn lease_holders(&mut self, sessions: &[SessionId]) -> Result<Vec<Uuid>> {
        let org = self.org.uuid();
        let ids: Vec<_> = sessions.iter().map(|session| session.uuid()).collect();
        let holders = sqlx::query_scalar(
            "select distinct worker_id from job where org_id = $1 and session_id = any($2) and worker_id is not null",
        )
        .bind(org)
        .bind(ids)
        .fetch_all(self.connection())
        .await?;
        Ok(holders)
    }

    /// Replaces the jobs of an archived session by its sandbox's cleanup job.
    ///
    /// Does nothing more if it had no sandbox. Only the sandbox's own node can run the cleanup.
    pub async fn enqueue_cleanup(&mut self, session: SessionId) -> Result<Option<Ready>> {
        let org = self.org.uuid();
        let enqueued: Option<(Option<Uuid>,)> = sqlx::query_as(
            "with gone as (
                delete from job where org_id = $1 and session_id = $2 and kind in ('turn', 'idle', 'operation')
             ), unqueued as (
                delete from sandbox_wait where org_id = $1 and session_id = $2
             )
             insert into job (org_id, session_id, kind, ready_at, node_id)
             select org_id, session_id, 'cleanup', now(), node_id
             from sandbox
             where org_id = $1 and session_id = $2
             order by created_at desc
             limit 1
             on conflict do nothing
             returning node_id",
        )
        .bind(org)
        .bind(session.uuid())
        .fetch_optional(self.connection())
        .await?;
        Ok(enqueued.map(|(node,)| Ready { node }))
    }
}

impl Store {
    /// Continues a lease under a new epoch; `None` when the job was claimed again, or the database has lost the claim.
    ///
    /// A statement that was not answered may still be executed; the old epoch makes it fail. Locks as an append does.
    pub async fn refence(&self, worker: Uuid, job: &Claimed, lease: Duration) -> Result<Option<Claimed>> {
        let row: Option<(i64, i64)> = sqlx::query_as(concat!(
            "with s as (
                select from session where org_id = $1 and session_id = $2 and epoch >= $6 for update
             ), held as (
                update job
                set ready_at = now() + $5 * interval '1 millisecond'
                from s
                where org_id = $1 and session_id = $2 and kind = $3 and worker_id = $4 and takeovers = $7
                returning org_id, session_id
             )
             update session
             set epoch = ",
            next_epoch!("session"),
            "
             from held
             where session.org_id = held.org_id and session.session_id = held.session_id
             returning epoch, ",
            generation!(),
        ))
        .bind(job.org.uuid())
        .bind(job.session.uuid())
        .bind(job.kind.word())
        .bind(worker)
        .bind(millis(lease))
        .bind(job.first_epoch)
        .bind(job.takeovers)
        .fetch_optional(&self.system)
        .await?;
        let Some((epoch, generation)) = row else { return Ok(None) };
        self.generation.notice(generation);
        Ok(Some(Claimed { epoch, generation, ..*job }))
    }

    /// Releases a job, ready after `delay`.
    ///
    /// It is ready at once if a cancel arrived while it was held, because that cancel saw a holder
    /// and notified nobody. The turn of a paused session becomes ready when the session is resumed.
    /// Does nothing when the lease is lost. Marks the session as changed in the list when it waits
    /// for a time.
    pub async fn release(&self, worker: Uuid, job: &Claimed, delay: Duration) -> Result<()> {
        sqlx::query(
            "with s as (
                select case
                           when $3 = 'turn' and cancel_turn_id is not null then interval '0'
                           when $3 = 'turn' and hold is not distinct from 'paused' then interval '100 years'
                           else $5 * interval '1 millisecond'
                       end as delay
                from session
                where org_id = $1 and session_id = $2
                for update
             ), listed as (
                update session
                set listed_in = pg_current_xact_id()
                from s
                where org_id = $1 and session_id = $2 and $3 = 'turn' and $5 > 0
             )
             update job
             set worker_id = null,
                 ready_at = now() + s.delay,
                 is_scheduled = s.delay > interval '0'
             from s
             where org_id = $1 and session_id = $2 and kind = $3 and worker_id = $4",
        )
        .bind(job.org.uuid())
        .bind(job.session.uuid())
        .bind(job.kind.word())
        .bind(worker)
        .bind(millis(delay))
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Releases every job of a worker that has stopped; returns their number. By the index
    /// `job_worker`.
    pub async fn release_all(&self, worker: Uuid) -> Result<u64> {
        let done = sqlx::query(
            "with h as (
                select org_id, session_id, kind
                from job
                where worker_id = $1
                -- In the order in which turns that end together lock theirs.
                order by org_id, session_id
                for update
             )
             update job j
             set worker_id = null, ready_at = now()
             from h
             where j.org_id = h.org_id and j.session_id = h.session_id and j.kind = h.kind",
        )
        .bind(worker)
        .execute(&self.system)
        .await?;
        Ok(done.rows_affected())
    }

    /// Removes a finished job, unless new input has arrived that it must process.
    ///
    /// A request for an operation changes `session.operations`. The statement reads open operations as of
    /// its start: if it then waited for the row, the two values of the column differ, and the job is
    /// looked at once more.
    pub async fn finish(&self, worker: Uuid, job: &Claimed) -> Result<()> {
        sqlx::query(
            "with s as (
                select case kind
                           when 'turn' then queued_turn_id is not null or running_turn_id is not null
                           when 'operation' then operations <> (
                               select before.operations
                               from session before
                               where before.org_id = $1 and before.session_id = $2
                           ) or exists (
                               select from operation
                               where org_id = $1 and session_id = $2 and completed_at is null
                           )
                           else false
                       end as more
                from session, (values ($3)) as k (kind)
                where org_id = $1 and session_id = $2
                for update
             ), again as (
                update job
                set worker_id = null, ready_at = now()
                from s
                where org_id = $1 and session_id = $2 and kind = $3 and worker_id = $4 and s.more
             ), unqueued as (
                -- Nothing of the session waits for capacity any more.
                delete from sandbox_wait w
                using s
                where w.org_id = $1 and w.session_id = $2 and not s.more
                  and exists (
                      select from job j
                      where j.org_id = $1 and j.session_id = $2 and j.kind = $3 and j.worker_id = $4
                  )
                  and not exists (
                      select from job j
                      where j.org_id = $1 and j.session_id = $2 and j.kind in ('turn', 'operation') and j.kind <> $3
                  )
             )
             delete from job
             using s
             where org_id = $1 and session_id = $2 and kind = $3 and worker_id = $4
               and not s.more",
        )
        .bind(job.org.uuid())
        .bind(job.session.uuid())
        .bind(job.kind.word())
        .bind(worker)
        .execute(&self.system)
        .await?;
        Ok(())
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
