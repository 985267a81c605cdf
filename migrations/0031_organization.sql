-- An organization can be suspended and deleted, and says how long it keeps what is over.

alter table org
    -- No call of it is answered and no turn of it starts.
    add column suspended_at timestamptz,
    -- Its data is gone and its data key with it; the row stays for the audit log.
    add column deleted_at timestamptz,
    -- Days after which an archived session is deleted; null keeps it.
    add column retention_days integer constraint org_retention check (retention_days between 1 and 36500);

-- What a deleted session leaves outside the database, until that is removed too.
create table leftover (
    org_id uuid not null,
    session_id uuid not null,
    created_at timestamptz not null default now(),
    primary key (org_id, session_id)
);
comment on table leftover is 'outlives its session';
call sojourn_protect('leftover');

-- Deletes what a session has in every table, or all that an organization has: a table that is
-- added later is found by its columns, unless its comment says that it outlives its
-- session (a ledger of what was used, for one). The audit log always stays.
--
-- Runs with the owner's rights, for no role of the service may delete an event. It is
-- held to the policies like every other statement: the app's role can only name the
-- organization that its transaction speaks for.
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
        -- One role for everything gave the right up; it has it for this statement only.
        perform pg_advisory_xact_lock(hashtext('sojourn_purge'));
        execute format('grant delete on event to %I', current_user);
    end if;
    select array_agg(c.oid::regclass order by c.oid desc)
    into open_tables
    from pg_class c
    where c.relnamespace = 'public'::regnamespace
      and c.relkind in ('r', 'p')
      and not c.relispartition
      and c.relname not in ('org', 'audit', 'leftover')
      and (purged_session is null or coalesce(obj_description(c.oid, 'pg_class'), '') not like '%outlives its session%')
      and exists (
          select from pg_attribute a
          where a.attrelid = c.oid and a.attname = 'org_id' and not a.attisdropped
      )
      and (purged_session is null or exists (
          select from pg_attribute a
          where a.attrelid = c.oid and a.attname = 'session_id' and not a.attisdropped
      ));
    -- Newest tables first, for they refer to older ones; what is still referred to is
    -- tried again after the others.
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

-- What hashes bearer secrets, sealed under the master key. Null while it is derived from
-- that key: a hash cannot be made again, so it stays when the key is replaced.
alter table deployment add column sealed_pepper bytea;
