-- Sessions and their logs. The event table is the truth; `session` and `turn` are its fold, written
-- by the statement that appends the events.

-- A session. No foreign key to `org`: that row is never deleted, and the check would lock it
-- together with all other creations under way.
create table session (
    org_id uuid not null,
    session_id uuid not null,
    -- Names. `key` is the caller's and stays with the session; `slug` is for people and belongs to
    -- one open session at a time.
    key text,
    slug text,
    client_id text,
    title text,
    metadata json not null,
    -- The origin: `source` as in the API, `actor` of the first event.
    source text not null,
    actor json,
    -- The session that started this one; usage here counts against its limits. No foreign key: a
    -- closed child session outlives a deleted parent.
    parent_session_id uuid,
    -- The pinned configuration, as in `session.created`. `snapshot_id` is of a row of
    -- `agent_snapshot`, without a foreign key: that row is never deleted before the sessions of its
    -- organization.
    agent_id uuid,
    credential_id uuid,
    snapshot_id uuid,
    -- Null where the defaults apply.
    environment json,
    -- Null where nothing is cloned.
    sources json,
    limits json not null,
    status text not null constraint session_status
        check (status in ('queued', 'running', 'awaiting_input', 'idle', 'failed', 'archived')),
    -- Why a caller holds the session, if one does.
    hold text constraint session_hold check (hold in ('paused', 'stopped', 'canceled')),
    -- The last cancel or archive by a caller.
    stopped_by json,
    stopped_at timestamptz,
    stop_reason text,
    -- The working directory and variables that commands start with, and the callers' own state; null
    -- when there is nothing in it.
    context json,
    -- The seq of the newest event, of the newest input, and of the newest input that a turn read.
    head bigint not null,
    input_head bigint not null,
    input_cursor bigint not null,
    running_turn_id uuid,
    queued_turn_id uuid,
    cancel_turn_id uuid,
    ended_turn_id uuid,
    -- The number of the lease. Each claim increases it, and a write that names an older one is
    -- refused.
    epoch bigint not null default 0,
    -- The lease under which the session was closed. Costs of work that its worker had begun are
    -- still added afterwards, and only under this lease.
    closed_epoch bigint,
    -- Operations that callers requested so far. A worker that sees another number than before reads
    -- the table `operation`.
    operations integer not null default 0,
    -- Usage. `duration_seconds` limits `active_seconds`, the time in which turns were worked on, and
    -- `exec_ms`, the time in which callers' commands ran. `unpriced_steps` counts the model calls that no price list knew: a cost with such a
    -- part is reported as null, never as too little. Costs are in micro-USD.
    turns bigint not null default 0,
    active_seconds bigint not null default 0,
    exec_ms bigint not null default 0,
    steps bigint not null default 0,
    unpriced_steps bigint not null default 0,
    tool_calls bigint not null default 0,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    cache_read_tokens bigint not null default 0,
    model_micros bigint not null default 0,
    sandbox_cpu_micros bigint not null default 0,
    sandbox_memory_micros bigint not null default 0,
    fee_micros bigint not null default 0,
    -- Usage of child sessions that were deleted since, so that a deletion frees no budget.
    deleted_tokens bigint not null default 0,
    deleted_cost_micros bigint not null default 0,
    deleted_tool_calls bigint not null default 0,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    -- The transaction that last changed status, turns, title, metadata or limits: what a list of
    -- sessions shows. A reader of changes compares it with snapshots, which state exactly the
    -- transactions that they saw. Times and sequences of two transactions can become visible in the
    -- other order, and a reader would skip one.
    listed_in xid8 not null default pg_current_xact_id(),
    constraint session_pkey primary key (org_id, session_id),
    constraint session_input_cursor check (input_cursor <= input_head and input_head <= head),
    constraint session_running_turn check ((status = 'running') = (running_turn_id is not null)),
    constraint session_queued_turn check (status not in ('idle', 'archived') or queued_turn_id is null),
    constraint session_stopped check ((stopped_by is null) = (stopped_at is null))
-- Every append updates this row. A tenth of a page has space for more than one row, so most of the
-- updates stay in their page. For the same reason no index contains a column that every append
-- changes.
) with (fillfactor = 90);
create unique index session_key on session (org_id, key) where key is not null;
-- A closed session releases its slug.
create unique index session_slug on session (org_id, slug) where slug is not null and status <> 'archived';
-- A repeated archiving by slug finds the session that it archived.
create index session_slug_archived on session (org_id, slug, session_id)
    where slug is not null and status = 'archived';
-- The newest session of a client.
create index session_client on session (org_id, client_id, session_id) where client_id is not null;
-- Lists by agent; the primary key is already in the order of creation.
create index session_agent on session (org_id, agent_id, session_id);
-- Lists by parent, and the tree below a session.
create index session_parent on session (org_id, parent_session_id, session_id)
    where parent_session_id is not null;
-- Lists that follow changes. Not every append changes `listed_in`.
create index session_listed on session (org_id, listed_in, session_id);
call sojourn_protect('session');

