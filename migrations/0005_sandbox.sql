-- Work and where it runs: jobs, nodes, sandboxes, checkpoints, operations, root file systems.
-- The tables are the truth; a notification only makes a process read them sooner.

-- A node: a machine with sandboxes, which only its own processes can reach. Belongs to no
-- organization.
create table node (
    node_id uuid not null,
    -- The last heartbeat.
    seen_at timestamptz not null default now(),
    -- How long after the last heartbeat a sandbox of the node may still run. A takeover on another
    -- node waits for that, so that two sandboxes of one session never run at the same time.
    orphan_timeout interval not null default '1 hour',
    constraint node_pkey primary key (node_id)
);

-- Work that a session needs, at most one row of each kind.
--
-- `turn` runs pending input. `cleanup` removes the sandbox of an archived session. `idle` freezes,
-- checkpoints and removes a sandbox that no turn uses, each after its time. `operation` serves
-- callers' operations while no turn does. A row of kind `idle` stays with the sandbox's node even
-- when that node is silent: another one could only find the sandbox missing.
create table job (
    org_id uuid not null,
    -- No foreign key: see `turn`.
    session_id uuid not null,
    kind text not null constraint job_kind check (kind in ('turn', 'cleanup', 'idle', 'operation')),
    -- The earliest time of a claim. For a held job the end of its lease, so the ordinary claim takes
    -- over expired leases.
    ready_at timestamptz not null,
    -- The process that holds the job; null when none does.
    worker_id uuid,
    -- The only node that can reach the session's sandbox; null for any.
    node_id uuid,
    -- Claims after an expired lease since the job was last done.
    takeovers integer not null default 0,
    created_at timestamptz not null default now(),
    constraint job_pkey primary key (org_id, session_id, kind)
) with (fillfactor = 70);
-- A claim visits organizations in turn and takes the oldest ready jobs of each, so that the backlog
-- of one does not delay another beyond its fair share.
create index job_org on job (org_id, ready_at);
-- Held jobs of an organization, for its concurrency.
create index job_held on job (org_id) where worker_id is not null;
-- Jobs of a process, which renews or releases them.
create index job_worker on job (worker_id) where worker_id is not null;
call sojourn_protect('job');

-- A sandbox. The row is written before the sandbox is created, so the reaper removes every sandbox
-- of a provider that has no row.
create table sandbox (
    org_id uuid not null,
    sandbox_id uuid not null,
    session_id uuid not null,
    node_id uuid not null,
    -- `frozen`: its processes are stopped in memory. `ending`: it is being removed. A worker that
    -- finds it in this state completes the removal and never uses it, because its files are in a
    -- checkpoint already.
    state text not null constraint sandbox_state check (state in ('live', 'frozen', 'ending', 'ended')),
    -- Why it is being removed.
    ending text,
    -- Whether the log contains its creation. A worker can die between the creation and the event.
    -- No command runs in a sandbox that the log does not contain, so a takeover can distinguish a
    -- call that cannot have begun from one with an unknown outcome.
    is_announced boolean not null default false,
    -- The checkpoint with all of its files, as long as nothing ran since.
    checkpoint_id uuid,
    created_at timestamptz not null default now(),
    -- The last use by a caller or a command; turns have their own times.
    used_at timestamptz not null default now(),
    -- The last heartbeat of a caller, which keeps the sandbox, and the last one that is in the log.
    heartbeat_at timestamptz,
    heartbeat_logged_at timestamptz,
    -- From when its time does not count, because the session is paused.
    paused_at timestamptz,
    -- When it may be replaced by a new one while no work is in progress, and when it must be; null
    -- for never.
    rotates_at timestamptz,
    expires_at timestamptz,
    ended_at timestamptz,
    constraint sandbox_pkey primary key (org_id, sandbox_id),
    constraint sandbox_session foreign key (org_id, session_id) references session,
    constraint sandbox_ending check (state <> 'ending' or ending is not null),
    constraint sandbox_ended check ((state = 'ended') = (ended_at is not null)),
    constraint sandbox_checkpoint check (checkpoint_id is null or state <> 'live')
);
-- A session has at most one sandbox that has not ended.
create unique index sandbox_live on sandbox (org_id, session_id) where state <> 'ended';
-- The last sandboxes of a session, whose disk a new one may continue to use.
create index sandbox_of_session on sandbox (org_id, session_id, sandbox_id);
-- A node reads its sandboxes at each heartbeat.
create index sandbox_of_node on sandbox (node_id) where state <> 'ended';
call sojourn_protect('sandbox');

