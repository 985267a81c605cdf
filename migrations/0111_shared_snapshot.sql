-- What every session keeps for good is kept small: most of them are idle.

-- The agents that sessions are pinned to, each once for an organization: of many sessions
-- of one agent only the first writes it. Kept as revisions are, until the organization goes.
create table agent_snapshot (
    org_id uuid not null references org,
    -- The first half of the SHA-256 of the content.
    snapshot_id uuid not null,
    content json not null,
    primary key (org_id, snapshot_id)
);
call sojourn_protect('agent_snapshot');

-- No foreign key: a snapshot is never deleted before the sessions of its organization.
alter table session add column snapshot_id uuid;

-- Whether new sessions name their snapshot instead of having it in their row. The binary
-- before this one does not look there, and it may still run or be gone back to; so this holds
-- where it never served: in a database that has no deployment yet. A later version can
-- turn it on for all.
alter table deployment add column shares_snapshots boolean not null default false;
do $$
begin
    if not exists (select from deployment) then
        alter table deployment alter column shares_snapshots set default true;
    end if;
end
$$;

-- A tenth of a page has room for more than one of these rows now. A turn's row has few
-- updates, and its first and last one change an index, so free room would not keep them in place.
alter table session set (fillfactor = 90);
alter table turn set (fillfactor = 100);
