//! Jobs: enqueued with their cause, claimed by a worker, renewed, given back.
//!
//! Leases are judged by the database's clock alone. The epoch stands on the
//! session's row and the lease's end on the job's; a claim changes both.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use super::{Result, Store, Tx};
use crate::{
    base::{Id, limit},
    domain::{SessionId, TenantId, TurnId},
};

/// What a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Run what is pending.
    Turn,
    /// Remove what an archived session leaves behind.
    Cleanup,
    /// Look after a box that no turn uses.
    Rest,
}

/// Who claims, and which boxes it can reach.
#[derive(Clone, Copy, Debug)]
pub struct Claimant {
    pub worker: Uuid,
    pub node: Uuid,
    pub lease: Duration,
    /// How long a node may be silent before its boxes are given up.
    pub node_silence: Duration,
}

/// A job that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    pub tenant: TenantId,
    pub session: SessionId,
    pub kind: Kind,
    pub epoch: i64,
    /// The holder before let its lease run out: it crashed or hangs.
    pub taken_over: bool,
    /// How often that has happened since the job was last done.
    pub takeovers: i32,
}

/// What a holder learns about its job.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    pub tenant: TenantId,
    pub session: SessionId,
    pub kind: Kind,
    pub epoch: i64,
    /// The turn that a caller asked to end.
    pub cancel_turn: Option<TurnId>,
}

/// Jobs of one holder, as parallel arrays.
#[derive(Clone, Debug, Default)]
pub struct Held {
    tenants: Vec<Uuid>,
    sessions: Vec<Uuid>,
    kinds: Vec<&'static str>,
}

#[derive(FromRow)]
struct ClaimRow {
    tenant_id: Uuid,
    session_id: Uuid,
    kind: String,
    epoch: i64,
    taken_over: bool,
    takeovers: i32,
}

#[derive(FromRow)]
struct WatchRow {
    tenant_id: Uuid,
    session_id: Uuid,
    kind: String,
    epoch: i64,
    cancel_turn_id: Option<Uuid>,
}

impl Kind {
    /// The word in the column.
    pub fn word(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Cleanup => "cleanup",
            Self::Rest => "rest",
        }
    }

    fn from_word(word: &str) -> Self {
        match word {
            "turn" => Self::Turn,
            "cleanup" => Self::Cleanup,
            _ => Self::Rest,
        }
    }
}

impl Held {
    /// Adds one job.
    pub fn push(&mut self, tenant: TenantId, session: SessionId, kind: Kind) {
        self.tenants.push(tenant.uuid());
        self.sessions.push(session.uuid());
        self.kinds.push(kind.word());
    }
}

impl Tx {
    /// How many jobs of the tenant come before the session's, from 1; `None` when its
    /// job does not wait. By the index `job_tenant`.
    pub async fn queue_position(&mut self, session: SessionId) -> Result<Option<i64>> {
        let tenant = self.tenant.uuid();
        let row: Option<(i64,)> = sqlx::query_as(
            "select (
                 select count(*) + 1
                 from job o
                 where o.tenant_id = $1
                   and o.worker_id is null
                   and o.kind <> 'rest'
                   and (o.ready_at, o.session_id) < (j.ready_at, j.session_id)
             )
             from job j
             where j.tenant_id = $1 and j.session_id = $2 and j.kind = 'turn' and j.worker_id is null",
        )
        .bind(tenant)
        .bind(session.uuid())
        .fetch_optional(self.connection())
        .await?;
        Ok(row.map(|(position,)| position))
    }

    /// Wakes a session: its turn job becomes ready unless a worker holds it, which
    /// then finds the input itself.
    pub async fn enqueue_turn(&mut self, session: SessionId) -> Result<()> {
        let tenant = self.tenant.uuid();
        sqlx::query(
            "insert into job (tenant_id, session_id, kind, ready_at, node_id)
             values ($1, $2, 'turn', now(), (
                 select node_id from sandbox where tenant_id = $1 and session_id = $2 and state <> 'ended'
             ))
             on conflict (tenant_id, session_id, kind) do update
             set ready_at = least(job.ready_at, now())
             where job.worker_id is null",
        )
        .bind(tenant)
        .bind(session.uuid())
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Replaces the jobs of a closed session by the clean-up of its box, where
    /// it ever had one; only the box's own node can do that.
    pub async fn enqueue_cleanup(&mut self, session: SessionId) -> Result<()> {
        let tenant = self.tenant.uuid();
        sqlx::query(
            "with gone as (
                delete from job where tenant_id = $1 and session_id = $2 and kind in ('turn', 'rest')
             )
             insert into job (tenant_id, session_id, kind, ready_at, node_id)
             select tenant_id, session_id, 'cleanup', now(), node_id
             from sandbox
             where tenant_id = $1 and session_id = $2
             order by created_at desc
             limit 1
             on conflict do nothing",
        )
        .bind(tenant)
        .bind(session.uuid())
        .execute(self.connection())
        .await?;
        Ok(())
    }
}

