-- Timers that an agent sets for itself: at that time a message wakes its session. One
-- for each call, so a call that is made again after a crash sets no second one.
create table scheduled_wake (
    org_id uuid not null,
    session_id uuid not null,
    call_id text not null,
    fire_at timestamptz not null,
    -- What the agent wants to be told then.
    note text not null,
    -- Null while it is pending. The row stays, or a late repeat of its call would set it anew.
    fired_at timestamptz,
    created_at timestamptz not null default now(),
    primary key (org_id, session_id, call_id),
    constraint scheduled_wake_session foreign key (org_id, session_id) references session on delete cascade
);
create index scheduled_wake_due on scheduled_wake (fire_at) where fired_at is null;
call sojourn_protect('scheduled_wake');
