-- Workers with several nodes.
set local lock_timeout = '2s';

-- The nodes that a worker reaches now; null if the process runs no jobs, or is of a version that knows only `node_id`.
-- Such a version reads the first of them in `node_id`.
alter table process add column node_ids uuid[];

-- A job of kind `idle` no longer stays with a node that is silent for so long that its sandboxes have ended: another
-- worker records the loss, so that an idle sandbox does not count for ever.

-- A session waits for any of these nodes; null for one that a worker with a single node noted: then for `node_id`.
alter table sandbox_wait
    add column node_ids uuid[],
    -- Its position when it asked last.
    add column queue_position integer;

-- As before, but a session that waits for several nodes is ahead of those that asked later for any of them.
create or replace function sojourn_reserved(
    of_org uuid, of_session uuid, of_node uuid, counts_org boolean, seen_after timestamptz
)
returns table (
    node_cpu_millis bigint,
    node_memory_bytes bigint,
    node_pids bigint,
    node_disk_bytes bigint,
    org_sandboxes bigint,
    org_memory_bytes bigint,
    org_checkpoint_bytes bigint,
    -- Sessions that wait for the node, and those that wait for a maximum of the organization, before this one.
    node_ahead bigint,
    org_ahead bigint
)
language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('sandboxes of node ' || of_node, 0));
    if counts_org then
        perform pg_advisory_xact_lock(hashtextextended('sandboxes of organization ' || of_org, 0));
    end if;
    return query
    select n.*, o.*, a.*
    from (
        select coalesce(sum(s.cpu_millis), 0)::bigint, coalesce(sum(s.memory_bytes), 0)::bigint,
               coalesce(sum(s.pids), 0)::bigint, coalesce(sum(s.disk_bytes), 0)::bigint
        from sandbox s
        where s.node_id = of_node and s.state <> 'ended'
    ) n, (
        select count(*), coalesce(sum(s.memory_bytes), 0)::bigint,
               case when counts_org then (
                   select coalesce(sum(c.bytes), 0)::bigint from checkpoint c where c.org_id = of_org
               ) else 0 end
        from sandbox s
        where s.org_id = of_org and s.state <> 'ended'
    ) o, (
        select count(*) filter (
                   where of_node = any(coalesce(w.node_ids, array[w.node_id])) and w.shortage not like 'organization%'
               ),
               count(*) filter (where w.org_id = of_org and w.shortage like 'organization%')
        from sandbox_wait w
        where w.seen_at >= seen_after
          and w.since < coalesce(
              (select own.since from sandbox_wait own where own.org_id = of_org and own.session_id = of_session),
              clock_timestamp()
          )
    ) a;
end
$$;
