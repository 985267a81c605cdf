-- A sandbox that nobody needs is frozen, then saved and removed: a session may sleep for a
-- month at the price of a row and a file.

-- `frozen` stands still and wakes where it was. `ending` is being removed: whoever finds
-- it so finishes that and never uses it, because its files are saved already.
alter table sandbox drop constraint sandbox_state;
alter table sandbox
    add constraint sandbox_state check (state in ('live', 'frozen', 'ending', 'ended')),
    -- Why it is ending, for the one who says so.
    add column ending text,
    -- The checkpoint that has all its files, as long as nothing has run since.
    add column checkpoint_id uuid,
    -- When a caller or a command last had use of it; turns have their own times.
    add column used_at timestamptz not null default now(),
    -- When it must be replaced by another, and from when on that may be done while
    -- nothing is in the middle of anything; null for never.
    add column expires_at timestamptz,
    add column rotates_at timestamptz,
    -- When a caller last asked for it to be kept, and when the log last said so.
    add column heartbeat_at timestamptz,
    add column heartbeat_said_at timestamptz,
    add constraint sandbox_ending check (state <> 'ending' or ending is not null),
    add constraint sandbox_checkpoint check (checkpoint_id is null or state <> 'live');
-- The last sandboxes of a session: whose disk a new one may go on with.
create index sandbox_of_session on sandbox (org_id, session_id, sandbox_id);

-- The files of a session as they were, in the blob store under their digest.
create table checkpoint (
    org_id uuid not null,
    session_id uuid not null,
    checkpoint_id uuid not null,
    sandbox_id uuid not null,
    digest text not null,
    bytes bigint not null,
    created_at timestamptz not null default now(),
    primary key (org_id, session_id, checkpoint_id),
    constraint checkpoint_session foreign key (org_id, session_id) references session
);
call sojourn_protect('checkpoint');

-- `rest` looks after a sandbox that no turn uses: freezes, saves, removes it, each at its
-- time. It belongs to the sandbox's node for good: another could only find the sandbox missing.
alter table job drop constraint job_kind;
alter table job add constraint job_kind check (kind in ('turn', 'cleanup', 'rest'));
