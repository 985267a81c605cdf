-- As before, but without the jobs that maintain sandboxes: they do not keep the turns of their organization waiting.
create or replace function sojourn_jobs_held(org uuid) returns bigint
language plpgsql volatile as $$
begin
    if not pg_try_advisory_xact_lock(hashtextextended('sojourn_jobs_held:' || org::text, 0)) then
        return null;
    end if;
    -- By pairs, for which only `job_held_until` can serve.
    return (
        select count(*)
        from job
        where (org_id, ready_at) > (org, now()) and (org_id, ready_at) <= (org, 'infinity')
          and worker_id is not null
          and kind in ('turn', 'operation')
    );
end
$$;
