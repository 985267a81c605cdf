-- An organization is deleted in steps of some rows, because one statement for all of them may take longer than a
-- request, or than any timeout.
set local lock_timeout = '2s';

-- Deletes at most `rows_max` rows of an organization that is deleted, and returns how many; 0 when nothing is left.
--
-- Tables are found as by `sojourn_purge`, newest first, because they refer to older ones. A deleted session leaves
-- a row for its blobs. The audit log and the row of the organization stay. Rows that the system role may delete
-- only here (events) are deleted with the rights of the owner.
create function sojourn_purge_rows(purged_org uuid, rows_max bigint) returns bigint
language plpgsql security definer set search_path = public as $$
declare
    lacks_right boolean := not has_table_privilege('event', 'delete');
    some_table regclass;
    blocked regclass;
    deleted bigint := 0;
    count_of_step bigint;
begin
    if session_user <> (select system_role from deployment) then
        raise exception 'only the service itself purges an organization' using errcode = '42501';
    end if;
    perform set_config('sojourn.org', purged_org::text, true);
    if not exists (select from org where org_id = purged_org and deleted_at is not null) then
        raise exception 'this organization is not deleted' using errcode = '42501';
    end if;
    if lacks_right then
        -- One role owns and serves, and gave up this right; it has the right for this statement only.
        perform pg_advisory_xact_lock(hashtext('sojourn_purge'));
        execute format('grant delete on event to %I', current_user);
    end if;
    for some_table in
        select c.oid::regclass
        from pg_class c
        where c.relnamespace = 'public'::regnamespace
          and c.relkind in ('r', 'p')
          and not c.relispartition
          and c.relname not in ('org', 'audit', 'purged_session_blobs')
          and exists (
              select from pg_attribute a
              where a.attrelid = c.oid and a.attname = 'org_id' and not a.attisdropped
          )
        order by c.oid desc
    loop
        exit when deleted >= rows_max;
        begin
            -- A row of another partition at the same place is one of this organization too.
            if some_table = 'session'::regclass then
                with gone as (
                    delete from session
                    where org_id = purged_org
                      and ctid = any (array(
                          select ctid from session where org_id = purged_org limit rows_max - deleted
                      ))
                    returning org_id, session_id
                ), of_blobs as (
                    insert into purged_session_blobs (org_id, session_id)
                    select org_id, session_id from gone
                    on conflict do nothing
                )
                select count(*) into count_of_step from gone;
            else
                execute format(
                    'delete from %1$s
                     where org_id = $1 and ctid = any (array(select ctid from %1$s where org_id = $1 limit $2))',
                    some_table
                ) using purged_org, rows_max - deleted;
                get diagnostics count_of_step = row_count;
            end if;
            deleted := deleted + count_of_step;
        exception when foreign_key_violation then
            -- A table that is read later refers to it, so it is tried again by a later step.
            blocked := some_table;
        end;
    end loop;
    if lacks_right then
        execute format('revoke delete on event from %I', current_user);
    end if;
    if deleted = 0 and blocked is not null then
        raise exception 'rows of % are referred to', blocked;
    end if;
    return deleted;
end
$$;

-- The blobs of a deleted session are removed again a day later, because a process that was frozen may write one
-- long after the first removal.

-- The time of the first removal; null before. The row is deleted by the last one.
alter table purged_session_blobs add column removed_at timestamptz;
create index purged_session_blobs_pending on purged_session_blobs (created_at) where removed_at is null;
