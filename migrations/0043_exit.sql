-- Who made a session and who stopped it: columns of the fold, from the actors of events.

alter table session
    add column actor json,
    add column stopped_by json,
    add column stopped_at timestamptz,
    add constraint session_stopped check ((stopped_by is null) = (stopped_at is null));
-- The owner reads and writes rows of organizations only while it is not held to the policies.
alter table session no force row level security;
alter table event no force row level security;
update session s
set actor = e.actor
from event e
where e.org_id = s.org_id and e.session_id = s.session_id and e.seq = 1;
-- The last cancel or archive by a caller, of the sessions of before.
update session s
set stopped_by = e.actor, stopped_at = e.ts
from (
    select distinct on (org_id, session_id) org_id, session_id, actor, ts
    from event
    where type = 'session.status_changed'
       or (type = 'turn.cancel_requested' and body ->> 'mode' = 'cancel')
       or (type = 'turn.completed' and actor ->> 'type' in ('human', 'trigger'))
    order by org_id, session_id, seq desc
) e
where e.org_id = s.org_id and e.session_id = s.session_id;
alter table session force row level security;
alter table event force row level security;
