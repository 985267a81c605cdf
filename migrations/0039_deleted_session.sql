-- What a deleted session leaves: the cost of work that was in progress is billed, and the rows of a long log are deleted
-- in steps.
set local lock_timeout = '2s';

alter table purged_session_blobs
    -- The epoch of the last lease. Work of that lease ends after the deletion, and its cost is added to the sums of the
    -- organization and of the session above.
    add column last_epoch bigint,
    add column agent_id uuid,
    add column model text,
    add column parent_session_id uuid;

-- A deleted session that has left rows in `event`, `delivery` and `delivery_attempt`.
create table deleted_log (
    org_id uuid not null,
    session_id uuid not null,
    created_at timestamptz not null default now(),
    constraint deleted_log_pkey primary key (org_id, session_id)
);
comment on table deleted_log is 'outlives its session';
create index deleted_log_age on deleted_log (created_at);
call sojourn_protect('deleted_log');

-- Deletes the rows of these sessions in every table. Of those in `long_sessions`, which are among them, the rows of
-- `event`, `delivery` and `delivery_attempt` stay for `sojourn_delete_session_rows`: one statement for all of them may take
-- longer than any timeout. `sojourn_purge_sessions` is for processes of the previous version.
--
-- Tables are found by their columns, so a table that is added later is included. A table whose comment contains `outlives
-- its session` keeps its rows.
--
-- The function is bound by row level security like every other statement: the app role can only name the organization of
-- its transaction.
create function sojourn_delete_sessions(of_org uuid, sessions uuid[], long_sessions uuid[]) returns void
language plpgsql security definer set search_path = public as $$
declare
    lacks_right boolean := not has_table_privilege('event', 'delete');
    short_sessions uuid[] := array(select unnest(sessions) except select unnest(long_sessions));
    open_tables regclass[];
    blocked regclass[];
    open_table regclass;
begin
    if sojourn_org() is distinct from of_org and session_user <> (select system_role from deployment) then
        raise exception 'this transaction does not speak for that org' using errcode = '42501';
    end if;
    perform set_config('sojourn.org', of_org::text, true);
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
      and c.relname not in ('audit', 'purged_session_blobs')
      and coalesce(obj_description(c.oid, 'pg_class'), '') not like '%outlives its session%'
      and 2 = (
          select count(*) from pg_attribute a
          where a.attrelid = c.oid and a.attname in ('org_id', 'session_id') and not a.attisdropped
      );
    -- Deliveries that stay refer to their destinations.
    update destination
    set session_id = null, enabled = false, url = '', sealed_secret = '', sealed_secret_before = null,
        secret_before_until = null, deleted_at = coalesce(deleted_at, now())
    where org_id = of_org and session_id = any(long_sessions);
    -- Newest tables first, because they refer to older ones. A table whose rows are still referred to is tried again after
    -- the others.
    while open_tables <> '{}' loop
        blocked := '{}';
        foreach open_table in array open_tables loop
            begin
                execute format('delete from %s where org_id = $1 and session_id = any($2)', open_table)
                    using of_org, case
                        when open_table in ('event'::regclass, 'delivery'::regclass, 'delivery_attempt'::regclass)
                        then short_sessions
                        else sessions
                    end;
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

-- Deletes at most `rows_max` rows that a deleted session has left in `event`, `delivery` and `delivery_attempt`, and returns
-- how many; 0 when nothing is left.
create function sojourn_delete_session_rows(of_org uuid, deleted_session uuid, rows_max bigint) returns bigint
language plpgsql security definer set search_path = public as $$
declare
    lacks_right boolean := not has_table_privilege('event', 'delete');
    some_table regclass;
    deleted bigint := 0;
    count_of_table bigint;
begin
    if session_user <> (select system_role from deployment) then
        raise exception 'only the service itself deletes what is left of a session' using errcode = '42501';
    end if;
    perform set_config('sojourn.org', of_org::text, true);
    if exists (select from session where org_id = of_org and session_id = deleted_session) then
        raise exception 'this session is not deleted' using errcode = '42501';
    end if;
    if lacks_right then
        perform pg_advisory_xact_lock(hashtext('sojourn_purge'));
        execute format('grant delete on event to %I', current_user);
    end if;
    foreach some_table in array array['delivery', 'delivery_attempt', 'event']::regclass[] loop
        exit when deleted >= rows_max;
        -- A row of another partition at the same place is left out by the conditions of the outer statement.
        execute format(
            'delete from %1$s
             where org_id = $1 and session_id = $2
               and ctid = any (array(select ctid from %1$s where org_id = $1 and session_id = $2 limit $3))',
            some_table
        ) using of_org, deleted_session, rows_max - deleted;
        get diagnostics count_of_table = row_count;
        deleted := deleted + count_of_table;
    end loop;
    if lacks_right then
        execute format('revoke delete on event from %I', current_user);
    end if;
    return deleted;
end
$$;
