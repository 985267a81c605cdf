-- What a session's sandbox is: named by an organization, pinned by each session.

create table environment (
    org_id uuid not null references org,
    environment_id uuid not null,
    name text not null,
    -- Size, variables, network policy.
    config json not null,
    -- Names of the secrets and the hosts that each is bound to.
    secrets json not null,
    -- The values as one JSON object, AES-256-GCM under the organization's data key, bound to
    -- this row; empty when there are none, and from the moment it is deleted.
    sealed_secrets bytea not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    primary key (org_id, environment_id)
);
-- A deleted environment's name may be used again.
create unique index environment_name on environment (org_id, name) where deleted_at is null;
call sojourn_protect('environment');

-- The snapshot, as in session.created; null where the defaults hold.
alter table session add column environment json;