impl Store {
    /// Takes up to `jobs_max` ready jobs: of each tenant in turn, beginning after the
    /// tenant `after`, the longest waiting first.
    ///
    /// One visit takes `weight` jobs of a tenant, and never more than its concurrency
    /// leaves; tenants and their jobs are found by the index `job_tenant`, what is held
    /// by `job_held`. Job and session are locked together and skipped together: a
    /// command that holds the session is never waited for, so the two cannot deadlock.
    /// A lease that ran out while the server was down is honoured for one more lease:
    /// its holder could not renew it.
    ///
    /// A session has one holder: a turn waits for a rest that is under way, and a rest
    /// for every turn that is held or due. Two claims at once may not know of each
    /// other; the later one finds another epoch under its lock than before and passes by.
    ///
    /// With `takes_over`, also jobs whose holder let its lease run out.
    pub async fn claim(
        &self,
        claimant: Claimant,
        takes_over: bool,
        after: TenantId,
        jobs_max: i64,
    ) -> Result<Vec<Claimed>> {
        let rows: Vec<ClaimRow> = sqlx::query_as(CLAIM)
            .bind(claimant.worker)
            .bind(claimant.node)
            .bind(millis(claimant.lease))
            .bind(millis(claimant.node_silence))
            .bind(jobs_max)
            .bind(after.uuid())
            .bind(limit::CLAIM_TENANTS_MAX)
            .bind(limit::TENANT_JOBS_MAX)
            .bind(takes_over)
            .fetch_all(&self.system)
            .await?;
        let claimed = |row: ClaimRow| Claimed {
            tenant: Id::from_uuid(row.tenant_id),
            session: Id::from_uuid(row.session_id),
            kind: Kind::from_word(&row.kind),
            epoch: row.epoch,
            taken_over: row.taken_over,
            takeovers: row.takeovers,
        };
        Ok(rows.into_iter().map(claimed).collect())
    }

