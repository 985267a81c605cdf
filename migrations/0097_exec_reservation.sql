-- The most that a command under way may cost, as `reservation` has it of model calls: of
-- commands a session may run several at a time. It counts as long as the lease under
-- which it was promised holds, and goes after the cost is written.
create table exec_reservation (
    org_id uuid not null,
    session_id uuid not null,
    -- Of a tool call, or the id of a caller's command.
    call_id text not null,
    -- Null in a session without an agent.
    agent_id uuid,
    epoch bigint not null,
    micros bigint not null constraint exec_reservation_micros check (micros >= 0),
    primary key (org_id, session_id, call_id),
    constraint exec_reservation_session foreign key (org_id, session_id) references session on delete cascade
);
call sojourn_protect('exec_reservation');

-- What was said of a cap, so that of all sessions that come close to it one says so.
create table spend_said (
    org_id uuid not null references org on delete cascade,
    -- Nil for a cap of the organization.
    agent_id uuid not null,
    what text not null constraint spend_said_what check (what in ('warning', 'exceeded')),
    -- As in `organization_spend_1d`.
    cap text not null,
    allowed bigint not null,
    said_at timestamptz not null default now(),
    primary key (org_id, agent_id, what, cap)
);
call sojourn_protect('spend_said');
