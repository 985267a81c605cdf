-- Rows that end are deleted faster than they are produced, by one process at a time.
set local lock_timeout = '2s';

-- The process that does a task for the whole deployment, such as the deletion of expired rows. Another one takes over
-- when the time is over.
create table leader (
    task text not null,
    process_id uuid not null,
    held_until timestamptz not null,
    constraint leader_pkey primary key (task)
);

-- A removal is deleted after a while. A reader of a list that saw less than the organization's last deleted one begins
-- with the whole list again.
alter table removal add column removed_at timestamptz not null default now();
create index removal_age on removal (removed_at);
alter table org add column removals_deleted_to xid8;

-- The oldest first.
create index purged_session_blobs_age on purged_session_blobs (created_at);
