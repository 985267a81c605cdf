-- Skills: folders with instructions that agents read in their sandboxes.
set local lock_timeout = '2s';

-- Counts the versions of a name, so that the number of a deleted one is not used again.
create table skill_name (
    org_id uuid not null,
    name text not null,
    last_version integer not null default 0,
    constraint skill_name_pkey primary key (org_id, name)
);
call sojourn_protect('skill_name');

create table skill (
    org_id uuid not null,
    skill_id uuid not null,
    name text not null,
    -- Null until its bytes are stored. Such rows are deleted after a day.
    version integer,
    description text not null,
    -- Of its archive, in hex.
    sha256 text not null,
    bytes bigint not null,
    files integer not null,
    created_at timestamptz not null default now(),
    constraint skill_pkey primary key (org_id, skill_id),
    constraint skill_version unique (org_id, name, version)
);
call sojourn_protect('skill');

-- Versions of requests that did not succeed.
create index skill_unpublished on skill (created_at) where version is null;

-- The skills that a session pins.
create table session_skill (
    org_id uuid not null,
    session_id uuid not null,
    skill_id uuid not null,
    constraint session_skill_pkey primary key (org_id, session_id, skill_id),
    constraint session_skill_exists foreign key (org_id, skill_id) references skill
);
call sojourn_protect('session_skill');
create index session_skill_by_skill on session_skill (org_id, skill_id);

-- The blob of a deleted version is removed like those of a deleted session: the id of the version takes the place of the
-- session's, in the row as in the key of the blob.
create function sojourn_purge_skill_blobs() returns trigger
language plpgsql set search_path = public as $$
begin
    insert into purged_session_blobs (org_id, session_id) values (old.org_id, old.skill_id)
    on conflict do nothing;
    return null;
end
$$;
create trigger skill_deleted after delete on skill
    for each row execute function sojourn_purge_skill_blobs();
