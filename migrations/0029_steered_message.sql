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

comment on column session.action_head is
    'The seq of the newest event that the running turn must have read before it waits, withdraws actions or ends as completed: the end of an action, or a message that steers it.';
