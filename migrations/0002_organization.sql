-- Organizations: the unit of isolation and billing, their keys, their terms, their audit log.

-- An organization. Every other table of an organization leads its primary key with `org_id`.
-- The row is never deleted, because the audit log refers to it; so tables that get a row for each
-- request have no foreign key to it, which would lock it together with all other requests.
create table org (
    org_id uuid not null,
    name text not null constraint org_name_length check (length(name) between 1 and 200),
    -- AES-256 key of the organization's secrets, wrapped by the master key. Empty once the
    -- organization is deleted: nothing that it sealed can be opened again.
    data_key bytea not null,
    -- The share of the queue: while both have work, this many turns run for each turn of an
    -- organization of weight 1.
    weight integer not null default 1 constraint org_weight check (weight between 1 and 100),
    -- Jobs of the organization that may be held at the same time; null for the service's default.
    concurrency integer constraint org_concurrency check (concurrency > 0),
    -- Days after which an archived session is deleted; null for never.
    retention_days integer constraint org_retention_days check (retention_days between 1 and 36500),
    created_at timestamptz not null default now(),
    -- While suspended, calls of the organization are refused and its turns are canceled before they
    -- start.
    suspended_at timestamptz,
    -- The organization's data is deleted; this row stays for the audit log.
    deleted_at timestamptz,
    -- The last purge after the deletion. A request that was under way at the deletion may have
    -- written rows after the first purge.
    purged_at timestamptz,
    constraint org_pkey primary key (org_id)
);
call sojourn_protect('org');

-- An API key. The key itself is not stored.
create table api_key (
    org_id uuid not null,
    key_id uuid not null,
    -- HMAC-SHA256 of the key under the deployment's pepper.
    hash bytea not null,
    name text not null,
    -- The last characters of the key, for people.
    hint text not null,
    scopes text[] not null,
    -- The `source` of the sessions that the key creates. Fixed at the creation of the key, because
    -- a client can claim any name for itself.
    source text not null default 'api' constraint api_key_source check (source in ('api', 'cli')),
    created_at timestamptz not null default now(),
    last_used_at timestamptz,
    expires_at timestamptz,
    revoked_at timestamptz,
    constraint api_key_pkey primary key (org_id, key_id),
    constraint api_key_org foreign key (org_id) references org
);
-- Authentication finds the organization by the key, so this lookup cannot name the organization.
create unique index api_key_hash on api_key (hash);
call sojourn_protect('api_key');

-- What the operator agreed with an organization. Without a row the defaults apply.
create table billing (
    org_id uuid not null,
    -- A price list that takes precedence over the bundled one.
    prices json,
    -- Prepaid micro-USD that are left; null for no bound. Falls below zero by the amount by which a
    -- call cost more than its reservation.
    balance_micros bigint,
    -- Caps over trailing windows in micro-USD: {"days_1", "days_7", "days_28"}.
    spend_caps json not null default '{}',
    updated_at timestamptz not null default now(),
    constraint billing_pkey primary key (org_id),
    constraint billing_org foreign key (org_id) references org on delete cascade
);
call sojourn_protect('billing');

-- An action of an organization's caller or of the operator. Appended to and never changed: the
-- roles of the service lose the rights for that. One partition for each month
-- (`sojourn_roll_months`); no partition is dropped, and a purge keeps these rows.
create table audit (
    org_id uuid not null,
    audit_id uuid not null,
    at timestamptz not null default now(),
    actor json not null,
    -- As in `key.created`.
    action text not null,
    -- The id of the object.
    target text,
    details json not null,
    constraint audit_pkey primary key (org_id, audit_id, at)
) partition by range (at);
call sojourn_protect('audit');
-- For rows of a month whose partition is missing: an insert must not fail for that.
create table audit_default partition of audit default;
call sojourn_protect('audit_default');
