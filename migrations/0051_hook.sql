-- Addresses at which others start a session of an agent, without a key of ours: each
-- proves itself by a signature made with the trigger's own secret.

create table trigger (
    org_id uuid not null references org,
    trigger_id uuid not null,
    agent_id uuid not null,
    kind text not null constraint trigger_kind check (kind in ('generic', 'github')),
    enabled boolean not null,
    -- Which events of GitHub start a session; null for the other kinds.
    filter json,
    -- What its sessions are made of: title, metadata, limits, environment.
    session_template json not null,
    -- AES-256-GCM under the organization's data key, bound to this row.
    sealed_secret bytea not null,
    -- The secret that was replaced last; signatures made with it count until then.
    sealed_secret_before bytea,
    secret_before_until timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (org_id, trigger_id),
    constraint trigger_agent foreign key (org_id, agent_id) references agent,
    constraint trigger_filter check ((kind = 'github') = (filter is not null)),
    constraint trigger_secret_before check ((sealed_secret_before is null) = (secret_before_until is null))
);
-- Found before its organization is known, as an API key is.
create unique index trigger_by_id on trigger (trigger_id);
create index trigger_of_agent on trigger (org_id, agent_id, trigger_id);
call sojourn_protect('trigger');
