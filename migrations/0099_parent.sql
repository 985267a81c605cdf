-- The session under which another was started: what the one below uses counts against the
-- limits of those above.
alter table session
    -- Of this organization. No foreign key: a closed child outlives a parent that is deleted.
    add column parent_session_id uuid,
    -- What sessions below used that were deleted since, so that deleting one gives nothing
    -- back: tokens, micro-USD and tool calls.
    add column deleted_tokens bigint not null default 0,
    add column deleted_cost_micros bigint not null default 0,
    add column deleted_tool_calls bigint not null default 0;
create index session_parent on session (org_id, parent_session_id, session_id)
    where parent_session_id is not null;

-- Tokens count against limits too, of calls whose model has no price.
alter table reservation add column tokens bigint not null default 0
    constraint reservation_tokens check (tokens >= 0);

-- Which limits of a session were warned of by sessions below it, so that of all that come
-- close to one the first says so.
create table limit_said (
    org_id uuid not null,
    session_id uuid not null,
    -- As in `cost_micros`.
    name text not null,
    allowed bigint not null,
    primary key (org_id, session_id, name),
    constraint limit_said_session foreign key (org_id, session_id) references session on delete cascade
);
call sojourn_protect('limit_said');
