-- One tenant's flood must not delay another's turn beyond its fair share.

alter table tenant
    -- Turns that run for each one of a tenant of weight 1 when both have work.
    add column weight integer not null default 1 constraint tenant_weight check (weight between 1 and 100),
    -- Jobs of the tenant that may be held at the same time; null for the service's default.
    add column concurrency integer constraint tenant_concurrency check (concurrency > 0);

-- A claim visits tenants in turn and takes the oldest ready jobs of each.
create index job_tenant on job (tenant_id, ready_at);
create index job_held on job (tenant_id) where worker_id is not null;
drop index job_ready;
