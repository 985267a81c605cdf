-- Snapshots: the files of a session as they were at one event.
set local lock_timeout = '2s';

-- A pack: an object with contents and directories that snapshots of the session share. Snapshots name it by its number. No
-- foreign key to the session: see `turn`.
create table snapshot_pack (
    org_id uuid not null,
    session_id uuid not null,
    number integer not null,
    -- That of the object.
    digest bytea not null,
    bytes bigint not null,
    created_at timestamptz not null default now(),
    constraint snapshot_pack_pkey primary key (org_id, session_id, number),
    constraint snapshot_pack_number check (number >= 0),
    constraint snapshot_pack_digest check (octet_length(digest) = 32)
);
call sojourn_protect('snapshot_pack');

-- For `sojourn_release_packs`: a session may have two packs with the same bytes.
create index snapshot_pack_object on snapshot_pack (org_id, session_id, digest);

-- The files of a session. It is written in the transaction that appends its event, with the packs that are new.
create table snapshot (
    org_id uuid not null,
    session_id uuid not null,
    -- The seq of its event.
    seq bigint not null,
    -- The beginning of the digest of the files, in hex. Equal files have the same.
    snapshot_id text not null,
    -- Null if it belongs to no turn, or to no step.
    turn_id uuid,
    step_id uuid,
    -- The place of the root directory. No foreign key: the deletion of each pack would look for its snapshots.
    root_pack integer not null,
    root_offset bigint not null,
    root_bytes integer not null,
    -- The number of the files and the sum of their bytes.
    files integer not null,
    bytes bigint not null,
    created_at timestamptz not null default now(),
    constraint snapshot_pkey primary key (org_id, session_id, seq),
    constraint snapshot_snapshot_id check (length(snapshot_id) = 32)
);
call sojourn_protect('snapshot');

-- The session refers to the objects of its packs. Each statement does so for all of its packs: a long session has thousands.
create function sojourn_hold_packs() returns trigger
language plpgsql set search_path = public as $$
begin
    insert into object_ref (org_id, digest, holder)
    select distinct org_id, digest, 'session:' || session_id
    from added
    on conflict do nothing;
    return null;
end
$$;
create trigger snapshot_pack_added after insert on snapshot_pack
    referencing new table as added
    for each statement execute function sojourn_hold_packs();

create function sojourn_release_packs() returns trigger
language plpgsql set search_path = public as $$
begin
    delete from object_ref r
    using (select distinct org_id, session_id, digest from gone) g
    where r.org_id = g.org_id
      and r.digest = g.digest
      and r.holder = 'session:' || g.session_id
      and not exists (
          select from snapshot_pack p
          where p.org_id = g.org_id and p.session_id = g.session_id and p.digest = g.digest
      );
    return null;
end
$$;
create trigger snapshot_pack_deleted after delete on snapshot_pack
    referencing old table as gone
    for each statement execute function sojourn_release_packs();
