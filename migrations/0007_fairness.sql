-- One organization's flood must not delay another's turn beyond its fair share.

alter table org
    -- Turns that run for each one of an organization of weight 1 when both have work.
    add column weight integer not null default 1 constraint org_weight check (weight between 1 and 100),
    -- Jobs of the organization that may be held at the same time; null for the service's default.
    add column concurrency integer constraint org_concurrency check (concurrency > 0);

-- A claim visits organizations in turn and takes the oldest ready jobs of each.
create index job_org on job (org_id, ready_at);
create index job_held on job (org_id) where worker_id is not null;
drop index job_ready;
