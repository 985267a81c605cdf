-- Objects: immutable bytes in the blob store which several rows may need, such as the packs of snapshots. They are deleted
-- when nothing refers to them any more.
set local lock_timeout = '2s';

-- An object. The key of its blob is `<org_id>/objects/<digest in hex>`. The row is written before the upload begins, so that
-- every blob has a row; a reference is added after the upload, so that nothing refers to missing bytes.
create table object (
    org_id uuid not null,
    -- SHA-256 of the bytes.
    digest bytea not null,
    bytes bigint not null,
    created_at timestamptz not null default now(),
    -- Whether a row of `object_ref` exists; written by the triggers there.
    used boolean not null default false,
    -- While it is not used, it stays until then: an upload has time to be referred to.
    kept_until timestamptz not null,
    -- The time at which a worker claimed it to delete its blob. Nothing can refer to it from then on. An upload of the same
    -- bytes waits until the row is gone or the worker has certainly stopped.
    removing_at timestamptz,
    constraint object_pkey primary key (org_id, digest),
    constraint object_digest check (octet_length(digest) = 32),
    constraint object_bytes check (bytes >= 0),
    constraint object_removing check (removing_at is null or not used)
);
call sojourn_protect('object');

-- The oldest first.
create index object_unused on object (kept_until) where not used;

-- Something that needs an object: `session:<session_id>` for the snapshots of a session.
create table object_ref (
    org_id uuid not null,
    digest bytea not null,
    holder text not null,
    constraint object_ref_pkey primary key (org_id, digest, holder),
    constraint object_ref_object foreign key (org_id, digest) references object
);
call sojourn_protect('object_ref');

-- Marks objects as used. Refuses references to one whose blob is being deleted; the foreign key refuses those to one that has
-- no row.
create function sojourn_use_objects() returns trigger
language plpgsql set search_path = public as $$
declare
    locked bigint;
begin
    -- In one order, so that two statements do not wait for each other. A claim that commits meanwhile is seen, because
    -- locked rows are read in their current state.
    perform
    from object o
    join (select distinct org_id, digest from added) a using (org_id, digest)
    where o.removing_at is null
    order by o.org_id, o.digest
    for no key update of o;
    get diagnostics locked = row_count;
    if locked < (select count(*) from (select distinct org_id, digest from added) a) then
        raise exception 'an object is being deleted' using errcode = '23503', constraint = 'object_ref_object';
    end if;
    update object o
    set used = true
    from (select distinct org_id, digest from added) a
    where o.org_id = a.org_id and o.digest = a.digest and not o.used;
    return null;
end
$$;
create trigger object_ref_added after insert on object_ref
    referencing new table as added
    for each statement execute function sojourn_use_objects();

-- Lets objects be deleted, at once, to which nothing refers any more.
create function sojourn_release_objects() returns trigger
language plpgsql set search_path = public as $$
begin
    -- Of two references that are deleted at the same time, the second one sees that the first one is gone.
    perform
    from object o
    join (select distinct org_id, digest from gone) g using (org_id, digest)
    order by o.org_id, o.digest
    for no key update of o;
    update object o
    set used = false, kept_until = least(o.kept_until, now())
    from (select distinct org_id, digest from gone) g
    where o.org_id = g.org_id
      and o.digest = g.digest
      and o.used
      and not exists (select from object_ref r where r.org_id = o.org_id and r.digest = o.digest);
    return null;
end
$$;
create trigger object_ref_deleted after delete on object_ref
    referencing old table as gone
    for each statement execute function sojourn_release_objects();

-- As before, but the rows of objects stay: each is deleted after its blob, like those of other organizations.
create or replace function sojourn_purge_rows(purged_org uuid, rows_max bigint) returns bigint
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
          and c.relname not in ('org', 'audit', 'purged_session_blobs', 'object')
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
