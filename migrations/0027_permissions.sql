-- Permissions: rules of an agent for its calls, and confirmations of calls.
set local lock_timeout = '2s';

-- The rules of a revision.
alter table revision add column permissions json;

-- A person must confirm a call.
alter table action drop constraint action_kind;
alter table action add constraint action_kind check (kind in ('tool_result', 'confirmation')) not valid;
-- A granted rule allowed it, or it was rejected with another one.
alter table action drop constraint action_outcome;
alter table action add constraint action_outcome
    check (outcome in ('answered', 'expired', 'withdrawn', 'allowed', 'rejected')) not valid;
