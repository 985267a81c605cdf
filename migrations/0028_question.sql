-- Questions within a turn, and settings of turns.
set local lock_timeout = '2s';

-- How the turns of a revision behave; null for the defaults.
alter table revision add column turn_settings json;

-- A caller answers the agent's questions.
alter table action drop constraint action_kind;
alter table action add constraint action_kind check (kind in ('tool_result', 'confirmation', 'question')) not valid;
