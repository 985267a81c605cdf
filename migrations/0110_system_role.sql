-- Every policy asks whether this is the service's own work. A function that reads a
-- table for that is planned anew for each table of each statement, and was a fifth of
-- what an append cost. With the role's name in its body it is a comparison that the
-- planner puts in place of the call.

-- Writes the roles of the deployment into `sojourn_is_system`, where they are not in it
-- already: plans that hold it are made anew then. Called at every start, after the
-- deployment's row was written.
create procedure sojourn_know_system()
language plpgsql as $$
declare
    roles deployment;
    known text := obj_description('sojourn_is_system()'::regprocedure, 'pg_proc');
    wanted text;
begin
    -- One start after the other.
    select * into roles from deployment for update;
    if not found then
        return;
    end if;
    wanted := format('current_user = %L', roles.system_role);
    if roles.system_role = roles.app_role then
        -- One role serves both purposes: the connection has to say which.
        wanted := wanted || ' and coalesce(current_setting(''sojourn.scope'', true) = ''system'', false)';
    end if;
    if known is distinct from wanted then
        execute 'create or replace function sojourn_is_system() returns boolean language sql stable parallel safe return '
            || wanted;
        execute format('comment on function sojourn_is_system() is %L', wanted);
    end if;
end
$$;
revoke execute on procedure sojourn_know_system() from public;

call sojourn_know_system();
