-- The log, and the row that is its fold.

create table session (
    org_id uuid not null references org,
    session_id uuid not null,
    agent_id uuid,
    credential_id uuid,
    agent_snapshot json,
    title text,
    key text,
    client_id text,
    metadata json not null,
    limits json not null,
    source text not null,
    status text not null constraint session_status
        check (status in ('queued', 'running', 'awaiting_input', 'idle', 'failed', 'archived')),
    -- seq of the newest event, of the newest input, of the newest input taken.
    head bigint not null,
    input_head bigint not null,
    input_cursor bigint not null,
    running_turn_id uuid,
    queued_turn_id uuid,
    cancel_turn_id uuid,
    ended_turn_id uuid,
    turns bigint not null default 0,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    cache_read_tokens bigint not null default 0,
    steps bigint not null default 0,
    tool_calls bigint not null default 0,
    -- Raised by every takeover; a write that names an older one is refused.
    epoch bigint not null default 0,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (org_id, session_id),
    constraint session_cursor check (input_cursor <= input_head and input_head <= head),
    constraint session_running check ((status = 'running') = (running_turn_id is not null)),
    constraint session_at_rest check (status not in ('idle', 'archived') or queued_turn_id is null)
) with (fillfactor = 80); -- room for updates in place: this row changes with every append
create unique index session_key on session (org_id, key) where key is not null;
-- Lists by agent; the primary key is already in the order of creation.
create index session_agent on session (org_id, agent_id, session_id);
call sojourn_protect('session');

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
    active_seconds bigint not null default 0,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    cache_read_tokens bigint not null default 0,
    steps bigint not null default 0,
    tool_calls bigint not null default 0,
    primary key (org_id, session_id, turn_id),
    constraint turn_session foreign key (org_id, session_id) references session,
    constraint turn_ended check ((state in ('ok', 'error')) = (completed_at is not null and yield_reason is not null))
) with (fillfactor = 80);
call sojourn_protect('turn');

-- Append-only. `json`, not `jsonb`: a provider's blocks go back byte for byte, and
-- nothing is ever searched inside a body. Partitioned by organization so that no index
-- grows with the whole service; an event is deleted only with its session.
create table event (
    org_id uuid not null,
    session_id uuid not null,
    seq bigint not null constraint event_seq check (seq > 0),
    event_id uuid not null,
    ts timestamptz not null,
    type text not null,
    -- 1 user, 2 progress, 3 internal: a reader sees those up to its own.
    level smallint not null,
    actor json not null,
    turn_id uuid,
    step_id uuid,
    refs json,
    body json not null,
    -- Where the whole body is, when the one in this row was cut.
    content_ref text,
    body_bytes integer not null,
    primary key (org_id, session_id, seq)
) partition by hash (org_id);

do $$
begin
    for remainder in 0..15 loop
        execute format('create table event_%s partition of event for values with (modulus 16, remainder %s)',
            lpad(remainder::text, 2, '0'), remainder);
        execute format('call sojourn_protect(%L)', 'event_' || lpad(remainder::text, 2, '0'));
    end loop;
end
$$;
call sojourn_protect('event');

-- A browser's key to one session: opaque, stored hashed.
create table client_token (
    org_id uuid not null,
    hash bytea not null,
    session_id uuid not null,
    scopes text[] not null,
    level smallint not null,
    expires_at timestamptz not null,
    created_at timestamptz not null default now(),
    primary key (org_id, hash),
    constraint client_token_session foreign key (org_id, session_id) references session
);
-- Found before its organization is known, as an API key is.
create unique index client_token_hash on client_token (hash);
create index client_token_of_session on client_token (org_id, session_id);
call sojourn_protect('client_token');
