-- Root file systems that environments name, and how far each is on each node. What is there
-- is on the node's disk; a row asks for it and tells of it. They belong to no organization: what is
-- made of the same is the same for all.

create table rootfs (
    node_id uuid not null,
    -- SHA-256 of what it is made of.
    rootfs_key text not null,
    -- Image and packages.
    made_of json not null,
    state text not null default 'wanted'
        constraint rootfs_state check (state in ('wanted', 'building', 'ready', 'failed')),
    -- The organization that asked first: what waits for one of them is bounded.
    wanted_by uuid not null,
    -- The end of what its makers said, and why it failed.
    log text not null default '',
    error text,
    wanted_at timestamptz not null default now(),
    started_at timestamptz,
    completed_at timestamptz,
    primary key (node_id, rootfs_key)
);
-- What a node is to make.
create index rootfs_open on rootfs (node_id, wanted_at) where state in ('wanted', 'building');
-- How far those are that an environment names.
create index rootfs_of_key on rootfs (rootfs_key);
