-- As before, but the checkpoints of the organization are added up only if they have a maximum, and before the lock of the
-- node, for which all organizations wait.
set local lock_timeout = '2s';

create function sojourn_reserved(
    of_org uuid, of_session uuid, of_node uuid, counts_org boolean, counts_checkpoints boolean, seen_after timestamptz
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
declare
    checkpoint_bytes bigint := 0;
begin
    if counts_checkpoints then
        -- A new sandbox adds nothing to them.
        select coalesce(sum(c.bytes), 0) into checkpoint_bytes from checkpoint c where c.org_id = of_org;
    end if;
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
        select count(*), coalesce(sum(s.memory_bytes), 0)::bigint, checkpoint_bytes
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
