//! Claiming jobs: selection of due jobs and their order.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use super::{Kind, millis};
use crate::{
    base::{Id, Timestamp, limit},
    domain::{OrgId, SessionId},
    store::{
        Result, Store, generation::generation, parameter::named, process::ReachableNodes, record::next_epoch,
    },
};

/// Identity of a claiming worker and its nodes.
#[derive(Clone, Debug)]
pub struct Claimant {
    pub worker: Uuid,
    pub nodes: ReachableNodes,
    pub lease: Duration,
    /// Time without a heartbeat after which a node's sandboxes are considered lost.
    pub node_silence: Duration,
}

/// A claimed job.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    pub org: OrgId,
    pub session: SessionId,
    pub kind: Kind,
    pub epoch: i64,
    /// Epoch of the claim, before the lease continued under later ones.
    pub first_epoch: i64,
    /// Generation of the database that answered.
    pub generation: i64,
    /// The previous holder let its lease expire: it crashed or hangs.
    pub taken_over: bool,
    /// Number of takeovers since the job last finished.
    pub takeovers: i32,
}

/// Positions from which a claim begins, from earlier claims of this process.
#[derive(Clone, Copy, Debug)]
pub struct ClaimCursor {
    /// The organization that was served last.
    pub after: OrgId,
    /// Every job that was ready before this time was claimed; `None` when that is not known.
    pub since: Option<Timestamp>,
    /// Time before `since` that is read again, for jobs whose transaction committed late.
    pub margin: Duration,
}

/// Number of jobs of a claim, and of which organizations.
#[derive(Clone, Debug)]
pub struct ClaimSize {
    pub jobs: i64,
    /// If it is for organizations that hold few slots of the process: those that hold more. Of others at most one job
    /// each is taken.
    pub holders: Option<Vec<OrgId>>,
}

/// Result of a claim.
#[derive(Debug)]
pub struct Claim {
    pub jobs: Vec<Claimed>,
    /// Position from which the next claim begins.
    pub after: OrgId,
    pub since: Timestamp,
    /// Organizations remain that this claim has not visited.
    pub has_more: bool,
    /// Another claim was serving one of the organizations.
    pub is_contended: bool,
}

/// A claimed job, or an answer without one.
#[derive(FromRow)]
pub(super) struct ClaimedRow {
    org_id: Option<Uuid>,
    session_id: Option<Uuid>,
    kind: Option<String>,
    epoch: Option<i64>,
    taken_over: Option<bool>,
    takeovers: Option<i32>,
    /// Generation of the database that answers.
    pub generation: i64,
}

#[derive(FromRow)]
struct ClaimRow {
    #[sqlx(flatten)]
    claimed: ClaimedRow,
    next_after: Uuid,
    next_since: Timestamp,
    has_more: bool,
    is_contended: bool,
}

impl ClaimedRow {
    pub(super) fn job(self) -> Option<Claimed> {
        Some(Claimed {
            org: Id::from_uuid(self.org_id?),
            session: Id::from_uuid(self.session_id?),
            kind: Kind::from_word(&self.kind?),
            epoch: self.epoch?,
            first_epoch: self.epoch?,
            generation: self.generation,
            taken_over: self.taken_over?,
            takeovers: self.takeovers?,
        })
    }
}

