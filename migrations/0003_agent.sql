-- Agents, their immutable revisions, and the provider keys that they run on.

create table credential (
    org_id uuid not null references org,
    credential_id uuid not null,
    provider text not null,
    name text,
    -- AES-256-GCM under the organization's data key, bound to this row.
    sealed_key bytea not null,
    last4 text not null,
    base_url text,
    is_default boolean not null default false,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    primary key (org_id, credential_id)
);
create unique index credential_default on credential (org_id, provider) where is_default and deleted_at is null;
call sojourn_protect('credential');

create table agent (
    org_id uuid not null references org,
    agent_id uuid not null,
    name text not null,
    active_revision_id uuid not null,
    -- The caller's choice; null falls back to the organization's default.
    credential_id uuid,
    limits json not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    primary key (org_id, agent_id),
    constraint agent_credential foreign key (org_id, credential_id) references credential
);
-- A deleted agent's name may be used again.
create unique index agent_name on agent (org_id, name) where deleted_at is null;
call sojourn_protect('agent');

create table revision (
    org_id uuid not null,
    revision_id uuid not null,
    agent_id uuid not null,
    number integer not null constraint revision_number check (number > 0),
    prompt text not null,
    model text not null,
    model_options json not null,
    runtime text not null,
    -- Names of the tools that the agent may use; null is all of them.
    tools text[],
    digest text not null,
    created_at timestamptz not null default now(),
    primary key (org_id, revision_id),
    constraint revision_agent foreign key (org_id, agent_id) references agent,
    constraint revision_once unique (org_id, agent_id, number)
);
call sojourn_protect('revision');
