-- Organizations and what proves that a caller belongs to one.

create table org (
    org_id uuid primary key,
    name text not null constraint org_name_length check (length(name) between 1 and 200),
    -- AES-256 data key, wrapped by the master key; without it nothing of the
    -- organization's secrets can be opened again.
    data_key bytea not null,
    created_at timestamptz not null default now()
);
call sojourn_protect('org');

create table api_key (
    org_id uuid not null references org,
    key_id uuid not null,
    -- HMAC-SHA256 of the key under the deployment's pepper.
    hash bytea not null,
    name text not null,
    hint text not null,
    scopes text[] not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    created_at timestamptz not null default now(),
    primary key (org_id, key_id)
);
-- The one lookup that cannot name its organization: it is what finds the organization.
create unique index api_key_hash on api_key (hash);
call sojourn_protect('api_key');

-- What was answered to a request that carried an idempotency key, written in the
-- transaction of its effect: both are there or neither is.
create table idempotency (
    org_id uuid not null references org,
    -- `header` for Idempotency-Key, `steer/<session>` for a message's own key.
    scope text not null,
    key text not null,
    -- SHA-256 of method, path and body: the same key with another request is an error.
    fingerprint bytea not null,
    status smallint,
    -- Sealed with the organization's key: an answer may hold what is shown once.
    answer bytea,
    created_at timestamptz not null default now(),
    primary key (org_id, scope, key),
    constraint idempotency_answered check ((status is null) = (answer is null))
);
create index idempotency_age on idempotency (created_at);
call sojourn_protect('idempotency');
