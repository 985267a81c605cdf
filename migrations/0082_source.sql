-- Repositories that are cloned into a session's sandbox.

-- What is cloned for the sessions of an agent, as its owner wrote it.
alter table agent add column sources json not null default '[]';
-- What the session pinned, as in session.created; null where nothing is cloned.
alter table session add column sources json;