impl Store {
    /// Claims as many ready jobs as wanted, in rotation over the organizations.
    ///
    /// The rotation begins after the organization `cursor.after`. Within an organization the job that
    /// became ready first comes first. One round takes `weight` jobs of an organization, and never more
    /// than its concurrency allows, however many processes claim at once: `sojourn_jobs_held` counts
    /// under a lock that lasts until the end of the claim. An organization that another claim is
    /// counting is skipped (`is_contended`).
    ///
    /// Only ready jobs are read. While fewer than `CLAIM_WINDOW` became ready since `cursor.since`, they
    /// are found by the index `job_recent` from that time on. With more, the claim visits
    /// `CLAIM_ORGS_MAX` organizations by the index `job_ready`, and the next claim continues after the
    /// last of them (`has_more`).
    ///
    /// A job whose session is locked by a command is skipped (`skip locked`) until the next claim. The
    /// claim never waits for it, so the two cannot deadlock.
    ///
    /// A session has one holder. A turn waits for other held jobs. An operation waits for those and
    /// for a due turn. Two concurrent claims may not see each other; the later one finds a changed
    /// epoch under its lock and skips the session.
    ///
    /// Jobs that maintain sandboxes are claimed by [`Store::claim_maintenance`].
    ///
    /// Of a suspended organization, only turns that have not started are claimed, to be rejected.
    pub async fn claim(&self, claimant: &Claimant, cursor: ClaimCursor, size: &ClaimSize) -> Result<Claim> {
        let holders: Vec<_> = size.holders.iter().flatten().map(|org| org.uuid()).collect();
        let query = named!(query_as(CLAIM), {
            worker: claimant.worker,
            nodes: claimant.nodes.list(),
            lease_ms: millis(claimant.lease),
            node_silence_ms: millis(claimant.node_silence),
            jobs_max: size.jobs,
            per_org: if size.holders.is_some() { 1 } else { size.jobs },
            holders: holders,
            after: cursor.after.uuid(),
            since: cursor.since,
            margin_ms: millis(cursor.margin),
            window: limit::CLAIM_WINDOW,
            orgs_max: limit::CLAIM_ORGS_MAX,
            concurrency: limit::ORG_JOBS_MAX,
        });
        let rows: Vec<ClaimRow> = query.fetch_all(&self.system).await?;
        let ClaimRow { ref claimed, next_after, next_since, has_more, is_contended } = rows[0];
        self.generation.notice(claimed.generation);
        Ok(Claim {
            jobs: rows.into_iter().filter_map(|row| row.claimed.job()).collect(),
            after: Id::from_uuid(next_after),
            since: next_since,
            has_more,
            is_contended,
        })
    }

    /// Makes jobs ready whose time has come and, with `takes_over`, jobs whose lease has expired; up to
    /// `READY_JOBS_MAX` of each. Returns their number.
    ///
    /// Reads the times from `since` on, by the indexes `job_scheduled` and `job_lease`. A lease that
    /// expired while the server was down is honored for one more lease period: its holder could not
    /// renew it.
    pub async fn ready_due_jobs(
        &self,
        lease: Duration,
        takes_over: bool,
        since: Option<Timestamp>,
    ) -> Result<DueJobs> {
        let query = named!(query_as(READY_DUE), {
            lease_ms: millis(lease),
            takes_over: takes_over,
            since: since,
            jobs_max: limit::READY_JOBS_MAX,
        });
        Ok(query.fetch_one(&self.system).await?)
    }
}

/// Result of [`Store::ready_due_jobs`].
#[derive(Clone, Copy, Debug, FromRow)]
pub struct DueJobs {
    /// Number of jobs that became ready.
    pub jobs: i64,
    /// More may be due.
    pub has_more: bool,
    /// Time of the look, by the database's clock.
    pub looked_at: Timestamp,
}

/// The limit is a literal in the statement, larger than any claim.
const _: () = assert!(limit::CLAIM_JOBS_MAX <= 64, "the literal limit in the statement must cover a claim");

/// Job `j` may run on one of these nodes: it needs none, or one of them, or its own is lost.
macro_rules! is_of_node {
    () => {
        "(j.node_id is null or j.node_id = any($nodes) or not exists (
              select from node n
              where n.node_id = j.node_id
                and n.seen_at > now() - greatest($node_silence_ms * interval '1 millisecond', n.orphan_timeout)
          ))"
    };
}
pub(super) use is_of_node;

/// Job `j` of an organization `e` may run on one of these nodes, and no other job of its session prevents it.
///
/// `offset 0` keeps the planner from a join that reads every job of the organization.
macro_rules! can_run {
    () => {
        concat!(
            "j.kind in ('turn', 'operation')
          and (e.suspended_at is null or j.kind = 'turn')
          and ",
            is_of_node!(),
            "
          and not exists (
              select from job o
              where o.org_id = j.org_id
                and o.session_id = j.session_id
                and (o.kind in ('turn', 'operation', 'idle') and o.kind <> j.kind
                     and o.worker_id is not null and o.ready_at > now()
                     or j.kind = 'operation' and o.kind = 'turn' and o.ready_at <= now())
              offset 0
          )"
        )
    };
}

