-- Deleted destinations are not read by appends, and are deleted when no delivery refers to them any more.
set local lock_timeout = '2s';

-- The destinations of a session and the webhooks of its organization, read by each append. Takes the place of
-- `destination_of_session`, which the previous version uses.
create index destination_present on destination (org_id, session_id) where deleted_at is null;
create index destination_deleted on destination (deleted_at) where deleted_at is not null;
