-- The size of a root file system with packages: what the organization that had it built takes of the node's disk is
-- bounded in bytes. Null for one without packages, which all organizations share; while the node does not have it; and if an
-- earlier version built it.
set local lock_timeout = '2s';

alter table rootfs
    add column bytes bigint
        constraint rootfs_bytes check (bytes >= 0);
