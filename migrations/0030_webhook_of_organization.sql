-- A destination may belong to the organization instead of one session: then it hears
-- of every session. One table for both, because one outbox and one courier serve both.

alter table delivery drop constraint delivery_destination;
alter table destination drop constraint destination_pkey;
alter table destination
    -- Null for a webhook of the organization.
    alter column session_id drop not null,
    add primary key (org_id, destination_id),
    -- The secret that was replaced last; letters carry its signature too until then.
    add column sealed_secret_before bytea,
    add column secret_before_until timestamptz,
    -- The first failure since the last success.
    add column failing_since timestamptz,
    -- Why the service disabled it; null when its owner did.
    add column disabled_reason text
        constraint destination_disabled_reason check (disabled_reason in ('gone', 'failing')),
    add constraint destination_secret_before
        check ((sealed_secret_before is null) = (secret_before_until is null));
create index destination_of_session on destination (org_id, session_id);

-- Deliveries of a month lie together and go together: the log is kept for 30 days,
-- and deleting its rows one by one would cost as much as writing them did.
alter table delivery rename to delivery_before;
alter table delivery_before rename constraint delivery_pkey to delivery_before_pkey;
drop index delivery_ready;
drop index delivery_of_session;

create table delivery (
    org_id uuid not null,
    delivery_id uuid not null,
    -- What it is about; null for a test and for a notice about the organization. No
    -- foreign key: that a session was deleted is told after it is gone.
    session_id uuid,
    destination_id uuid not null,
    event_id uuid not null,
    -- Where the event is in its log; null when it is in none, then `notice` is it.
    event_seq bigint,
    type text,
    notice json,
    status text not null constraint delivery_status
        check (status in ('pending', 'delivering', 'delivered', 'failed', 'dead_letter')),
    attempts integer not null default 0,
    -- When it may be sent; for one that is being sent, when it is given up for lost.
    ready_at timestamptz,
    last_attempt_at timestamptz,
    response_code smallint,
    error text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (org_id, delivery_id, created_at),
    constraint delivery_destination foreign key (org_id, destination_id) references destination,
    constraint delivery_content check ((event_seq is null) = (notice is not null)),
    constraint delivery_waits check ((status in ('pending', 'delivering', 'failed')) = (ready_at is not null))
) partition by range (created_at);
-- What no month was made for in time; an append must never fail for that.
create table delivery_default partition of delivery default;
create index delivery_ready on delivery (ready_at) where ready_at is not null;
create index delivery_of_session on delivery (org_id, session_id, event_seq, delivery_id);
create index delivery_of_destination on delivery (org_id, destination_id, created_at, delivery_id);

-- One row for each try.
create table delivery_attempt (
    org_id uuid not null,
    delivery_id uuid not null,
    at timestamptz not null default now(),
    session_id uuid,
    number integer not null,
    response_code smallint,
    error text,
    duration_ms integer not null,
    primary key (org_id, delivery_id, at)
) partition by range (at);
create table delivery_attempt_default partition of delivery_attempt default;
create index delivery_attempt_of_session on delivery_attempt (org_id, session_id);

-- What the organization's callers and the operator did; appended to and never changed.
create table audit (
    org_id uuid not null,
    audit_id uuid not null,
    at timestamptz not null default now(),
    actor json not null,
    -- As in `key.created`.
    action text not null,
    -- The id of the thing that it was done to.
    target text,
    details json not null,
    primary key (org_id, audit_id, at)
) partition by range (at);
create table audit_default partition of audit default;

-- Makes the months to come and drops those of the delivery log that are over. Runs
-- with the owner's rights, because no role of the service may change the schema; it
-- takes no argument, so there is nothing to abuse.
create function sojourn_roll_months() returns void
language plpgsql security definer set search_path = public set timezone = 'UTC' as $$
declare
    parent text;
    month timestamptz;
    part text;
    old record;
begin
    perform pg_advisory_xact_lock(hashtext('sojourn_roll_months'));
    foreach parent in array array['delivery', 'delivery_attempt', 'audit'] loop
        for ahead in 0..2 loop
            month := date_trunc('month', now()) + make_interval(months => ahead);
            part := format('%s_%s', parent, to_char(month, 'YYYYMM'));
            if to_regclass(part) is null then
                begin
                    execute format('create table %I partition of %I for values from (%L) to (%L) with (fillfactor = 80)',
                        part, parent, month, month + interval '1 month');
                    execute format('call sojourn_protect(%L)', part);
                exception when check_violation then
                    -- The default partition has rows of that month: they stay there with it.
                    raise warning 'rows of % are in the default partition of %', part, parent;
                end;
            end if;
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
select sojourn_roll_months();

-- The owner reads these rows only while it is not held to the policies.
alter table delivery_before no force row level security;
alter table event no force row level security;
insert into delivery (
    org_id, delivery_id, session_id, destination_id, event_id, event_seq, type, status, attempts, ready_at,
    last_attempt_at, response_code, error, created_at, updated_at
)
select d.org_id, d.delivery_id, d.session_id, d.destination_id, d.event_id, d.event_seq, e.type, d.status,
       d.attempts, d.ready_at, d.last_attempt_at, d.response_code, d.error, d.created_at, d.updated_at
from delivery_before d
left join event e on e.org_id = d.org_id and e.session_id = d.session_id and e.seq = d.event_seq;
alter table event force row level security;
drop table delivery_before;

call sojourn_protect('delivery');
call sojourn_protect('delivery_default');
call sojourn_protect('delivery_attempt');
call sojourn_protect('delivery_attempt_default');
call sojourn_protect('audit');
call sojourn_protect('audit_default');