-- The files of a session at one time. The archive is in the blob store under its digest.
create table checkpoint (
    org_id uuid not null,
    session_id uuid not null,
    checkpoint_id uuid not null,
    sandbox_id uuid not null,
    digest text not null,
    bytes bigint not null,
    -- Requested by a caller: retained longer than the automatic ones.
    is_retained boolean not null default false,
    created_at timestamptz not null default now(),
    -- When a caller last restored it; it counts as the newest from then on.
    restored_at timestamptz,
    constraint checkpoint_pkey primary key (org_id, session_id, checkpoint_id),
    constraint checkpoint_session foreign key (org_id, session_id) references session
);
call sojourn_protect('checkpoint');

-- A caller's request on the sandbox: a command, a file, an archive, a checkpoint. The holder of the
-- session's lease serves it; the row is the request and later the answer.
create table operation (
    org_id uuid not null,
    session_id uuid not null,
    operation_id uuid not null,
    request json not null,
    -- The caller, for the log.
    actor json not null,
    -- The sandbox in which it runs, written before it begins. If that sandbox is lost, the outcome
    -- is unknown.
    sandbox_id uuid,
    answer json,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    completed_at timestamptz,
    constraint operation_pkey primary key (org_id, session_id, operation_id),
    constraint operation_session foreign key (org_id, session_id) references session,
    constraint operation_answered check ((answer is null) = (completed_at is null))
);
-- Open operations of a session, for the holder of its lease.
create index operation_open on operation (org_id, session_id) where completed_at is null;
-- Completed operations expire after a day.
create index operation_completed on operation (completed_at) where completed_at is not null;
call sojourn_protect('operation');

-- A piece of the output of a running command, written by the holder of the lease and read by the
-- processes that stream it. The answer of a completed command contains the whole output, and then
-- these rows are deleted.
create table exec_output (
    org_id uuid not null,
    session_id uuid not null,
    operation_id uuid not null,
    stream text not null,
    -- Bytes of text before this piece.
    position bigint not null,
    content text not null,
    -- Bytes of raw output up to the end of this piece. It differs from the length of the text,
    -- because invalid UTF-8 is replaced by a longer character.
    raw_end bigint not null,
    constraint exec_output_pkey primary key (org_id, session_id, operation_id, stream, position),
    constraint exec_output_operation foreign key (org_id, session_id, operation_id)
        references operation on delete cascade,
    constraint exec_output_stream check (stream in ('stdout', 'stderr'))
);
call sojourn_protect('exec_output');

-- A root file system that environments name, on one node; the files are on the node's disk.
-- Belongs to no organization: the same image and packages give the same files for all.
create table rootfs (
    node_id uuid not null,
    -- SHA-256 of the specification.
    rootfs_key text not null,
    -- Image and packages.
    spec json not null,
    state text not null default 'requested'
        constraint rootfs_state check (state in ('requested', 'building', 'ready', 'failed')),
    -- The organization that requested it first. Unfinished builds of one organization are bounded.
    requested_by uuid not null,
    -- The end of the build's output, and why it failed.
    log text not null default '',
    error text,
    -- The last request. Builds that have not been requested for a long time are removed.
    requested_at timestamptz not null default now(),
    started_at timestamptz,
    completed_at timestamptz,
    constraint rootfs_pkey primary key (node_id, rootfs_key)
);
-- Builds that a node has to do, in the order of their requests.
create index rootfs_unfinished on rootfs (node_id, requested_at) where state in ('requested', 'building');
-- The state on all nodes of the root file systems that an environment names.
create index rootfs_of_key on rootfs (rootfs_key);
