-- Admission of sandboxes: the resources that a node has for them, those that are reserved for each, and which
-- sessions wait for capacity.
set local lock_timeout = '2s';

-- Null until a process of this version has said it; a node without is not full.
alter table node
    add column cpu_millis bigint,
    add column memory_bytes bigint,
    add column pids bigint,
    add column disk_bytes bigint,
    -- Whether its disk has less free space than it keeps: then it makes no sandbox, checkpoint or image.
    add column is_disk_low boolean not null default false;

-- What a sandbox may use while it runs; what it used when it was frozen. 0 for one of the previous version.
alter table sandbox
    add column cpu_millis bigint not null default 0,
    add column memory_bytes bigint not null default 0,
    add column pids bigint not null default 0,
    add column disk_bytes bigint not null default 0;

-- A session whose sandbox found no capacity. Its worker asks again every second; a row that is not seen for longer is that
-- of a worker that died, and counts no more.
create table sandbox_wait (
    org_id uuid not null,
    session_id uuid not null,
    node_id uuid not null,
    -- What is missing. A session that waits for its own organization lets others pass.
    shortage text not null,
    since timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    constraint sandbox_wait_pkey primary key (org_id, session_id),
    constraint sandbox_wait_session foreign key (org_id, session_id) references session
);
call sojourn_protect('sandbox_wait');

-- What is reserved on a node and for an organization, and how many sessions wait before one.
--
-- Takes the locks of both until the end of the transaction, so that creations are decided one after the other. It is
-- called within the statement that inserts the sandbox, in a transaction of its own: no client is asked while a lock is
-- held, and a process that is frozen holds none. A function, because its queries see what was committed while it waited
-- for the locks, and a plain statement would see what was there when it began.
create function sojourn_reserved(of_org uuid, of_session uuid, of_node uuid, counts_org boolean, seen_after timestamptz)
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
        select count(*) filter (where w.node_id = of_node and w.shortage not like 'organization%'),
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
