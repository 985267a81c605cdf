-- Configuration: provider keys, environments of sandboxes, agents and their revisions.

-- A provider key.
create table credential (
    org_id uuid not null,
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
    constraint credential_pkey primary key (org_id, credential_id),
    constraint credential_org foreign key (org_id) references org
);
-- At most one default for each provider.
create unique index credential_default on credential (org_id, provider) where is_default and deleted_at is null;
-- Requests may name a credential. Names are not unique.
create index credential_name on credential (org_id, name) where name is not null and deleted_at is null;
call sojourn_protect('credential');

-- A named configuration of sandboxes. A session pins its configuration at its creation
-- (`session.environment`), so a change here affects only sessions that are created later.
create table environment (
    org_id uuid not null,
    environment_id uuid not null,
    name text not null,
    -- Image, packages, size, lifetime, variables, network policy, repositories, lifecycle hooks.
    config json not null,
    -- Names of the secrets, and the hosts that each is bound to.
    secrets json not null,
    -- The values of the secrets as one JSON object, AES-256-GCM under the organization's data key,
    -- bound to this row. Empty when there are none, and once the environment is deleted.
    sealed_secrets bytea not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    constraint environment_pkey primary key (org_id, environment_id),
    constraint environment_org foreign key (org_id) references org
);
-- The name of a deleted environment can be used again.
create unique index environment_name on environment (org_id, name) where deleted_at is null;
call sojourn_protect('environment');

-- An agent: the settings that do not belong to one of its revisions.
create table agent (
    org_id uuid not null,
    agent_id uuid not null,
    name text not null,
    active_revision_id uuid not null,
    -- Null for the organization's default credential.
    credential_id uuid,
    limits json not null,
    -- Caps over trailing windows in micro-USD: {"days_1", "days_7", "days_28"}.
    spend_caps json not null default '{}',
    -- Repositories that are cloned into the sandboxes of the agent's sessions.
    sources json not null default '[]',
    -- No turn of a disabled agent starts.
    enabled boolean not null default true,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    constraint agent_pkey primary key (org_id, agent_id),
    constraint agent_org foreign key (org_id) references org,
    constraint agent_credential foreign key (org_id, credential_id) references credential
);
-- The name of a deleted agent can be used again.
create unique index agent_name on agent (org_id, name) where deleted_at is null;
call sojourn_protect('agent');

-- An immutable version of an agent.
create table revision (
    org_id uuid not null,
    revision_id uuid not null,
    agent_id uuid not null,
    number integer not null constraint revision_number check (number > 0),
    prompt text not null,
    model text not null,
    model_options json not null,
    runtime text not null,
    -- Names of the tools that the agent may use; null for all of them.
    tools text[],
    digest text not null,
    created_at timestamptz not null default now(),
    constraint revision_pkey primary key (org_id, revision_id),
    constraint revision_agent foreign key (org_id, agent_id) references agent,
    constraint revision_agent_number unique (org_id, agent_id, number)
);
call sojourn_protect('revision');

-- An agent as sessions pin it, stored once for all sessions of the organization that pin the same
-- content: most sessions are idle, so their rows are kept small. Never deleted before the
-- organization.
create table agent_snapshot (
    org_id uuid not null,
    -- The first half of the SHA-256 of the content.
    snapshot_id uuid not null,
    content json not null,
    constraint agent_snapshot_pkey primary key (org_id, snapshot_id),
    constraint agent_snapshot_org foreign key (org_id) references org
);
call sojourn_protect('agent_snapshot');
