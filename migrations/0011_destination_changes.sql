-- An append reads the destinations of its session as of its start, and then may wait for the session's row
-- while a destination is created. This column tells it that its view is old.
set local lock_timeout = '2s';

-- Number of changes of the session's destinations.
alter table session add column destination_changes integer not null default 0;
