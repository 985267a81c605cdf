-- Partitions are created and dropped without stopping a writer. `create table ... partition of` and `drop
-- table` need an exclusive lock on the parent: behind a reader such as `pg_dump` they wait, and every append
-- waits behind them. A table that is created by itself and then attached locks the parent only against other
-- changes of its schema. What still needs an exclusive lock (the default partition, a drop) waits 20 ms and
-- is tried again a minute later; partitions are created two months ahead.
create or replace function sojourn_roll_months() returns void
language plpgsql security definer set search_path = public set timezone = 'UTC' set lock_timeout = '20ms' as $$
declare
    parent text;
    month timestamptz;
    part text;
    time_column text;
    expired record;
begin
    if not pg_try_advisory_xact_lock(hashtext('sojourn_roll_months')) then
        return;
    end if;
    foreach parent in array array['delivery', 'delivery_attempt', 'audit'] loop
        time_column := case parent when 'delivery' then 'created_at' else 'at' end;
        for ahead in 0..2 loop
            month := date_trunc('month', now()) + make_interval(months => ahead);
            part := format('%s_%s', parent, to_char(month, 'YYYYMM'));
            if to_regclass(part) is not null then
                continue;
            end if;
            begin
                execute format('create table %I (like %I including all) with (fillfactor = 80)', part, parent);
                execute format('call sojourn_protect(%L)', part);
                if parent = 'audit' then
                    -- Where one role owns and serves, it gives up these rights, as for earlier months.
                    execute format('revoke update, delete, truncate on %I from %I', part, current_user);
                end if;
                begin
                    execute format('alter table %I attach partition %I for values from (%L) to (%L)',
                        parent, part, month, month + interval '1 month');
                exception when check_violation then
                    -- The default partition has rows of that month.
                    if parent = 'audit' then
                        -- They stay there: not even the owner changes these rows, and none is dropped.
                        raise warning 'rows of % are in the default partition of %', part, parent;
                        execute format('drop table %I', part);
                    else
                        -- They move to the new partition. The owner is bound by the policies too.
                        execute format('alter table %I no force row level security', parent || '_default');
                        execute format('alter table %I no force row level security', part);
                        execute format('insert into %4$I select * from %1$I where %2$I >= %3$L and %2$I < %5$L',
                            parent || '_default', time_column, month, part, month + interval '1 month');
                        execute format('delete from %1$I where %2$I >= %3$L and %2$I < %4$L',
                            parent || '_default', time_column, month, month + interval '1 month');
                        execute format('alter table %I force row level security', part);
                        execute format('alter table %I force row level security', parent || '_default');
                        execute format('alter table %I attach partition %I for values from (%L) to (%L)',
                            parent, part, month, month + interval '1 month');
                    end if;
                end;
            exception when lock_not_available then
                raise notice 'partition % is created later: a reader holds %', part, parent;
            end;
        end loop;
    end loop;
    for expired in
        select c.oid::regclass as part
        from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent in ('delivery'::regclass, 'delivery_attempt'::regclass)
          and c.relname ~ '_[0-9]{6}$'
          and to_date(right(c.relname, 6), 'YYYYMM') < now() - interval '30 days' - interval '1 month'
    loop
        begin
            execute format('drop table %s', expired.part);
        exception when lock_not_available then
            raise notice 'partition % is dropped later: a reader holds it', expired.part;
        end;
    end loop;
end
$$;
