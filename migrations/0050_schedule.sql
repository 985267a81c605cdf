-- What an agent does at stated times: a session of its own for each slot, or a message
-- to a session that is there.

create table schedule (
    org_id uuid not null references org,
    schedule_id uuid not null,
    agent_id uuid not null,
    -- Five fields, read in the time zone (IANA).
    cron text not null,
    time_zone text not null,
    -- What each run is told: text, or an object.
    input json not null,
    -- What becomes of a slot while the run before goes on.
    overlap text not null constraint schedule_overlap check (overlap in ('skip', 'allow')),
    enabled boolean not null,
    -- The session that it wakes; null where each slot gets one of its own. No foreign
    -- key: a schedule outlives the session and fails until it is changed.
    session_id uuid,
    -- What its sessions are made of: title, metadata, limits, environment.
    session_template json,
    -- The next slot that nobody has fired, by the clock of the database.
    next_fire_at timestamptz,
    -- Runs that failed since the last one that did not.
    consecutive_failures integer not null default 0,
    -- Why the service turned it off; null when its owner did.
    paused_reason text constraint schedule_paused_reason check (paused_reason in ('failing')),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (org_id, schedule_id),
    constraint schedule_agent foreign key (org_id, agent_id) references agent,
    constraint schedule_makes_or_wakes check ((session_id is null) = (session_template is not null)),
    constraint schedule_fires check (next_fire_at is null or enabled),
    constraint schedule_paused check (paused_reason is null or not enabled)
) with (fillfactor = 80);
comment on table schedule is 'outlives its session';
create index schedule_due on schedule (next_fire_at) where next_fire_at is not null;
create index schedule_of_agent on schedule (org_id, agent_id, schedule_id);
call sojourn_protect('schedule');

-- One row for each slot, written in the transaction of its session or message: whoever
-- fires a slot makes it, so a slot is fired once, however many processes look.
create table schedule_run (
    org_id uuid not null,
    run_id uuid not null,
    schedule_id uuid not null,
    -- The time that the run is for; of one that a caller asked for, when they did.
    slot timestamptz not null,
    manual boolean not null,
    state text not null constraint schedule_run_state check (state in ('started', 'completed', 'failed', 'skipped')),
    -- What it started. The session may have been deleted since.
    session_id uuid,
    turn_id uuid,
    error_code text,
    error_message text,
    created_at timestamptz not null default now(),
    primary key (org_id, run_id),
    constraint schedule_run_schedule
        foreign key (org_id, schedule_id) references schedule on delete cascade,
    constraint schedule_run_started
        check (state not in ('started', 'completed') or (session_id is not null and turn_id is not null))
) with (fillfactor = 80);
comment on table schedule_run is 'outlives its session';
create unique index schedule_run_slot on schedule_run (org_id, schedule_id, slot) where not manual;
create index schedule_run_of_schedule on schedule_run (org_id, schedule_id, run_id);
-- Runs whose turn goes on, looked through every second.
create index schedule_run_open on schedule_run (org_id, schedule_id) where state = 'started';
create index schedule_run_age on schedule_run (created_at);
call sojourn_protect('schedule_run');
