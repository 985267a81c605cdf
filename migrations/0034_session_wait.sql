-- The child sessions that the running turn of a session waits for without a worker; null if it waits for none. The end
-- of a child's turn makes the job of its parent ready if the child is among them.
set local lock_timeout = '2s';

alter table session add column waits_for uuid[];