    /// The tenant after which a claim should go on that found nothing to take of the
    /// first `CLAIM_TENANTS_MAX`; `None` when there are no more than those.
    pub async fn skip_tenants(&self, after: TenantId) -> Result<Option<TenantId>> {
        let row: Option<(Option<Uuid>,)> = sqlx::query_as(
            "with recursive visited as (
                (select tenant_id, 1 as place from job where tenant_id > $1 order by tenant_id limit 1)
                union all
                select (select j.tenant_id from job j where j.tenant_id > v.tenant_id order by j.tenant_id limit 1),
                       v.place + 1
                from visited v
                where v.tenant_id is not null and v.place < $2
             )
             select tenant_id from visited where place = $2",
        )
        .bind(after.uuid())
        .bind(limit::CLAIM_TENANTS_MAX)
        .fetch_optional(&self.system)
        .await?;
        Ok(row.and_then(|(tenant,)| tenant).map(Id::from_uuid))
    }

    /// Prolongs leases. A job that is not in the answer is held no more.
    pub async fn renew(&self, worker: Uuid, lease: Duration, held: &Held) -> Result<Vec<Watched>> {
        let rows = sqlx::query_as(
            "with renewed as (
                update job j
                set ready_at = now() + $2 * interval '1 millisecond'
                from unnest($3::uuid[], $4::uuid[], $5::text[]) as h (tenant_id, session_id, kind)
                where j.tenant_id = h.tenant_id
                  and j.session_id = h.session_id
                  and j.kind = h.kind
                  and j.worker_id = $1
                returning j.tenant_id, j.session_id, j.kind
             )
             select r.tenant_id, r.session_id, r.kind, s.epoch, s.cancel_turn_id
             from renewed r
             join session s using (tenant_id, session_id)",
        )
        .bind(worker)
        .bind(millis(lease))
        .bind(&held.tenants)
        .bind(&held.sessions)
        .bind(&held.kinds)
        .fetch_all(&self.system)
        .await?;
        Ok(watched(rows))
    }

    /// Looks at held jobs without prolonging them.
    pub async fn watch(&self, worker: Uuid, held: &Held) -> Result<Vec<Watched>> {
        let rows = sqlx::query_as(
            "select j.tenant_id, j.session_id, j.kind, s.epoch, s.cancel_turn_id
             from unnest($2::uuid[], $3::uuid[], $4::text[]) as h (tenant_id, session_id, kind)
             join job j on j.tenant_id = h.tenant_id and j.session_id = h.session_id and j.kind = h.kind
             join session s on s.tenant_id = h.tenant_id and s.session_id = h.session_id
             where j.worker_id = $1",
        )
        .bind(worker)
        .bind(&held.tenants)
        .bind(&held.sessions)
        .bind(&held.kinds)
        .fetch_all(&self.system)
        .await?;
        Ok(watched(rows))
    }

    /// Goes on with a lease under a new epoch; `None` when it is another's.
    ///
    /// A statement that was sent and never answered may still be executed: under the
    /// old epoch it is refused. Session before job, like every append.
    pub async fn refence(&self, worker: Uuid, job: &Claimed, lease: Duration) -> Result<Option<i64>> {
        let row: Option<(i64,)> = sqlx::query_as(
            "with s as (
                select from session where tenant_id = $1 and session_id = $2 for update
             ), held as (
                update job
                set ready_at = now() + $5 * interval '1 millisecond'
                from s
                where tenant_id = $1 and session_id = $2 and kind = $3 and worker_id = $4
                returning tenant_id, session_id
             )
             update session
             set epoch = epoch + 1
             from held
             where session.tenant_id = held.tenant_id and session.session_id = held.session_id
             returning epoch",
        )
        .bind(job.tenant.uuid())
        .bind(job.session.uuid())
        .bind(job.kind.word())
        .bind(worker)
        .bind(millis(lease))
        .fetch_optional(&self.system)
        .await?;
        Ok(row.map(|(epoch,)| epoch))
    }

    /// Gives a job back, ready after `delay`, or at once for a cancel that came while
    /// it was held: that one saw a holder and woke nobody. Nothing happens when it is lost.
    pub async fn release(&self, worker: Uuid, job: &Claimed, delay: Duration) -> Result<()> {
        sqlx::query(
            "with s as (
                select cancel_turn_id is not null as is_canceled
                from session
                where tenant_id = $1 and session_id = $2
                for update
             )
             update job
             set worker_id = null,
                 ready_at = now() + case when s.is_canceled and kind = 'turn' then 0 else $5 end
                     * interval '1 millisecond'
             from s
             where tenant_id = $1 and session_id = $2 and kind = $3 and worker_id = $4",
        )
        .bind(job.tenant.uuid())
        .bind(job.session.uuid())
        .bind(job.kind.word())
        .bind(worker)
        .bind(millis(delay))
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Gives back every job of a worker that works no more; returns how many. By the
    /// index `job_worker`.
    pub async fn give_back(&self, worker: Uuid) -> Result<u64> {
        let done = sqlx::query("update job set worker_id = null, ready_at = now() where worker_id = $1")
            .bind(worker)
            .execute(&self.system)
            .await?;
        Ok(done.rows_affected())
    }

    /// Removes a job that is done, unless input has arrived that it must still see.
    pub async fn finish(&self, worker: Uuid, job: &Claimed) -> Result<()> {
        sqlx::query(
            "with s as (
                select queued_turn_id is not null or running_turn_id is not null as more
                from session
                where tenant_id = $1 and session_id = $2
                for update
             ), again as (
                update job
                set worker_id = null, ready_at = now()
                from s
                where tenant_id = $1 and session_id = $2 and kind = $3 and worker_id = $4 and kind = 'turn' and s.more
             )
             delete from job
             using s
             where tenant_id = $1 and session_id = $2 and kind = $3 and worker_id = $4
               and not (kind = 'turn' and s.more)",
        )
        .bind(job.tenant.uuid())
        .bind(job.session.uuid())
        .bind(job.kind.word())
        .bind(worker)
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// How many jobs each state has: ready, held, waiting for a time.
    pub async fn queue_depth(&self) -> Result<(i64, i64, i64)> {
        let row = sqlx::query_as(
            "select count(*) filter (where worker_id is null and ready_at <= now()),
                    count(*) filter (where worker_id is not null),
                    count(*) filter (where worker_id is null and ready_at > now())
             from job
             where kind <> 'rest'",
        )
        .fetch_one(&self.system)
        .await?;
        Ok(row)
    }
}

