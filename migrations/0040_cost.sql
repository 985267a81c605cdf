-- What the work of a session costs, in micro-USD, beside its tokens.

-- Columns of the fold. `unpriced_steps` counts the model calls that no price list
-- knew: a sum with such a part is told as null, never as too little.
alter table session
    add column model_micros bigint not null default 0,
    add column sandbox_cpu_micros bigint not null default 0,
    add column sandbox_memory_micros bigint not null default 0,
    add column fee_micros bigint not null default 0,
    add column unpriced_steps bigint not null default 0;
alter table turn
    add column model_micros bigint not null default 0,
    add column sandbox_cpu_micros bigint not null default 0,
    add column sandbox_memory_micros bigint not null default 0,
    add column fee_micros bigint not null default 0,
    add column unpriced_steps bigint not null default 0;
-- The steps of before have no price in their events, so the fold counts them all.
-- The owner reads and writes rows of organizations only while it is not held to the policies.
alter table session no force row level security;
alter table turn no force row level security;
update session set unpriced_steps = steps where steps > 0;
update turn set unpriced_steps = steps where steps > 0;
alter table session force row level security;
alter table turn force row level security;

-- What a session used of each model. Written by the statement that writes the events;
-- it has one writer, the session's turn, so it is never waited for.
create table session_model (
    org_id uuid not null,
    session_id uuid not null,
    -- `provider/model`.
    model text not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    steps bigint not null,
    tool_calls bigint not null,
    model_micros bigint not null,
    sandbox_cpu_micros bigint not null,
    sandbox_memory_micros bigint not null,
    fee_micros bigint not null,
    unpriced_steps bigint not null,
    primary key (org_id, session_id, model),
    -- It goes with its session, whoever deletes that.
    constraint session_model_session foreign key (org_id, session_id) references session on delete cascade
) with (fillfactor = 70);
call sojourn_protect('session_model');

-- The same by day, agent and model, for bills and caps; it stays when sessions go.
create table usage_day (
    org_id uuid not null references org on delete cascade,
    -- In UTC.
    day date not null,
    agent_id uuid not null,
    model text not null,
    -- Sessions are spread over a few rows, so that those of one agent, which all
    -- write here with every step, do not stand in line for one.
    shard smallint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    steps bigint not null,
    tool_calls bigint not null,
    model_micros bigint not null,
    sandbox_cpu_micros bigint not null,
    sandbox_memory_micros bigint not null,
    fee_micros bigint not null,
    unpriced_steps bigint not null,
    primary key (org_id, day, agent_id, model, shard)
) with (fillfactor = 70);
call sojourn_protect('usage_day');

-- What the operator agreed with an organization; no row is the default for all of it.
create table billing (
    org_id uuid primary key references org on delete cascade,
    -- A price list in front of the bundled one.
    prices json,
    updated_at timestamptz not null default now()
);
call sojourn_protect('billing');
