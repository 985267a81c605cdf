-- A claim reads only the jobs that a worker can take now: its cost does not depend on jobs that wait for
-- a time, on finished jobs, or on a transaction that holds a snapshot.
set local lock_timeout = '2s';

-- The job waits for `ready_at`. A worker makes it ready when that time has come.
alter table job add column is_scheduled boolean not null default false;
-- The last holder let its lease expire: it crashed or hangs. Cleared by the next claim.
alter table job add column is_abandoned boolean not null default false;

alter table job no force row level security;
update job set is_scheduled = true where worker_id is null and ready_at > now();
alter table job force row level security;

-- Ready jobs by organization: a claim visits organizations in turn and takes the oldest jobs of each, so
-- that the backlog of one does not delay another beyond its fair share.
create index job_ready on job (org_id, ready_at) where worker_id is null and not is_scheduled;
-- The same by time: while few jobs are ready, a claim reads those since its last look. Entries of finished
-- jobs that a held snapshot keeps lie before that time.
create index job_recent on job (ready_at) where worker_id is null and not is_scheduled;
-- Jobs whose time comes next, and leases that expire next.
create index job_scheduled on job (ready_at) where worker_id is null and is_scheduled;
create index job_lease on job (ready_at) where worker_id is not null;
-- Held jobs of an organization whose lease is valid, for its concurrency.
create index job_held_until on job (org_id, ready_at) where worker_id is not null;
-- Replaced by those above. An earlier binary only claims more slowly without them.
drop index job_org;
drop index job_held;

-- Number of jobs of an organization that workers hold; null while another claim counts them.
--
-- The lock lasts until the end of the claim, and the count sees every claim before it: two claims at the
-- same time do not both take the last places of an organization.
create function sojourn_jobs_held(org uuid) returns bigint
language plpgsql volatile as $$
begin
    if not pg_try_advisory_xact_lock(hashtextextended('sojourn_jobs_held:' || org::text, 0)) then
        return null;
    end if;
    -- By pairs, for which only `job_held_until` can serve.
    return (
        select count(*)
        from job
        where (org_id, ready_at) > (org, now()) and (org_id, ready_at) <= (org, 'infinity') and worker_id is not null
    );
end
$$;
