-- Seconds in which turns of the session were worked on: what `duration_seconds` limits.
-- A column of the fold, summed from the ends of its turns.
alter table session add column active_seconds bigint not null default 0;
-- The owner reads and writes rows of organizations only while it is not held to the policies.
alter table session no force row level security;
alter table turn no force row level security;
update session s
set active_seconds = t.seconds
from (
    select org_id, session_id, sum(active_seconds)::bigint as seconds
    from turn
    where completed_at is not null
    group by org_id, session_id
) t
where t.org_id = s.org_id and t.session_id = s.session_id and t.seconds > 0;
alter table session force row level security;
alter table turn force row level security;
