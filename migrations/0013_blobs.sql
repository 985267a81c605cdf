-- Complete bodies of events that callers append are stored with the event, and moved to the blob store by a
-- worker. A command holds the lock of its session and a connection, so it does not wait for a bucket.

-- The complete body of an event whose row has a truncated one, until a worker has stored it as a blob.
create table event_content (
    org_id uuid not null,
    session_id uuid not null,
    event_id uuid not null,
    -- JSON of the body.
    content text not null,
    created_at timestamptz not null default now(),
    -- A worker stores it; others leave it alone until this time.
    claimed_until timestamptz not null default '-infinity',
    constraint event_content_pkey primary key (org_id, session_id, event_id)
);
-- The oldest first, for the worker.
create index event_content_age on event_content (created_at);
call sojourn_protect('event_content');

-- The blob store of the deployment, by an id that the store has too. A process with another one, such as a directory
-- that the machines do not share, refuses to start: it would not find the blobs of the others.
create table blob_store (
    singleton boolean not null default true constraint blob_store_singleton check (singleton),
    blob_store_id uuid not null,
    constraint blob_store_pkey primary key (singleton)
);
