-- Webhooks: the endpoints of organizations and sessions, and the outbox of deliveries to them.

-- An endpoint. One table for webhooks of an organization and destinations of a session, because one
-- outbox and one dispatcher serve both.
create table destination (
    org_id uuid not null,
    destination_id uuid not null,
    -- Null for a webhook of the organization, which receives events of every session.
    session_id uuid,
    url text not null,
    level smallint not null,
    -- Exact types or `prefix.*`; null for every type.
    types text[],
    include_raw boolean not null,
    enabled boolean not null,
    -- Why the service disabled it; null when its owner did.
    disabled_reason text
        constraint destination_disabled_reason check (disabled_reason in ('gone', 'failing')),
    -- Events up to this one precede the destination and are not sent.
    created_after_seq bigint not null,
    -- AES-256-GCM under the organization's data key, bound to this row.
    sealed_secret bytea not null,
    -- The previous secret. Deliveries also carry its signature until this time.
    sealed_secret_before bytea,
    secret_before_until timestamptz,
    -- The first failure since the last success.
    failing_since timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    constraint destination_pkey primary key (org_id, destination_id),
    constraint destination_session foreign key (org_id, session_id) references session,
    constraint destination_secret_before check ((sealed_secret_before is null) = (secret_before_until is null))
);
-- The destinations of a session, read by each append.
create index destination_of_session on destination (org_id, session_id);
call sojourn_protect('destination');

-- The outbox: an event to be sent to a destination, written by the statement that writes the event.
--
-- One partition for each month (`sojourn_roll_months`), dropped when its last row is 30 days old:
-- deleting rows one by one would cost as much as writing them.
create table delivery (
    org_id uuid not null,
    delivery_id uuid not null,
    -- The session of the event; null for a test and for a notice about the organization. No foreign
    -- key: `session.deleted` is sent after the session is gone.
    session_id uuid,
    destination_id uuid not null,
    event_id uuid not null,
    -- The position of the event in the log of its session. Null when it is in no log; then `notice`
    -- is the event.
    event_seq bigint,
    type text,
    notice json,
    status text not null constraint delivery_status
        check (status in ('pending', 'delivering', 'delivered', 'failed', 'dead_letter')),
    attempts integer not null default 0,
    -- When it may be sent. While it is being sent, when the attempt is considered lost.
    ready_at timestamptz,
    last_attempt_at timestamptz,
    response_code smallint,
    error text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint delivery_pkey primary key (org_id, delivery_id, created_at),
    constraint delivery_destination foreign key (org_id, destination_id) references destination,
    constraint delivery_content check ((event_seq is null) = (notice is not null)),
    constraint delivery_unfinished check ((status in ('pending', 'delivering', 'failed')) = (ready_at is not null))
) partition by range (created_at);
-- For rows of a month whose partition is missing: an append must not fail for that.
create table delivery_default partition of delivery default;
-- Deliveries that are due. Nearly empty when none is late.
create index delivery_ready on delivery (ready_at) where ready_at is not null;
-- Lists of the deliveries of a session and of a destination.
create index delivery_of_session on delivery (org_id, session_id, event_seq, delivery_id);
create index delivery_of_destination on delivery (org_id, destination_id, created_at, delivery_id);
call sojourn_protect('delivery');
call sojourn_protect('delivery_default');

-- One attempt of a delivery. Partitions as for `delivery`.
create table delivery_attempt (
    org_id uuid not null,
    delivery_id uuid not null,
    at timestamptz not null default now(),
    session_id uuid,
    number integer not null,
    response_code smallint,
    error text,
    duration_ms integer not null,
    constraint delivery_attempt_pkey primary key (org_id, delivery_id, at)
) partition by range (at);
create table delivery_attempt_default partition of delivery_attempt default;
-- The attempts of a session, which are deleted with it.
create index delivery_attempt_of_session on delivery_attempt (org_id, session_id);
call sojourn_protect('delivery_attempt');
call sojourn_protect('delivery_attempt_default');
