-- What an organization and its agents may spend, and what is promised to calls that
-- are under way.

alter table billing
    -- Micro-USD that are left; null is without a bound. May fall below zero by what a
    -- call cost beyond its estimate.
    add column balance_micros bigint,
    -- Caps over trailing days in micro-USD: {"days_1", "days_7", "days_28"}.
    add column spend_caps json not null default '{}';
alter table agent
    add column spend_caps json not null default '{}',
    -- No turn of an agent starts that is not.
    add column enabled boolean not null default true;

-- The most that a model call under way may cost. It counts as long as the lease under
-- which it was made holds, by the clock of the database: a worker that dies takes its
-- promise with it. The call's own append removes it together with adding the cost.
create table reservation (
    org_id uuid not null,
    session_id uuid not null,
    agent_id uuid not null,
    epoch bigint not null,
    micros bigint not null constraint reservation_micros check (micros >= 0),
    primary key (org_id, session_id),
    constraint reservation_session foreign key (org_id, session_id) references session on delete cascade
) with (fillfactor = 70);
call sojourn_protect('reservation');
