-- The lease that a session was closed under, if there was one: what its worker had begun
-- is paid for after that too, and by no other worker.
alter table session add column closed_epoch bigint;
