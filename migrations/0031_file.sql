-- Files that callers upload, or send with their messages, and that models and sandboxes get.
set local lock_timeout = '2s';

create table file (
    org_id uuid not null,
    file_id uuid not null,
    name text not null,
    -- As found in its bytes.
    media_type text not null,
    bytes bigint not null,
    -- In hex.
    sha256 text not null,
    -- The image that a model gets; null if the file is none.
    image json,
    -- Whether the file exists until it is deleted. Others are deleted with the last session that uses them.
    kept boolean not null,
    -- Whether a session has used it.
    used boolean not null default false,
    created_at timestamptz not null default now(),
    constraint file_pkey primary key (org_id, file_id)
);
call sojourn_protect('file');

-- Files of requests that were not accepted.
create index file_unused on file (created_at) where not kept and not used;

-- The files of a session's messages and results.
create table session_file (
    org_id uuid not null,
    session_id uuid not null,
    file_id uuid not null,
    constraint session_file_pkey primary key (org_id, session_id, file_id),
    constraint session_file_exists foreign key (org_id, file_id) references file
);
call sojourn_protect('session_file');
create index session_file_by_file on session_file (org_id, file_id);

-- A file that is not kept is deleted with the last session that uses it.
create function sojourn_release_file() returns trigger
language plpgsql set search_path = public as $$
begin
    -- Of two sessions that are deleted at the same time, the second one sees that the first one is gone.
    perform from file where org_id = old.org_id and file_id = old.file_id and not kept for update;
    delete from file f
    where f.org_id = old.org_id and f.file_id = old.file_id and not f.kept
      and not exists (
          select from session_file s where s.org_id = f.org_id and s.file_id = f.file_id
      );
    return null;
end
$$;
create trigger session_file_deleted after delete on session_file
    for each row execute function sojourn_release_file();

comment on table purged_session_blobs is 'outlives its session; has the ids of deleted files, too';

-- The blobs of a deleted file are removed like those of a deleted session: the id of the file takes the place of the
-- session's, in the row as in the keys of the blobs.
create function sojourn_purge_file_blobs() returns trigger
language plpgsql set search_path = public as $$
begin
    insert into purged_session_blobs (org_id, session_id) values (old.org_id, old.file_id)
    on conflict do nothing;
    return null;
end
$$;
create trigger file_deleted after delete on file
    for each row execute function sojourn_purge_file_blobs();
