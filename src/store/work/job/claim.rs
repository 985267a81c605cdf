//! Claiming jobs: selection of due jobs and their order.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use super::{Kind, millis};
use crate::{
    base::{Id, limit},
    domain::{OrgId, SessionId},
    store::{Result, Store, parameter::named},
};

/// Identity of a claiming worker and its node.
#[derive(Clone, Copy, Debug)]
pub struct Claimant {
    pub worker: Uuid,
    pub node: Uuid,
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
    /// The previous holder let its lease expire: it crashed or hangs.
    pub taken_over: bool,
    /// Number of takeovers since the job last finished.
    pub takeovers: i32,
}

#[derive(FromRow)]
struct ClaimRow {
    org_id: Uuid,
    session_id: Uuid,
    kind: String,
    epoch: i64,
    taken_over: bool,
    takeovers: i32,
}

impl Store {
    /// Claims up to `jobs_max` ready jobs, in rotation over the organizations.
    ///
    /// The rotation begins after the organization `after`. Within an organization the longest
    /// waiting job comes first.
    ///
    /// One round takes `weight` jobs of an organization, and never more than its concurrency
    /// allows. Organizations and their jobs are found by the index `job_org`, held jobs by
    /// `job_held`. A job whose session is locked by a command is skipped (`skip locked`) until the
    /// next poll. The claim never waits for it, so the two cannot deadlock. A lease that expired
    /// while the server was down is honored for one more lease period: its holder could not renew
    /// it.
    ///
    /// A session has one holder. A turn waits for other held jobs. An operation waits for those and
    /// for a due turn. An `idle` job waits for every other job that is held or due. Two concurrent
    /// claims may not see each other; the later one finds a changed epoch under its lock and skips
    /// the session.
    ///
    /// With `takes_over`, also claims jobs whose holder let its lease expire.
    ///
    /// Of a suspended organization, only turns that have not started are claimed, to be rejected.
    pub async fn claim(
        &self,
        claimant: Claimant,
        takes_over: bool,
        after: OrgId,
        jobs_max: i64,
    ) -> Result<Vec<Claimed>> {
        let query = named!(query_as(CLAIM), {
            worker: claimant.worker,
            node: claimant.node,
            lease_ms: millis(claimant.lease),
            node_silence_ms: millis(claimant.node_silence),
            jobs_max: jobs_max,
            after: after.uuid(),
            orgs_max: limit::CLAIM_ORGS_MAX,
            concurrency: limit::ORG_JOBS_MAX,
            takes_over: takes_over,
        });
        let rows: Vec<ClaimRow> = query.fetch_all(&self.system).await?;
        let claimed = |row: ClaimRow| Claimed {
            org: Id::from_uuid(row.org_id),
            session: Id::from_uuid(row.session_id),
            kind: Kind::from_word(&row.kind),
            epoch: row.epoch,
            taken_over: row.taken_over,
            takeovers: row.takeovers,
        };
        Ok(rows.into_iter().map(claimed).collect())
    }

    /// Returns the start of the next claim after one that found no job.
    ///
    /// That is the last of the first `CLAIM_ORGS_MAX` organizations; `None` when there are no more
    /// than those.
    pub async fn skip_orgs(&self, after: OrgId) -> Result<Option<OrgId>> {
        let row: Option<(Option<Uuid>,)> = sqlx::query_as(
            "with recursive visited as (
                (select org_id, 1 as place from job where org_id > $1 order by org_id limit 1)
                union all
                select (select j.org_id from job j where j.org_id > v.org_id order by j.org_id limit 1),
                       v.place + 1
                from visited v
                where v.org_id is not null and v.place < $2
             )
             select org_id from visited where place = $2",
        )
        .bind(after.uuid())
        .bind(limit::CLAIM_ORGS_MAX)
        .fetch_optional(&self.system)
        .await?;
        Ok(row.and_then(|(org,)| org).map(Id::from_uuid))
    }
}

/// The limit is a literal in the statement, larger than any claim.
const _: () = assert!(limit::CLAIM_JOBS_MAX <= 64, "the literal limit in the statement must cover a claim");

