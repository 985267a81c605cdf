-- The deployment itself: which roles speak to this database, which master key
-- seals its secrets, and how a row is kept from the wrong organization.

-- One row. The roles are written at every start by the owner, because their names
-- are the operator's choice; a policy cannot take a name from a setting.
create table deployment (
    singleton boolean primary key default true check (singleton),
    -- HMAC of a constant under the master key: a process that holds another key
    -- refuses to start instead of sealing what nobody can open.
    master_key_check bytea not null,
    app_role name not null,
    system_role name not null
);

-- The organization that this transaction speaks for; null when none was named.
create function sojourn_org() returns uuid
language sql stable parallel safe
return nullif(current_setting('sojourn.org', true), '')::uuid;

-- Whether this is the service's own work (queue, record, outbox, key lookup).
-- Where one role serves both purposes, the connection has to say so itself.
create function sojourn_is_system() returns boolean
language sql stable parallel safe
return coalesce((
    select current_user = d.system_role
        and (d.system_role <> d.app_role or current_setting('sojourn.scope', true) = 'system')
    from deployment d
), false);

-- Forces row level security on an organization's table. The sub-selects make Postgres
-- evaluate each function once a statement instead of once a row.
create procedure sojourn_protect(protected regclass)
language plpgsql as $$
begin
    execute format('alter table %s enable row level security', protected);
    execute format('alter table %s force row level security', protected);
    execute format(
        'create policy org on %s
         using (org_id = (select sojourn_org()) or (select sojourn_is_system()))
         with check (org_id = (select sojourn_org()) or (select sojourn_is_system()))',
        protected
    );
end
$$;
