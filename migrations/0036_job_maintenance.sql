-- no-transaction
-- Jobs of idle sandboxes and of archived sessions that no worker holds, by the time at which they are due. They are
-- claimed apart from turns and operations: a worker that has no place for another turn still freezes and removes
-- sandboxes, whose reservations others may be waiting for. By node, because a worker reads those of its own nodes.
create index concurrently job_maintenance on job (node_id, ready_at) where worker_id is null and kind in ('cleanup', 'idle');
