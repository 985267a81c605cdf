//! Claiming the jobs that maintain sandboxes: idle ones and those of archived sessions.

use super::{
    Claimant, Claimed,
    claim::{ClaimedRow, is_of_node},
    millis,
};
use crate::{
    base::limit::{MAINTENANCE_RETRY, MAINTENANCE_WINDOW},
    store::{Result, Store, generation::generation, parameter::named, record::next_epoch},
};

/// Locks the job of a candidate `c`, unless it was claimed or changed since it was found, or somebody else locks it.
macro_rules! locked_job {
    () => {
        "cross join lateral (
        select from job j
        where j.org_id = c.org_id
          and j.session_id = c.session_id
          and j.kind = c.kind
          and j.ready_at = c.ready_at
          and j.worker_id is null
        limit 1
        for update skip locked
    ) j"
    };
}

impl Store {
    /// Claims up to `jobs_max` due jobs of the kinds `idle` and `cleanup` of the claimant's nodes, by the index
    /// `job_maintenance`: those of the organization first that has the fewest such jobs in progress. With
    /// `reads_others`, also those of no node and of lost ones.
    ///
    /// They do not count for the concurrency of their organization, and those of a suspended one are claimed, too:
    /// what an idle sandbox reserves is missing to the neighbors until it is frozen.
    ///
    /// An `idle` job waits for every turn and operation of its session that is held or due: then it is due again
    /// `MAINTENANCE_RETRY` later, behind those that can be claimed.
    pub async fn claim_maintenance(
        &self,
        claimant: &Claimant,
        reads_others: bool,
        jobs_max: i64,
    ) -> Result<Vec<Claimed>> {
        let query = named!(query_as(CLAIM), {
            worker: claimant.worker,
            nodes: claimant.nodes.list(),
            lease_ms: millis(claimant.lease),
            node_silence_ms: millis(claimant.node_silence),
            reads_others: reads_others,
            jobs_max: jobs_max,
            window: MAINTENANCE_WINDOW,
            retry_ms: millis(MAINTENANCE_RETRY),
        });
        let rows: Vec<ClaimedRow> = query.fetch_all(&self.system).await?;
        rows.iter().for_each(|row| self.generation.notice(row.generation));
        Ok(rows.into_iter().filter_map(ClaimedRow::job).collect())
    }
}

/// Finds candidates without locks, then locks each job and its session by their keys, as the claim of turns does.
const CLAIM: &str = concat!(
    "
with found as materialized (
    select j.*
    from unnest($nodes) n(node_id)
    cross join lateral (
        select j.org_id, j.session_id, j.kind, j.ready_at, j.is_abandoned
        from job j
        where j.node_id = n.node_id
          and j.worker_id is null
          and j.kind in ('cleanup', 'idle')
          and j.ready_at <= now()
        order by j.ready_at
        limit $window
    ) j
    union all
    (
        select j.org_id, j.session_id, j.kind, j.ready_at, j.is_abandoned
        from job j
        where $reads_others
          and j.worker_id is null
          and j.kind in ('cleanup', 'idle')
          and j.ready_at <= now()
          and (j.node_id is null or j.node_id <> all($nodes))
          and ",
    is_of_node!(),
    "
        limit $window
    )
), candidate as materialized (
    select f.*,
           exists (
               select from job o
               where o.org_id = f.org_id
                 and o.session_id = f.session_id
                 and f.kind = 'idle'
                 and o.kind in ('turn', 'operation')
                 and (o.worker_id is not null or o.ready_at <= now())
               offset 0
           ) as is_blocked
    from found f
    where not exists (select from org t where t.org_id = f.org_id and t.deleted_at is not null offset 0)
), held_by as materialized (
    -- By pairs, for which only `job_held_until` can serve.
    select c.org_id, (
               select count(*)
               from job h
               where (h.org_id, h.ready_at) > (c.org_id, now()) and (h.org_id, h.ready_at) <= (c.org_id, 'infinity')
                 and h.worker_id is not null
                 and h.kind in ('cleanup', 'idle')
           ) as jobs
    from (select distinct org_id from candidate where not is_blocked) c
), ranked as (
    select c.*, h.jobs + row_number() over (partition by c.org_id order by c.ready_at) as rank
    from candidate c
    join held_by h using (org_id)
    where not c.is_blocked
), due as (
    select c.org_id, c.session_id, c.kind, c.is_abandoned as taken_over
    from (select * from ranked order by rank, ready_at) c
    ",
    locked_job!(),
    "
    cross join lateral (
        select from session s
        where s.org_id = c.org_id
          and s.session_id = c.session_id
          and s.epoch = (
              select e.epoch from session e where e.org_id = c.org_id and e.session_id = c.session_id
          )
        limit 1
        for update skip locked
    ) s
    limit $jobs_max
), blocked as (
    select c.org_id, c.session_id, c.kind
    from candidate c
    ",
    locked_job!(),
    "
    where c.is_blocked
), postponed as (
    update job j
    set ready_at = now() + $retry_ms * interval '1 millisecond', is_scheduled = true
    from blocked
    where j.org_id = blocked.org_id and j.session_id = blocked.session_id and j.kind = blocked.kind
), held as (
    update job j
    set worker_id = $worker,
        ready_at = now() + $lease_ms * interval '1 millisecond',
        is_scheduled = false,
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
)
select claimed.*, answering.generation
from (select ",
    generation!(),
    " as generation) answering
left join claimed on true"
);