/// Finds candidates without locks, then locks each job and its session by their keys, in order, until
/// there are enough. Every claim and release changes `ready_at`: a job that still has the same one was
/// not claimed since.
///
/// Limits and locks keep the planner from a plan that reads every session of the organization, and the
/// literal limit at the end keeps it from a join that reads them all. The jobs of an organization are
/// compared by pairs, for which only `job_ready` can serve: `job_recent` has the order, too, and would
/// read the ready jobs of all organizations for each. `coalesce` is a subquery, because below row level
/// security the planner takes it for a function that could leak rows, and does not use it in an index.
///
/// `$after` is the organization served last, `$concurrency` the default of an organization.
const CLAIM: &str = concat!(
    "
with recursive recent as materialized (
    select org_id, session_id, kind, ready_at, node_id, is_abandoned
    from job
    where worker_id is null
      and not is_scheduled
      and kind in ('turn', 'operation')
      and ready_at >= (select coalesce($since - $margin_ms * interval '1 millisecond', '-infinity'))
      and ready_at <= now()
    order by ready_at
    limit $window
), mode as materialized (
    select count(*) = $window as is_backlog from recent
), visited as (
    (
        select org_id, 1 as place
        from job
        where worker_id is null and not is_scheduled and org_id > $after and (select is_backlog from mode)
        order by org_id
        limit 1
    )
    union all
    select (
        select j.org_id
        from job j
        where j.worker_id is null and not j.is_scheduled and j.org_id > v.org_id
        order by j.org_id
        limit 1
    ), v.place + 1
    from visited v
    where v.org_id is not null and v.place < $orgs_max
), again as (
    -- From the start: those up to and including the one that was served last.
    (
        select org_id, (select count(*)::integer from visited where org_id is not null) + 1 as place
        from job
        where worker_id is null and not is_scheduled and org_id <= $after and (select is_backlog from mode)
        order by org_id
        limit 1
    )
    union all
    select (
        select j.org_id
        from job j
        where j.worker_id is null and not j.is_scheduled and j.org_id > v.org_id and j.org_id <= $after
        order by j.org_id
        limit 1
    ), v.place + 1
    from again v
    where v.org_id is not null and v.place < $orgs_max
), round as (
    select org_id, place from visited where org_id is not null
    union all
    select org_id, place from again where org_id is not null and place <= $orgs_max
    union all
    select org_id, row_number() over (order by org_id <= $after, org_id)
    from (select distinct org_id from recent) r
    where not (select is_backlog from mode)
), counted as materialized (
    select r.org_id, r.place, t.weight, t.suspended_at, coalesce(t.concurrency, $concurrency) as concurrency,
           sojourn_jobs_held(r.org_id) as held
    from round r
    join org t on t.org_id = r.org_id and t.deleted_at is null
), eligible as materialized (
    select org_id, place, weight, suspended_at, least($per_org, concurrency - held) as jobs_max
    from counted
    where concurrency > held and not org_id = any($holders)
), candidate as (
    select e.*, j.session_id, j.kind, j.ready_at, j.is_abandoned
    from recent j
    join eligible e using (org_id)
    where not (select is_backlog from mode)
      and ",
    can_run!(),
    "
    union all
    select e.*, j.session_id, j.kind, j.ready_at, j.is_abandoned
    from eligible e
    cross join lateral (
        select j.session_id, j.kind, j.ready_at, j.is_abandoned
        from job j
        where (j.org_id, j.ready_at) >= (e.org_id, '-infinity')
          and (j.org_id, j.ready_at) <= (e.org_id, now())
          and j.worker_id is null
          and not j.is_scheduled
          and ",
    can_run!(),
    "
        order by j.org_id, j.ready_at
        limit e.jobs_max
    ) j
    where (select is_backlog from mode)
), due as (
    select *
    from (
        select c.org_id, c.session_id, c.kind, c.is_abandoned as taken_over, c.lap, c.place
        from (
            select *, ceil(rank::float8 / weight) as lap
            from (select *, row_number() over (partition by org_id order by ready_at) as rank from candidate) c
            where rank <= jobs_max
            order by lap, place
        ) c
        cross join lateral (
            select from job j
            where j.org_id = c.org_id
              and j.session_id = c.session_id
              and j.kind = c.kind
              and j.ready_at = c.ready_at
            limit 1
            for update skip locked
        ) j
        cross join lateral (
            select from session s
            where s.org_id = c.org_id
              and s.session_id = c.session_id
              and s.epoch = (
                  select e.epoch from session e where e.org_id = c.org_id and e.session_id = c.session_id
              )
              and (c.suspended_at is null or s.running_turn_id is null)
            limit 1
            for update skip locked
        ) s
        limit $jobs_max
    ) d
    limit 64
), held as (
    update job j
    set worker_id = $worker,
        ready_at = now() + $lease_ms * interval '1 millisecond',
        is_abandoned = false
    from due
    where j.org_id = due.org_id and j.session_id = due.session_id and j.kind = due.kind
    returning j.org_id, j.session_id, j.kind, due.taken_over, j.takeovers
), claimed as (
    update session s
    set epoch = ",
    next_epoch!("s"),
    "
    from held
    where s.org_id = held.org_id and s.session_id = held.session_id
    returning held.org_id, held.session_id, held.kind, s.epoch, held.taken_over, held.takeovers
), next as (
    select coalesce(
               (select org_id from due order by lap desc, place desc limit 1),
               (select org_id from round where (select is_backlog from mode) order by place desc limit 1),
               $after
           ) as next_after,
           -- Without a backlog not a job of a suspended organization or of another node, which may wait for long: all jobs
           -- are read every `CLAIM_READ_ALL_INTERVAL`, and one that may run elsewhere again becomes ready again.
           coalesce((
               select min(j.ready_at)
               from recent j
               left join org t on t.org_id = j.org_id and t.suspended_at is null and t.deleted_at is null
               where ((select is_backlog from mode) or t.org_id is not null and ",
    is_of_node!(),
    ")
                 and not exists (
                     select from due d
                     where d.org_id = j.org_id and d.session_id = j.session_id and d.kind = j.kind
                 )
           ), now()) as next_since,
           (select is_backlog from mode) and (select count(*) from round) = $orgs_max as has_more,
           exists (select from counted where held is null) as is_contended,
           ",
    generation!(),
    " as generation
)
select claimed.*, next.*
from next
left join claimed on true"
);

/// Scheduled jobs whose time has come, and jobs whose holder did not renew its lease.
const READY_DUE: &str = "
with scheduled as (
    select org_id, session_id, kind
    from job
    where worker_id is null
      and is_scheduled
      -- The others are claimed when they are due.
      and kind in ('turn', 'operation')
      and ready_at >= (select coalesce($since, '-infinity'::timestamptz))
      and ready_at <= now()
    order by ready_at
    limit $jobs_max
    for update skip locked
), expired as (
    select org_id, session_id, kind
    from job
    where worker_id is not null
      and $takes_over
      and pg_postmaster_start_time() + $lease_ms * interval '1 millisecond' <= now()
      and ready_at >= (select coalesce($since, '-infinity'::timestamptz))
      and ready_at <= now()
    order by ready_at
    limit $jobs_max
    for update skip locked
), readied as (
    update job j
    set ready_at = now(), is_scheduled = false, worker_id = null,
        is_abandoned = j.is_abandoned or j.worker_id is not null,
        takeovers = j.takeovers + (j.worker_id is not null)::integer
    from (select * from scheduled union all select * from expired) due
    where j.org_id = due.org_id and j.session_id = due.session_id and j.kind = due.kind
    returning j.org_id
)
select (select count(*) from readied) as jobs,
       greatest((select count(*) from scheduled), (select count(*) from expired)) = $jobs_max as has_more,
       now() as looked_at";
