-- Many sessions are purged at once: to find the tables and to plan a statement for each costs more than the
-- rows of one session, so retention was slower than the creation of sessions.

-- Deletes the rows of these sessions in every table. `sojourn_purge` deletes one session, for processes of the
-- previous version.
--
-- Tables are found by their columns, so a table that is added later is included. A table whose comment
-- contains `outlives its session` keeps its rows.
--
-- The function is bound by row level security like every other statement: the app role can only name the
-- organization of its transaction.
create function sojourn_purge_sessions(purged_org uuid, purged_sessions uuid[]) returns void
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
      and c.relname not in ('audit', 'purged_session_blobs')
      and coalesce(obj_description(c.oid, 'pg_class'), '') not like '%outlives its session%'
      and 2 = (
          select count(*) from pg_attribute a
          where a.attrelid = c.oid and a.attname in ('org_id', 'session_id') and not a.attisdropped
      );
    -- Newest tables first, because they refer to older ones. A table whose rows are still referred to is tried
    -- again after the others.
    while open_tables <> '{}' loop
        blocked := '{}';
        foreach open_table in array open_tables loop
            begin
                execute format('delete from %s where org_id = $1 and session_id = any($2)', open_table)
                    using purged_org, purged_sessions;
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
