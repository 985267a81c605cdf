-- What a list of sessions shows can be followed: which rows changed since a reader looked.
--
-- By the transaction that made the change, not by a clock or a sequence: those of two
-- transactions can become visible in the other order, and a reader would step over one.
-- A snapshot says exactly which transactions it has seen.

alter table session
    -- The transaction in which status, turns, title, metadata or limits last changed. Not
    -- every append changes one of these, so most updates of the row still happen in place.
    add column listed_in xid8 not null default pg_current_xact_id();
create index session_listed on session (org_id, listed_in, session_id);

-- Sessions that were deleted, for readers who still show them.
create table removal (
    org_id uuid not null,
    removed_in xid8 not null default pg_current_xact_id(),
    session_id uuid not null,
    primary key (org_id, removed_in, session_id)
);
comment on table removal is 'outlives its session';
call sojourn_protect('removal');
