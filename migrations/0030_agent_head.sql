-- The seq of the newest event that changed the agent which a session pins; 0 while it is as it was created. A turn
-- starts only with the agent that its worker read: its append compares this column under the row's lock.
set local lock_timeout = '2s';

alter table session add column agent_head bigint not null default 0;
