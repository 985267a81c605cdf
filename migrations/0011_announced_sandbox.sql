-- Whether the log says that the sandbox is there. A worker can die between the two, and
-- no command may run in a sandbox that the log does not know: it is how a takeover tells
-- a call that cannot have begun from one whose outcome nobody knows.
alter table sandbox add column is_announced boolean not null default false;
-- The owner reads and writes rows of organizations only while it is not held to the policies.
alter table sandbox no force row level security;
update sandbox set is_announced = true;
alter table sandbox force row level security;
