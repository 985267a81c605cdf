-- Admission of sandboxes: the resources that a node has for them, those that are reserved for each, and which
-- sessions wait for capacity.
set local lock_timeout = '2s';

-- Null until a process of this version has said it; a node without is not full.
alter table node
    add column cpu_millis bigint,
    add column memory_bytes bigint,
    add column pids bigint,
    add column disk_bytes bigint,
    -- Whether its disk has less free space than it keeps: then it makes no sandbox, checkpoint or image.
    add column is_disk_low boolean not null default false;

-- What a sandbox may use while it runs; what it used when it was frozen. 0 for one of the previous version.
alter table sandbox
    add column cpu_millis bigint not null default 0,
    add column memory_bytes bigint not null default 0,
    add column pids bigint not null default 0,
    add column disk_bytes bigint not null default 0;

-- A session whose sandbox found no capacity. Its worker asks again every second; a row that is not seen for longer is that
-- of a worker that died, and counts no more.
create table sandbox_wait (
    org_id uuid not null,
    session_id uuid not null,
    node_id uuid not null,
    -- What is missing. A session that waits for its own organization lets others pass.
    shortage text not null,
    since timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    constraint sandbox_wait_pkey primary key (org_id, session_id),
    constraint sandbox_wait_session foreign key (org_id, session_id) references session
);
call sojourn_protect('sandbox_wait');
