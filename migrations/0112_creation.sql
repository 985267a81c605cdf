-- What each creation of a session paid for and nobody needs.

-- The row of an organization is never deleted, so a look whether it is there always finds
-- it, and each look locked it together with all other creations under way.
alter table session drop constraint session_org_id_fkey;
alter table idempotency drop constraint idempotency_org_id_fkey;

-- A token is found by its hash, whoever's it is, or with all of its session: the second is
-- the primary key now, and one index less to write.
alter table client_token
    drop constraint client_token_pkey,
    add primary key (org_id, session_id, hash);
drop index client_token_of_session;
