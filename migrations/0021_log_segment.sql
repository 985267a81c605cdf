-- Events of a session that was archived long ago move from rows to objects in the blob store, so that the largest
-- table does not grow with every session that ever ran. Readers see one log.
set local lock_timeout = '2s';

-- A part of the log of an archived session that is an object in the blob store, below the prefix of the session's
-- blobs. The segments of a session are its first events, without gaps; rows of `event` follow them. While both exist,
-- readers use the rows. No foreign key: see `turn`.
create table log_segment (
    org_id uuid not null,
    session_id uuid not null,
    -- The seq of the first and of the last event.
    from_seq bigint not null,
    to_seq bigint not null,
    -- SHA-256 of the object. Also part of its key, so two workers never replace each other's object.
    digest bytea not null,
    -- Size of the object.
    bytes bigint not null,
    -- The types of its events. A reader of other types does not read the object.
    types text[] not null,
    created_at timestamptz not null default now(),
    constraint log_segment_pkey primary key (org_id, session_id, from_seq),
    constraint log_segment_range check (from_seq > 0 and to_seq >= from_seq),
    constraint log_segment_digest check (octet_length(digest) = 32)
);
call sojourn_protect('log_segment');

-- The time at which the last event of an archived session had moved. Null while rows may be left.
alter table session add column events_moved_at timestamptz;

-- Whether the process reads segments. One of the previous version does not, and would see a shorter log: nothing moves
-- while such a process lives.
alter table process add column reads_segments boolean not null default false;

-- Deletes the rows of one segment, and returns their number; 0 if they were deleted before.
--
-- No role of the service may delete an event, so this runs with the rights of the owner and checks what it can: the
-- session is archived, the segment exists with this digest and follows the segment before it, no earlier row is left,
-- and the rows are complete. Whether the object has these events is checked by the worker, which reads it back first.
--
-- Nothing refers to a row of `event` by a foreign key. `turn.result_event_id`, `delivery.event_id` and
-- `delivery.event_seq`, and `event_content.event_id` name an event by its id or its seq, which it keeps.
create function sojourn_delete_moved_events(
    moved_org uuid, moved_session uuid, first_seq bigint, last_seq bigint, object_digest bytea
) returns bigint
language plpgsql security definer set search_path = public as $$
declare
    lacks_right boolean := not has_table_privilege('event', 'delete');
    deleted bigint;
begin
    if session_user <> (select system_role from deployment) then
        raise exception 'only the service itself moves events' using errcode = '42501';
    end if;
    perform set_config('sojourn.org', moved_org::text, true);
    -- The lock orders this with the deletion of the session and with another worker.
    perform
    from session
    where org_id = moved_org and session_id = moved_session and status = 'archived'
    for no key update;
    if not found then
        raise exception 'this session is not archived' using errcode = '42501';
    end if;
    if not exists (
        select from log_segment
        where org_id = moved_org
          and session_id = moved_session
          and from_seq = first_seq
          and to_seq = last_seq
          and digest = object_digest
    ) then
        raise exception 'there is no such segment' using errcode = '42501';
    end if;
    if first_seq > 1 and not exists (
        select from log_segment
        where org_id = moved_org and session_id = moved_session and to_seq = first_seq - 1
    ) then
        raise exception 'the segment does not follow another one' using errcode = '42501';
    end if;
    if exists (select from event where org_id = moved_org and session_id = moved_session and seq < first_seq) then
        raise exception 'earlier events are still rows' using errcode = '42501';
    end if;
    if lacks_right then
        -- One role owns and serves, and gave up this right; it has the right for this statement only.
        perform pg_advisory_xact_lock(hashtext('sojourn_purge'));
        execute format('grant delete on event to %I', current_user);
    end if;
    delete from event
    where org_id = moved_org and session_id = moved_session and seq between first_seq and last_seq;
    get diagnostics deleted = row_count;
    if lacks_right then
        execute format('revoke delete on event from %I', current_user);
    end if;
    if deleted not in (0, last_seq - first_seq + 1) then
        raise exception 'the rows of the segment are not complete' using errcode = '42501';
    end if;
    return deleted;
end
$$;
