-- The deployment and row level security: the roles that use this database, the master key that
-- seals its secrets, and the policy that keeps organizations apart.

-- The settings of this deployment: one row, written by the owner at every start.
create table deployment (
    singleton boolean not null default true constraint deployment_singleton check (singleton),
    -- HMAC of a constant under the master key. A process that has another key refuses to start;
    -- otherwise it would seal secrets that no other process can open.
    master_key_check bytea not null,
    -- The key of the hashes of bearer secrets, sealed under the master key. Null as long as it is
    -- derived from the master key. A hash cannot be recomputed without its secret, so this key
    -- stays when the master key is replaced.
    sealed_pepper bytea,
    -- The operator chooses the names of the roles.
    app_role name not null,
    system_role name not null,
    constraint deployment_pkey primary key (singleton)
);

-- The organization of this transaction; null when none is set.
create function sojourn_org() returns uuid
language sql stable parallel safe
return nullif(current_setting('sojourn.org', true), '')::uuid;

-- Whether this is the service's own work (queue, log, outbox, key lookup), which sees the rows of
-- every organization. False until `sojourn_set_system_role` writes the name of the role into it.
create function sojourn_is_system() returns boolean
language sql stable parallel safe
return false;

-- Replaces the body of `sojourn_is_system` by a comparison with the system role of this deployment.
--
-- Every policy calls that function. A body that reads a table is planned again for each table of
-- each statement, and cost a fifth of an append. A comparison is inlined by the planner. The body
-- changes only when the role changed, because a change invalidates every cached plan; the comment
-- of the function stores its current body. Called at every start, after the row of `deployment` is
-- written.
create procedure sojourn_set_system_role()
language plpgsql as $$
declare
    roles deployment;
    current_body text := obj_description('sojourn_is_system()'::regprocedure, 'pg_proc');
    body text;
begin
    -- Processes that start together do this one after another.
    select * into roles from deployment for update;
    if not found then
        return;
    end if;
    body := format('current_user = %L', roles.system_role);
    if roles.system_role = roles.app_role then
        -- One role serves both purposes, so the connection states which one it serves.
        body := body || ' and coalesce(current_setting(''sojourn.scope'', true) = ''system'', false)';
    end if;
    if current_body is distinct from body then
        execute 'create or replace function sojourn_is_system() returns boolean language sql stable parallel safe return '
            || body;
        execute format('comment on function sojourn_is_system() is %L', body);
    end if;
end
$$;
revoke execute on procedure sojourn_set_system_role() from public;

-- Forces row level security on a table with `org_id`, for its owner too. The sub-selects make
-- Postgres evaluate each function once per statement instead of once per row.
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
