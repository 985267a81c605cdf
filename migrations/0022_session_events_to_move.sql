-- no-transaction
-- Archived sessions whose events are still rows, by the time of their archiving, for the worker that moves them. No append
-- changes a column of the index or of its predicate.
create index concurrently session_events_to_move on session (stopped_at, org_id, session_id)
    where status = 'archived' and events_moved_at is null;
