-- A claim of deliveries finds each destination that has some, so that it need not read those of one that is behind.
set local lock_timeout = '2s';

-- `sojourn migrate` creates it on the partitions that exist, without stopping writers, and attaches it.
create index delivery_due on only delivery (destination_id, ready_at) where ready_at is not null;

-- Returns deliveries for a claim: the 1,024 that have been due for the longest time (`place` 0). If there may be more, also
-- some of each of the next destinations after `after_destination`, at most `rows_each` of one: those of the first of 256
-- looks have `place` 1. The next call begins after the last destination of `place` 256.
--
-- What has been due for less than `shard_grace` is returned for these shards only. Of `place` 1 and more also some that are
-- not due or of other shards.
--
-- The planner knows the indexes as they are while nothing is due, that is empty: it would sort what is due instead of
-- reading it in order.
create function sojourn_due_deliveries(
    due_by timestamptz, shards integer[], shard_grace interval, after_destination uuid, rows_each integer
)
returns table (
    org_id uuid, delivery_id uuid, created_at timestamptz, destination_id uuid, ready_at timestamptz, place integer
)
language plpgsql stable
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    returned integer;
    found_one record;
    last_destination uuid := after_destination;
begin
    return query
    select v.org_id, v.delivery_id, v.created_at, v.destination_id, v.ready_at, 0
    from delivery v
    where v.ready_at <= due_by
      and (get_byte(uuid_send(v.org_id), 15) % 64 = any (shards) or v.ready_at <= due_by - shard_grace)
    order by v.ready_at
    limit 1024;
    get diagnostics returned = row_count;
    if returned < 1024 then
        return;
    end if;
    for look in 1..256 loop
        returned := 0;
        -- One look may find several destinations; of the last one there may be more.
        for found_one in
            select v.org_id, v.delivery_id, v.created_at, v.destination_id, v.ready_at
            from delivery v
            where v.ready_at is not null and v.destination_id > last_destination
            order by v.destination_id, v.ready_at
            limit rows_each
        loop
            returned := returned + 1;
            org_id := found_one.org_id;
            delivery_id := found_one.delivery_id;
            created_at := found_one.created_at;
            destination_id := found_one.destination_id;
            ready_at := found_one.ready_at;
            place := look;
            return next;
        end loop;
        exit when returned < rows_each;
        last_destination := destination_id;
    end loop;
end
$$;
