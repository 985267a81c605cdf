-- Starts without an API key: schedules, triggers, invoke tokens, scheduled wakes.

-- A schedule of an agent: it creates a session for each slot, or sends a message to one session.
create table schedule (
    org_id uuid not null,
    schedule_id uuid not null,
    agent_id uuid not null,
    -- Five fields, evaluated in the time zone (an IANA name).
    cron text not null,
    time_zone text not null,
    -- The input of each run: text, or an object.
    input json not null,
    -- What happens to a slot while the previous run is in progress.
    overlap text not null constraint schedule_overlap check (overlap in ('skip', 'allow')),
    enabled boolean not null,
    -- Why the service disabled it; null when its owner did.
    paused_reason text constraint schedule_paused_reason check (paused_reason in ('failing')),
    -- The session that it wakes; null where each slot creates one. No foreign key: the schedule
    -- outlives the session, and its runs fail until it is changed.
    session_id uuid,
    -- Title, metadata, limits and environment of the sessions that it creates.
    session_template json,
    -- The next slot that has not fired, by the clock of the database.
    next_fire_at timestamptz,
    -- Failed runs since the last one that did not fail.
    consecutive_failures integer not null default 0,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint schedule_pkey primary key (org_id, schedule_id),
    constraint schedule_org foreign key (org_id) references org,
    constraint schedule_agent foreign key (org_id, agent_id) references agent,
    constraint schedule_target check ((session_id is null) = (session_template is not null)),
    constraint schedule_next_fire check (next_fire_at is null or enabled),
    constraint schedule_paused check (paused_reason is null or not enabled)
) with (fillfactor = 80);
comment on table schedule is 'outlives its session';
-- Schedules that are due, of all organizations.
create index schedule_due on schedule (next_fire_at) where next_fire_at is not null;
create index schedule_of_agent on schedule (org_id, agent_id, schedule_id);
call sojourn_protect('schedule');

-- A run of a schedule: one row for each slot, written in the transaction that creates its session or
-- its message. The unique index on the slot lets one process fire it, however many try.
create table schedule_run (
    org_id uuid not null,
    run_id uuid not null,
    schedule_id uuid not null,
    -- The time that the run is for; for a manual run the time of the request.
    slot timestamptz not null,
    manual boolean not null,
    state text not null
        constraint schedule_run_state check (state in ('started', 'completed', 'failed', 'skipped')),
    -- What it started. The session may have been deleted since.
    session_id uuid,
    turn_id uuid,
    error_code text,
    error_message text,
    created_at timestamptz not null default now(),
    constraint schedule_run_pkey primary key (org_id, run_id),
    constraint schedule_run_schedule foreign key (org_id, schedule_id) references schedule on delete cascade,
    constraint schedule_run_started
        check (state not in ('started', 'completed') or (session_id is not null and turn_id is not null))
) with (fillfactor = 80);
comment on table schedule_run is 'outlives its session';
create unique index schedule_run_slot on schedule_run (org_id, schedule_id, slot) where not manual;
create index schedule_run_of_schedule on schedule_run (org_id, schedule_id, run_id);
-- Runs whose turn is in progress, read every second.
create index schedule_run_open on schedule_run (org_id, schedule_id) where state = 'started';
-- Completed runs are deleted by age.
create index schedule_run_age on schedule_run (created_at);
call sojourn_protect('schedule_run');

-- An inbound webhook that starts a session of an agent. The sender has no API key; it signs its
-- requests with the trigger's secret.
create table trigger (
    org_id uuid not null,
    trigger_id uuid not null,
    agent_id uuid not null,
    kind text not null constraint trigger_kind check (kind in ('generic', 'github')),
    enabled boolean not null,
    -- The events of GitHub that start a session; null for the other kinds.
    filter json,
    -- Title, metadata, limits and environment of the sessions that it creates.
    session_template json not null,
    -- AES-256-GCM under the organization's data key, bound to this row.
    sealed_secret bytea not null,
    -- The previous secret. Its signatures are accepted until this time.
    sealed_secret_before bytea,
    secret_before_until timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint trigger_pkey primary key (org_id, trigger_id),
    constraint trigger_org foreign key (org_id) references org,
    constraint trigger_agent foreign key (org_id, agent_id) references agent,
    constraint trigger_filter check ((kind = 'github') = (filter is not null)),
    constraint trigger_secret_before check ((sealed_secret_before is null) = (secret_before_until is null))
);
-- A request names only the trigger; its organization is found by it.
create unique index trigger_by_id on trigger (trigger_id);
create index trigger_of_agent on trigger (org_id, agent_id, trigger_id);
call sojourn_protect('trigger');

-- A token with which a program that has no API key starts sessions of one agent. The token itself is
-- not stored. A revoked one has no row; the audit log remembers it.
create table invoke_token (
    org_id uuid not null,
    invoke_token_id uuid not null,
    agent_id uuid not null,
    -- HMAC-SHA256 of the token under the deployment's pepper.
    hash bytea not null,
    name text not null,
    -- The last characters of the token, for people.
    hint text not null,
    -- Title, metadata, limits and environment of the sessions that it creates.
    session_template json not null,
    last_used_at timestamptz,
    created_at timestamptz not null default now(),
    constraint invoke_token_pkey primary key (org_id, invoke_token_id),
    constraint invoke_token_org foreign key (org_id) references org,
    constraint invoke_token_agent foreign key (org_id, agent_id) references agent
);
-- Authentication finds the organization and the agent by the token.
create unique index invoke_token_hash on invoke_token (hash);
create index invoke_token_of_agent on invoke_token (org_id, agent_id, invoke_token_id);
call sojourn_protect('invoke_token');

-- A time that an agent set at which a message wakes its session. One row for each tool call, so a
-- call that is repeated after a crash adds no second one.
create table scheduled_wake (
    org_id uuid not null,
    session_id uuid not null,
    call_id text not null,
    fire_at timestamptz not null,
    -- The content of the message.
    note text not null,
    -- Null while pending. The row stays, because a late repeat of its call would add it again.
    fired_at timestamptz,
    created_at timestamptz not null default now(),
    constraint scheduled_wake_pkey primary key (org_id, session_id, call_id),
    constraint scheduled_wake_session foreign key (org_id, session_id) references session on delete cascade
);
-- Wakes that are due, of all organizations.
create index scheduled_wake_due on scheduled_wake (fire_at) where fired_at is null;
call sojourn_protect('scheduled_wake');
