-- Where the events of a session are sent, and what became of each.

create table destination (
    org_id uuid not null,
    session_id uuid not null,
    destination_id uuid not null,
    url text not null,
    -- AES-256-GCM under the organization's data key, bound to this row.
    sealed_secret bytea not null,
    level smallint not null,
    -- Exact types or `prefix.*`; null is every type.
    types text[],
    include_raw boolean not null,
    enabled boolean not null,
    -- Events at or before this one are not sent: they were there before.
    created_after_seq bigint not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    primary key (org_id, session_id, destination_id),
    constraint destination_session foreign key (org_id, session_id) references session
);
call sojourn_protect('destination');

-- The outbox: written by the statement that writes the event.
create table delivery (
    org_id uuid not null,
    delivery_id uuid not null,
    session_id uuid not null,
    destination_id uuid not null,
    event_id uuid not null,
    event_seq bigint not null,
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
    primary key (org_id, delivery_id),
    constraint delivery_destination foreign key (org_id, session_id, destination_id) references destination,
    constraint delivery_waits check ((status in ('pending', 'delivering', 'failed')) = (ready_at is not null))
) with (fillfactor = 80);
create index delivery_ready on delivery (ready_at) where ready_at is not null;
create index delivery_of_session on delivery (org_id, session_id, event_seq, delivery_id);
call sojourn_protect('delivery');
