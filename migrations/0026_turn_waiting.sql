-- no-transaction
-- Waiting turns, to count them and to find those that have no job. Apart from `turn_live`, whose condition the previous
-- version relies on.
create index concurrently turn_waiting on turn (org_id, session_id) where state = 'waiting';
