-- Whether the log says that the box is there. A worker can die between the two, and
-- no command may run in a box that the log does not know: it is how a takeover tells
-- a call that cannot have begun from one whose outcome nobody knows.
alter table sandbox add column is_announced boolean not null default false;
update sandbox set is_announced = true;