/// Finds the jobs first and then the session of each by its key.
///
/// Limits, locks and `offset 0` keep the planner from a plan that reads every session of the
/// organization, and the literal limit at the end keeps it from a join that reads them all.
///
/// `$after` is the organization served last, `$concurrency` the default of an organization.
const CLAIM: &str = "
with recursive visited as (
    (select org_id, 1 as place from job where org_id > $after order by org_id limit 1)
    union all
    select (select j.org_id from job j where j.org_id > v.org_id order by j.org_id limit 1), v.place + 1
    from visited v
    where v.org_id is not null and v.place < $orgs_max
), again as (
    -- Round the corner: those up to and including the one that was served last.
    (select org_id, 1000 + 1 as place from job where org_id <= $after order by org_id limit 1)
    union all
    select (
        select j.org_id from job j
        where j.org_id > v.org_id and j.org_id <= $after
        order by j.org_id
        limit 1
    ), v.place + 1
    from again v
    where v.org_id is not null and v.place < 1000 + $orgs_max
), round as (
    select org_id, place from visited where org_id is not null
    union all
    select org_id, place from again where org_id is not null
), due as (
    select d.org_id, d.session_id, d.kind, d.taken_over
    from (
        select d.org_id, d.session_id, d.kind, d.taken_over
        from round r
        join org t on t.org_id = r.org_id and t.deleted_at is null
        cross join lateral (
            select j.org_id, j.session_id, j.kind, j.worker_id is not null as taken_over, j.ready_at
            from job j
            where j.org_id = r.org_id
              and j.ready_at <= now()
              and (t.suspended_at is null or j.kind = 'turn')
              and (j.worker_id is null
                   or ($takes_over and pg_postmaster_start_time() + $lease_ms * interval '1 millisecond' <= now()))
              and (j.node_id is null or j.node_id = $node or j.kind <> 'idle' and not exists (
                  select from node n
                  where n.node_id = j.node_id
                    and n.seen_at > now() - greatest($node_silence_ms * interval '1 millisecond', n.orphan_timeout)
              ))
              and not exists (
                  select from job o
                  where o.org_id = j.org_id
                    and o.session_id = j.session_id
                    and (j.kind in ('turn', 'operation') and o.kind in ('turn', 'operation', 'idle') and o.kind <> j.kind
                         and o.worker_id is not null and o.ready_at > now()
                         or j.kind = 'idle' and o.kind in ('turn', 'operation')
                         and (o.worker_id is not null or o.ready_at <= now())
                         or j.kind = 'operation' and o.kind = 'turn' and o.ready_at <= now())
                  offset 0
              )
            order by j.ready_at
            limit greatest(0, least($jobs_max, coalesce(t.concurrency, $concurrency) - (
                select count(*) from job h
                where h.org_id = r.org_id and h.worker_id is not null and h.ready_at > now()
            )))
            for update skip locked
        ) d
        cross join lateral (
            select from session s
            where s.org_id = d.org_id
              and s.session_id = d.session_id
              and s.epoch = (
                  select e.epoch from session e where e.org_id = d.org_id and e.session_id = d.session_id
              )
              and (t.suspended_at is null or s.running_turn_id is null)
            limit 1
            for update skip locked
        ) s
        order by ceil(row_number() over (partition by d.org_id order by d.ready_at)::float8 / t.weight), r.place
        limit $jobs_max
    ) d
    limit 64
), held as (
    update job j
    set worker_id = $worker,
        ready_at = now() + $lease_ms * interval '1 millisecond',
        takeovers = j.takeovers + due.taken_over::integer
    from due
    where j.org_id = due.org_id and j.session_id = due.session_id and j.kind = due.kind
    returning j.org_id, j.session_id, j.kind, due.taken_over, j.takeovers
)
update session s
set epoch = s.epoch + 1
from held
where s.org_id = held.org_id and s.session_id = held.session_id
returning held.org_id, held.session_id, held.kind, s.epoch, held.taken_over, held.takeovers";