/// $1 worker, $2 node, $3 lease and $4 silence of a node in ms, $5 jobs, $6 the
/// tenant served last, $7 tenants of one visit, $8 concurrency by default, $9 whether
/// leases that ran out are taken over.
const CLAIM: &str = "
with recursive visited as (
    (select tenant_id, 1 as place from job where tenant_id > $6 order by tenant_id limit 1)
    union all
    select (select j.tenant_id from job j where j.tenant_id > v.tenant_id order by j.tenant_id limit 1), v.place + 1
    from visited v
    where v.tenant_id is not null and v.place < $7
), again as (
    -- Round the corner: those up to and including the one that was served last.
    (select tenant_id, 1000 + 1 as place from job where tenant_id <= $6 order by tenant_id limit 1)
    union all
    select (
        select j.tenant_id from job j
        where j.tenant_id > v.tenant_id and j.tenant_id <= $6
        order by j.tenant_id
        limit 1
    ), v.place + 1
    from again v
    where v.tenant_id is not null and v.place < 1000 + $7
), round as (
    select tenant_id, place from visited where tenant_id is not null
    union all
    select tenant_id, place from again where tenant_id is not null
), due as (
    select d.tenant_id, d.session_id, d.kind, d.taken_over
    from round r
    join tenant t using (tenant_id)
    cross join lateral (
        select j.tenant_id, j.session_id, j.kind, j.worker_id is not null as taken_over, j.ready_at
        from job j
        join session s using (tenant_id, session_id)
        where j.tenant_id = r.tenant_id
          and j.ready_at <= now()
          and (j.worker_id is null
               or ($9 and pg_postmaster_start_time() + $3 * interval '1 millisecond' <= now()))
          and (j.node_id is null or j.node_id = $2 or j.kind <> 'rest' and not exists (
              select from node n
              where n.node_id = j.node_id and n.seen_at > now() - $4 * interval '1 millisecond'
          ))
          and not exists (
              select from job o
              where o.tenant_id = j.tenant_id
                and o.session_id = j.session_id
                and (j.kind = 'turn' and o.kind = 'rest' and o.worker_id is not null and o.ready_at > now()
                     or j.kind = 'rest' and o.kind = 'turn' and (o.worker_id is not null or o.ready_at <= now()))
          )
          and s.epoch = (
              select e.epoch from session e where e.tenant_id = j.tenant_id and e.session_id = j.session_id
          )
        order by j.ready_at
        limit greatest(0, least($5, coalesce(t.concurrency, $8) - (
            select count(*) from job h
            where h.tenant_id = r.tenant_id and h.worker_id is not null and h.ready_at > now()
        )))
        for update of j, s skip locked
    ) d
    order by ceil(row_number() over (partition by d.tenant_id order by d.ready_at)::float8 / t.weight), r.place
    limit $5
), held as (
    update job j
    set worker_id = $1,
        ready_at = now() + $3 * interval '1 millisecond',
        takeovers = j.takeovers + due.taken_over::integer
    from due
    where j.tenant_id = due.tenant_id and j.session_id = due.session_id and j.kind = due.kind
    returning j.tenant_id, j.session_id, j.kind, due.taken_over, j.takeovers
)
update session s
set epoch = s.epoch + 1
from held
where s.tenant_id = held.tenant_id and s.session_id = held.session_id
returning held.tenant_id, held.session_id, held.kind, s.epoch, held.taken_over, held.takeovers";

fn watched(rows: Vec<WatchRow>) -> Vec<Watched> {
    let watched = |row: WatchRow| Watched {
        tenant: Id::from_uuid(row.tenant_id),
        session: Id::from_uuid(row.session_id),
        kind: Kind::from_word(&row.kind),
        epoch: row.epoch,
        cancel_turn: row.cancel_turn_id.map(Id::from_uuid),
    };
    rows.into_iter().map(watched).collect()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
