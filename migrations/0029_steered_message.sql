-- Messages that a running turn read: when, and which turn. The message itself names the turn that it was queued for.
set local lock_timeout = '2s';

create table steered_message (
    org_id uuid not null,
    session_id uuid not null,
    -- The seq of `user.message`.
    seq bigint not null,
    -- The turn that read it.
    turn_id uuid not null,
    -- The time of its `turn.steered`.
    ts timestamptz not null,
    constraint steered_message_pkey primary key (org_id, session_id, seq)
);
call sojourn_protect('steered_message');

-- The seq of the newest message that steers the running turn. A turn ends as completed only if it has read the log up to
-- there: its append compares this column under the row's lock.
alter table session add column steer_head bigint not null default 0;
