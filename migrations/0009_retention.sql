-- Retention: the purge of sessions and organizations, and the monthly partitions.
--
-- Both functions run with the rights of the owner, because no role of the service may delete an
-- event or change the schema.

-- A deleted session whose blobs may still exist outside the database.
create table purged_session_blobs (
    org_id uuid not null,
    session_id uuid not null,
    created_at timestamptz not null default now(),
    constraint purged_session_blobs_pkey primary key (org_id, session_id)
);
comment on table purged_session_blobs is 'outlives its session';
call sojourn_protect('purged_session_blobs');

-- Deletes the rows of a session in every table, or all rows of an organization when the session is
-- null. Tables are found by their columns, so a table that is added later is included. A table whose
-- comment contains `outlives its session` keeps its rows when a session is deleted. The audit log
-- and the row of the organization always stay.
--
-- The function is bound by row level security like every other statement: the app role can only name
-- the organization of its transaction.
create function sojourn_purge(purged_org uuid, purged_session uuid) returns void
language plpgsql security definer set search_path = public as $$
declare
    lacks_right boolean := not has_table_privilege('event', 'delete');
    open_tables regclass[];
    blocked regclass[];
    open_table regclass;
begin
    if sojourn_org() is distinct from purged_org
        and session_user <> (select system_role from deployment)
    then
        raise exception 'this transaction does not speak for that org' using errcode = '42501';
    end if;
    perform set_config('sojourn.org', purged_org::text, true);
    if lacks_right then
        -- One role owns and serves, and gave up this right; it has the right for this statement only.
        perform pg_advisory_xact_lock(hashtext('sojourn_purge'));
        execute format('grant delete on event to %I', current_user);
    end if;
    select array_agg(c.oid::regclass order by c.oid desc)
    into open_tables
    from pg_class c
    where c.relnamespace = 'public'::regnamespace
      and c.relkind in ('r', 'p')
      and not c.relispartition
      and c.relname not in ('org', 'audit', 'purged_session_blobs')
      and (purged_session is null or coalesce(obj_description(c.oid, 'pg_class'), '') not like '%outlives its session%')
      and exists (
          select from pg_attribute a
          where a.attrelid = c.oid and a.attname = 'org_id' and not a.attisdropped
      )
      and (purged_session is null or exists (
          select from pg_attribute a
          where a.attrelid = c.oid and a.attname = 'session_id' and not a.attisdropped
      ));
    -- Newest tables first, because they refer to older ones. A table whose rows are still referred to
    -- is tried again after the others.
    while open_tables <> '{}' loop
        blocked := '{}';
        foreach open_table in array open_tables loop
            begin
                if purged_session is null then
                    execute format('delete from %s where org_id = $1', open_table) using purged_org;
                else
                    execute format('delete from %s where org_id = $1 and session_id = $2', open_table)
                        using purged_org, purged_session;
                end if;
            exception when foreign_key_violation then
                blocked := blocked || open_table;
            end;
        end loop;
        if blocked = open_tables then
            raise exception 'these tables refer to each other: %', blocked;
        end if;
        open_tables := blocked;
    end loop;
    if lacks_right then
        execute format('revoke delete on event from %I', current_user);
    end if;
end
$$;

-- Creates the partitions of this month and the next two, and drops those of the deliveries that are
-- past their retention of 30 days. Called at every start and by housekeeping. It takes no argument,
-- so a caller cannot abuse the rights of the owner.
create function sojourn_roll_months() returns void
language plpgsql security definer set search_path = public set timezone = 'UTC' as $$
declare
    parent text;
    month timestamptz;
    part text;
    time_column text;
    expired record;
begin
    perform pg_advisory_xact_lock(hashtext('sojourn_roll_months'));
    foreach parent in array array['delivery', 'delivery_attempt', 'audit'] loop
        time_column := case parent when 'delivery' then 'created_at' else 'at' end;
        for ahead in 0..2 loop
            month := date_trunc('month', now()) + make_interval(months => ahead);
            part := format('%s_%s', parent, to_char(month, 'YYYYMM'));
            if to_regclass(part) is not null then
                continue;
            end if;
            begin
                execute format('create table %I partition of %I for values from (%L) to (%L) with (fillfactor = 80)',
                    part, parent, month, month + interval '1 month');
                execute format('call sojourn_protect(%L)', part);
                if parent = 'audit' then
                    -- Where one role owns and serves, it gives up these rights, as for earlier months.
                    execute format('revoke update, delete, truncate on %I from %I', part, current_user);
                end if;
            exception when check_violation then
                -- The default partition has rows of that month.
                if parent = 'audit' then
                    -- They stay there: not even the owner changes these rows, and none is dropped.
                    raise warning 'rows of % are in the default partition of %', part, parent;
                else
                    -- They move to the new partition. The owner is bound by the policies too.
                    execute format('alter table %I no force row level security', parent || '_default');
                    execute format('create temporary table moved on commit drop as
                        select * from %1$I where %2$I >= %3$L and %2$I < %4$L',
                        parent || '_default', time_column, month, month + interval '1 month');
                    execute format('delete from %1$I where %2$I >= %3$L and %2$I < %4$L',
                        parent || '_default', time_column, month, month + interval '1 month');
                    execute format('alter table %I force row level security', parent || '_default');
                    execute format('create table %I partition of %I for values from (%L) to (%L) with (fillfactor = 80)',
                        part, parent, month, month + interval '1 month');
                    execute format('insert into %I select * from moved', part);
                    drop table moved;
                    execute format('call sojourn_protect(%L)', part);
                end if;
            end;
        end loop;
    end loop;
    for expired in
        select c.oid::regclass as part
        from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent in ('delivery'::regclass, 'delivery_attempt'::regclass)
          and c.relname ~ '_[0-9]{6}$'
          and to_date(right(c.relname, 6), 'YYYYMM') < now() - interval '30 days' - interval '1 month'
    loop
        execute format('drop table %s', expired.part);
    end loop;
end
$$;
select sojourn_roll_months();
