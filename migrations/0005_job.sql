-- Work as rows. The tables are the truth; a notification is only a hint.

-- A worker process and the machine whose sandboxes it can reach.
create table node (
    node_id uuid primary key,
    seen_at timestamptz not null default now()
);

create table job (
    org_id uuid not null,
    session_id uuid not null,
    -- `turn` runs what is pending; `cleanup` removes what an archived session leaves.
    kind text not null constraint job_kind check (kind in ('turn', 'cleanup')),
    -- When it may be taken. For a held job this is the end of its lease, so an
    -- expired lease is taken over by the ordinary claim.
    ready_at timestamptz not null,
    -- The process that holds it; null when nobody does.
    worker_id uuid,
    -- The only node that can reach the session's live sandbox; null for any.
    node_id uuid,
    -- Takeovers from a holder that did not give it back.
    takeovers integer not null default 0,
    created_at timestamptz not null default now(),
    primary key (org_id, session_id, kind),
    constraint job_session foreign key (org_id, session_id) references session
) with (fillfactor = 70);
create index job_ready on job (ready_at);
create index job_worker on job (worker_id) where worker_id is not null;
call sojourn_protect('job');

-- A row before each sandbox: whatever the provider has that no row owns is removed.
create table sandbox (
    org_id uuid not null,
    sandbox_id uuid not null,
    session_id uuid not null,
    node_id uuid not null,
    state text not null constraint sandbox_state check (state in ('live', 'ended')),
    created_at timestamptz not null default now(),
    ended_at timestamptz,
    primary key (org_id, sandbox_id),
    constraint sandbox_session foreign key (org_id, session_id) references session,
    constraint sandbox_ended check ((state = 'ended') = (ended_at is not null))
);
-- A session owns at most one live sandbox.
create unique index sandbox_live on sandbox (org_id, session_id) where state <> 'ended';
call sojourn_protect('sandbox');
