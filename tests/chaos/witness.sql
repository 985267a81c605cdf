-- The witness of a run, in a schema of its own: records each write with the process that made it, each
-- claim and each takeover, and can block a writer between the two writes of a tool call.
--
-- A process is known by `chaos.process`, a setting of its connections. The service knows nothing of it.

create schema chaos;

create table chaos.write (
    session_id uuid not null,
    seq bigint not null,
    type text not null,
    turn_id uuid,
    attempt integer,
    -- The epoch of the session at the time of the write, not the one that the writer believes in.
    epoch bigint,
    process integer,
    at timestamptz not null default clock_timestamp()
);
create index on chaos.write (session_id, seq);
create index on chaos.write (at);

-- The process that raised the session to this epoch: the only one that may write under it.
create table chaos.epoch (
    session_id uuid not null,
    epoch bigint not null,
    process integer,
    at timestamptz not null default clock_timestamp(),
    primary key (session_id, epoch)
);

create table chaos.holder (
    worker_id uuid primary key,
    process integer
);

-- A lease that was taken from its holder.
create table chaos.takeover (
    session_id uuid not null,
    kind text not null,
    process integer,
    lease_until timestamptz not null,
    at timestamptz not null default clock_timestamp(),
    server_start timestamptz not null default pg_postmaster_start_time()
);

create function chaos.process() returns integer language sql as $$
    select nullif(current_setting('chaos.process', true), '')::integer
$$;

create function chaos.claimed() returns trigger language plpgsql security definer as $$
begin
    insert into chaos.holder (worker_id, process)
    values (new.worker_id, chaos.process())
    on conflict do nothing;
    return new;
end
$$;
create trigger claimed after update on public.job for each row
    when (new.worker_id is not null and new.worker_id is distinct from old.worker_id)
    execute function chaos.claimed();

create function chaos.taken() returns trigger language plpgsql security definer as $$
begin
    insert into chaos.takeover (session_id, kind, process, lease_until)
    select old.session_id, old.kind,
           (select h.process from chaos.holder h where h.worker_id = old.worker_id), old.ready_at;
    return new;
end
$$;
create trigger taken after update on public.job for each row
    when (old.worker_id is not null and new.worker_id is distinct from old.worker_id
          and (new.takeovers > old.takeovers or new.worker_id is not null))
    execute function chaos.taken();

create function chaos.raised() returns trigger language plpgsql security definer as $$
begin
    insert into chaos.epoch (session_id, epoch, process)
    values (new.session_id, new.epoch, chaos.process())
    on conflict do nothing;
    return new;
end
$$;
create trigger raised after update on public.session for each row
    when (new.epoch is distinct from old.epoch)
    execute function chaos.raised();

create function chaos.written() returns trigger language plpgsql security definer as $$
declare
    writer integer := chaos.process();
begin
    if writer is not null and new.type in ('tool.call', 'tool.result') then
        perform pg_advisory_xact_lock_shared(case new.type when 'tool.call' then 1 else 2 end, writer);
    end if;
    -- The first events of a session are written before its row.
    insert into chaos.write (session_id, seq, type, turn_id, attempt, epoch, process)
    select new.session_id, new.seq, new.type, new.turn_id, (new.body ->> 'attempt')::integer, (
        select s.epoch
        from public.session s
        where s.org_id = new.org_id and s.session_id = new.session_id
    ), writer;
    return new;
end
$$;
create trigger written before insert on public.event for each row execute function chaos.written();
