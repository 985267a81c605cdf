-- What callers ask of a session's sandbox themselves: commands, files. Served by whoever
-- holds the session's lease; the row is the request and, later, the answer.
create table operation (
    org_id uuid not null,
    session_id uuid not null,
    operation_id uuid not null,
    request json not null,
    -- Who asked, for the log.
    actor json not null,
    -- The sandbox in which it began, before it does: should that be lost, nobody knows
    -- what became of it.
    sandbox_id uuid,
    answer json,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    completed_at timestamptz,
    primary key (org_id, session_id, operation_id),
    constraint operation_session foreign key (org_id, session_id) references session,
    constraint operation_answered check ((answer is null) = (completed_at is null))
);
create index operation_open on operation (org_id, session_id) where completed_at is null;
create index operation_completed on operation (completed_at) where completed_at is not null;
call sojourn_protect('operation');

-- How many there have been: a holder that sees another number looks at the table.
alter table session add column operations integer not null default 0;

-- `operate` serves them while no turn does.
alter table job drop constraint job_kind;
alter table job add constraint job_kind check (kind in ('turn', 'cleanup', 'rest', 'operate'));
