-- no-transaction
-- Archived sessions of an organization by the time of their archiving, for its retention. The predicate contains no
-- column that other indexes do not contain, and no append changes `stopped_at`.
create index concurrently session_archived on session (org_id, stopped_at) where status = 'archived';
