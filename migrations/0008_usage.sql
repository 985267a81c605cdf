-- Usage and what bounds it: sums by session and by hour, reservations of calls under way, notices
-- that were sent. Costs are in micro-USD. The statement that appends events also adds to the sums.

-- Usage of a session by model. Its only writer is the holder of the session's lease, so the row is
-- never contended.
create table session_model (
    org_id uuid not null,
    session_id uuid not null,
    -- `provider/model`; empty for usage of a session without an agent.
    model text not null,
    steps bigint not null,
    unpriced_steps bigint not null,
    tool_calls bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    model_micros bigint not null,
    sandbox_cpu_micros bigint not null,
    sandbox_memory_micros bigint not null,
    fee_micros bigint not null,
    constraint session_model_pkey primary key (org_id, session_id, model),
    constraint session_model_session foreign key (org_id, session_id) references session on delete cascade
) with (fillfactor = 70);
call sojourn_protect('session_model');

-- Usage of an organization by hour, agent and model, for bills and caps. It stays when sessions are
-- deleted. By hour and not by day, so that the trailing day of a cap ends at an hour and not at
-- midnight.
create table usage_hour (
    org_id uuid not null,
    -- The start of the hour in UTC.
    hour timestamptz not null constraint usage_hour_start check (hour = date_trunc('hour', hour, 'UTC')),
    -- Nil for sessions without an agent.
    agent_id uuid not null,
    -- Empty for sessions without an agent.
    model text not null,
    -- Every step of an organization's sessions adds here. Each connection adds to one of 8 rows of an
    -- hour, agent and model, so two connections seldom wait for each other. Once nothing is added any
    -- more, housekeeping adds up the rows in shard 0.
    shard smallint not null constraint usage_hour_shard check (shard between 0 and 7),
    steps bigint not null,
    unpriced_steps bigint not null,
    tool_calls bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    model_micros bigint not null,
    sandbox_cpu_micros bigint not null,
    sandbox_memory_micros bigint not null,
    fee_micros bigint not null,
    constraint usage_hour_pkey primary key (org_id, hour, agent_id, model, shard),
    constraint usage_hour_org foreign key (org_id) references org on delete cascade
) with (fillfactor = 70);
-- Rows that housekeeping has to add up.
create index usage_hour_sharded on usage_hour (hour) where shard <> 0;
call sojourn_protect('usage_hour');

-- The amount reserved for a model call under way: the most that it may cost. It counts as long as
-- the lease of its epoch holds, by the clock of the database, so the reservation of a dead worker
-- expires with its lease. The append with the result of the call deletes the row and adds the cost.
create table reservation (
    org_id uuid not null,
    session_id uuid not null,
    agent_id uuid not null,
    epoch bigint not null,
    micros bigint not null constraint reservation_micros check (micros >= 0),
    -- Limits on tokens also apply to models without a price.
    tokens bigint not null default 0 constraint reservation_tokens check (tokens >= 0),
    constraint reservation_pkey primary key (org_id, session_id),
    constraint reservation_session foreign key (org_id, session_id) references session on delete cascade
) with (fillfactor = 70);
call sojourn_protect('reservation');

-- The amount reserved for a command under way. As `reservation`, but a session may run several
-- commands at a time, and the row is deleted after the cost is written.
create table exec_reservation (
    org_id uuid not null,
    session_id uuid not null,
    -- The id of a tool call, or of a caller's operation.
    call_id text not null,
    -- Null in a session without an agent.
    agent_id uuid,
    epoch bigint not null,
    micros bigint not null constraint exec_reservation_micros check (micros >= 0),
    constraint exec_reservation_pkey primary key (org_id, session_id, call_id),
    constraint exec_reservation_session foreign key (org_id, session_id) references session on delete cascade
);
call sojourn_protect('exec_reservation');

-- The last notice about a spend cap, so that only one of the sessions that reach it reports it.
create table spend_notice (
    org_id uuid not null,
    -- Nil for a cap of the organization.
    agent_id uuid not null,
    kind text not null constraint spend_notice_kind check (kind in ('warning', 'exceeded')),
    -- As in `organization_spend_1d`.
    cap text not null,
    -- The value of the cap; another value is reported again.
    allowed bigint not null,
    sent_at timestamptz not null default now(),
    constraint spend_notice_pkey primary key (org_id, agent_id, kind, cap),
    constraint spend_notice_org foreign key (org_id) references org on delete cascade
);
call sojourn_protect('spend_notice');

-- The last warning about a limit of a session by the sessions below it, so that only the first of
-- them that comes close reports it.
create table limit_notice (
    org_id uuid not null,
    session_id uuid not null,
    -- As in `cost_micros`.
    name text not null,
    -- The value of the limit; another value is reported again.
    allowed bigint not null,
    constraint limit_notice_pkey primary key (org_id, session_id, name),
    constraint limit_notice_session foreign key (org_id, session_id) references session on delete cascade
);
call sojourn_protect('limit_notice');
