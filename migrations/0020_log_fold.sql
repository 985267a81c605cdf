-- A turn of a long session reads the fold of its log and the events since, not the whole log.

-- The fold of a session's log for its turns, up to one event. Not the truth: a row can be deleted at any time, and then
-- the log is read. A session without a row has a short log, or none that a turn read.
create table log_fold (
    org_id uuid not null,
    session_id uuid not null,
    -- The format of the fold. A process does not use a fold of another version.
    version integer not null,
    -- The seq of the last event in the fold.
    seq bigint not null,
    -- JSON, compressed with zstd.
    fold bytea not null,
    stored_at timestamptz not null default now(),
    constraint log_fold_pkey primary key (org_id, session_id)
);
-- It is compressed already.
alter table log_fold alter column fold set storage external;
call sojourn_protect('log_fold');
