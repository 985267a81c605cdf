-- An agent has an environment.
set local lock_timeout = '2s';

-- Environment of the sessions of a revision that name none: id, name or an inline one; null for the default.
alter table revision add column environment json;
