-- How long after a node's last sign of life a sandbox of it may still run. A takeover
-- elsewhere waits for that: two sandboxes of one session never run at the same time. The
-- default is that of the binaries that do not say it.
alter table node add column sandboxes_end interval not null default '1 hour';

-- A node looks after its own sandboxes at every beat.
create index sandbox_of_node on sandbox (node_id) where state <> 'ended';