-- A deleted session, for readers of a list that still show it; `removed_in` is read like
-- `session.listed_in`.
create table removal (
    org_id uuid not null,
    removed_in xid8 not null default pg_current_xact_id(),
    session_id uuid not null,
    constraint removal_pkey primary key (org_id, removed_in, session_id)
);
comment on table removal is 'outlives its session';
call sojourn_protect('removal');

-- A turn.
--
-- No foreign key to the session, here and in `client_token` and `job`: whoever inserts a row has
-- locked or created the session's row in the same transaction, and a deletion locks that row first,
-- so no row is written for a session that is gone. The check took 9 % of the processor time of a
-- creation, and 30 % before the first analyze of the tables, when it read every session of the
-- organization.
create table turn (
    org_id uuid not null,
    session_id uuid not null,
    turn_id uuid not null,
    state text not null constraint turn_state check (state in ('queued', 'running', 'ok', 'error')),
    attempt integer not null,
    input_from_seq bigint not null,
    input_to_seq bigint not null,
    started_at timestamptz,
    completed_at timestamptz,
    yield_reason text,
    result_event_id uuid,
    error_code text,
    error_message text,
    -- Usage, as in `session`.
    active_seconds bigint not null default 0,
    steps bigint not null default 0,
    unpriced_steps bigint not null default 0,
    tool_calls bigint not null default 0,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    cache_read_tokens bigint not null default 0,
    model_micros bigint not null default 0,
    sandbox_cpu_micros bigint not null default 0,
    sandbox_memory_micros bigint not null default 0,
    fee_micros bigint not null default 0,
    constraint turn_pkey primary key (org_id, session_id, turn_id),
    constraint turn_completed check ((state in ('ok', 'error')) = (completed_at is not null and yield_reason is not null))
-- Pages are filled: a row has few updates, and its first and last one change the index below, so
-- free space would not keep them in their page.
);
-- Unfinished turns, read every few seconds to find those that have no job. The index is on the turn
-- and not on the session's status: every append updates the session's row, and an index on its
-- status would keep those updates from staying in their page.
create index turn_live on turn (org_id, session_id) where state in ('queued', 'running');
call sojourn_protect('turn');

-- An event of a session's log. Append-only: the roles of the service lose the rights to change one,
-- and a row is deleted only with its session (`sojourn_purge`). `json`, not `jsonb`: blocks of a
-- provider are sent back byte for byte, and nothing searches inside a body. Partitioned by
-- organization, so that no index grows with the whole service.
create table event (
    org_id uuid not null,
    session_id uuid not null,
    seq bigint not null constraint event_seq check (seq > 0),
    event_id uuid not null,
    ts timestamptz not null,
    type text not null,
    -- 1 user, 2 progress, 3 internal; a reader sees the levels up to its own.
    level smallint not null,
    actor json not null,
    turn_id uuid,
    step_id uuid,
    refs json,
    body json not null,
    -- The blob with the whole body, when the body in this row is cut.
    content_ref text,
    body_bytes integer not null,
    constraint event_pkey primary key (org_id, session_id, seq)
) partition by hash (org_id);
call sojourn_protect('event');
do $$
begin
    for remainder in 0..15 loop
        execute format('create table event_%s partition of event for values with (modulus 16, remainder %s)',
            lpad(remainder::text, 2, '0'), remainder);
        execute format('call sojourn_protect(%L)', 'event_' || lpad(remainder::text, 2, '0'));
    end loop;
end
$$;

-- A short-lived token for one session, as a browser has one. The token itself is not stored.
-- The primary key also finds the tokens of a session. No foreign key: see `turn`.
create table client_token (
    org_id uuid not null,
    session_id uuid not null,
    -- HMAC-SHA256 of the token under the deployment's pepper.
    hash bytea not null,
    scopes text[] not null,
    level smallint not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    constraint client_token_pkey primary key (org_id, session_id, hash)
);
-- Authentication finds the organization by the token, as for an API key.
create unique index client_token_hash on client_token (hash);
call sojourn_protect('client_token');

-- The answer to a request with an idempotency key, written in the transaction of its effect: both
-- exist or neither. No foreign key to `org`, as for `session`.
create table idempotency (
    org_id uuid not null,
    -- `header` for an `Idempotency-Key`, `session` for the key of a session, `steer/<session>` for
    -- the key of a message.
    scope text not null,
    key text not null,
    -- SHA-256 of method, path and body: the same key with another request is an error.
    fingerprint bytea not null,
    status smallint,
    -- Sealed with the organization's data key, because an answer can contain a secret that is shown
    -- once.
    answer bytea,
    created_at timestamptz not null default now(),
    constraint idempotency_pkey primary key (org_id, scope, key),
    constraint idempotency_answered check ((status is null) = (answer is null))
);
-- Only answers to an `Idempotency-Key` expire, after a day. The key of a session or of a message
-- stays: without it a late repeat would create a second one.
create index idempotency_header_age on idempotency (created_at) where scope = 'header';
call sojourn_protect('idempotency');
