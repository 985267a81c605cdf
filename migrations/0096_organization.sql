-- When a deleted organization was purged for the last time: what was under way when it
-- was deleted may still have written after the first.
alter table org add column purged_at timestamptz;

-- What sessions that a key makes have as their `source`: said when the key is made,
-- because a client can claim any name for itself.
alter table api_key
    add column source text not null default 'api'
        constraint api_key_source check (source in ('api', 'cli'));
