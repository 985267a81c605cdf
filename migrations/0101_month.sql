-- As before, and what fell into the default partitions of the delivery log leaves them
-- once its month is made.
create or replace function sojourn_roll_months() returns void
language plpgsql security definer set search_path = public set timezone = 'UTC' as $$
declare
    parent text;
    month timestamptz;
    part text;
    column_of text;
    old record;
begin
    perform pg_advisory_xact_lock(hashtext('sojourn_roll_months'));
    foreach parent in array array['delivery', 'delivery_attempt', 'audit'] loop
        column_of := case parent when 'delivery' then 'created_at' else 'at' end;
        for ahead in 0..2 loop
            month := date_trunc('month', now()) + make_interval(months => ahead);
            part := format('%s_%s', parent, to_char(month, 'YYYYMM'));
            if to_regclass(part) is not null then
                continue;
            end if;
            begin
                execute format('create table %I partition of %I for values from (%L) to (%L) with (fillfactor = 80)',
                    part, parent, month, month + interval '1 month');
                execute format('call sojourn_protect(%L)', part);
                if parent = 'audit' then
                    -- Where one role owns and serves it gives these up, as of the months of before.
                    execute format('revoke update, delete, truncate on %I from %I', part, current_user);
                end if;
            exception when check_violation then
                if parent = 'audit' then
                    -- Nobody changes these rows, their owner neither; nothing drops them.
                    raise warning 'rows of % are in the default partition of %', part, parent;
                else
                    -- The owner is held to the policies as well.
                    execute format('alter table %I no force row level security', parent || '_default');
                    execute format('create temporary table moved on commit drop as
                        select * from %1$I where %2$I >= %3$L and %2$I < %4$L',
                        parent || '_default', column_of, month, month + interval '1 month');
                    execute format('delete from %1$I where %2$I >= %3$L and %2$I < %4$L',
                        parent || '_default', column_of, month, month + interval '1 month');
                    execute format('alter table %I force row level security', parent || '_default');
                    execute format('create table %I partition of %I for values from (%L) to (%L) with (fillfactor = 80)',
                        part, parent, month, month + interval '1 month');
                    execute format('insert into %I select * from moved', part);
                    drop table moved;
                    execute format('call sojourn_protect(%L)', part);
                end if;
            end;
        end loop;
    end loop;
    for old in
        select c.oid::regclass as part
        from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent in ('delivery'::regclass, 'delivery_attempt'::regclass)
          and c.relname ~ '_[0-9]{6}$'
          and to_date(right(c.relname, 6), 'YYYYMM') < now() - interval '30 days' - interval '1 month'
    loop
        execute format('drop table %s', old.part);
    end loop;
end
$$;
