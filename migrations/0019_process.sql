-- The live processes of the deployment, so that a notification goes to the one that it concerns.

-- A row is alive while its heartbeat is recent. Unlogged: no commit waits for the disk because of heartbeats, and what a
-- crash of the server loses is written again by the next ones.
create unlogged table process (
    process_id uuid not null,
    -- The node of a worker; none if the process runs no jobs.
    node_id uuid,
    -- Serves the API and sends deliveries.
    is_api boolean not null,
    free_slots integer not null,
    seen_at timestamptz not null default now(),
    constraint process_pkey primary key (process_id)
);
