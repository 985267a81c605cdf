-- What a caller holds a session by, and what its commands start with: columns of the fold.
alter table session
    add column hold text constraint session_hold check (hold in ('paused', 'stopped')),
    add column stop_reason text,
    -- As JSON; null where nothing is in it.
    add column context json,
    -- A name for people, of one session at a time; a closed one holds none.
    add column slug text;
create unique index session_slug on session (org_id, slug) where slug is not null and status <> 'archived';
-- Who lost a session finds it by its own name: the newest.
create index session_client on session (org_id, client_id, session_id) where client_id is not null;

-- Since when the time of a sandbox stands still, because its session is paused.
alter table sandbox add column paused_at timestamptz;

alter table checkpoint
    -- Made by a caller's hand: kept longer than those that come by themselves.
    add column is_kept boolean not null default false,
    -- When a caller went back to it: from then on it is the newest.
    add column restored_at timestamptz;
