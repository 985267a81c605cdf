-- What should move: looked through every few seconds for what nobody would find.
-- On the turn, not on the session: its row changes with every append, and an index
-- on its status would keep those updates from being done in place.
create index turn_live on turn (org_id, session_id) where state in ('queued', 'running');
