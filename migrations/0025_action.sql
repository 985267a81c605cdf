-- Actions: what a turn needs from a caller. While only actions are left, the turn waits: no worker holds its job, and
-- the job's time is that of the first expiry.
set local lock_timeout = '2s';

-- One action. Its content is the body of its event `action.required`; `action_id` is the id of that event.
create table action (
    org_id uuid not null,
    session_id uuid not null,
    action_id uuid not null,
    turn_id uuid not null,
    kind text not null constraint action_kind check (kind in ('tool_result')),
    -- The seq of `action.required`.
    seq bigint not null,
    -- From this time on, by the clock of the database, an answer is refused.
    expires_at timestamptz not null,
    -- The claim whose owner alone may answer until then.
    claim uuid,
    claimed_until timestamptz,
    -- How and when it ended; null while it is open.
    outcome text constraint action_outcome check (outcome in ('answered', 'expired', 'withdrawn')),
    ended_at timestamptz,
    -- The seq of the answer.
    answer_seq bigint,
    constraint action_pkey primary key (org_id, session_id, action_id),
    constraint action_claim check ((claim is null) = (claimed_until is null)),
    constraint action_ended check ((outcome is null) = (ended_at is null)),
    constraint action_answered check (answer_seq is null or outcome is not distinct from 'answered')
);
-- Lists of an organization's open actions, oldest first.
create index action_open on action (org_id, action_id) where outcome is null;
call sojourn_protect('action');

-- The seq of the newest event with which a caller, or an expiry, ended an action. A turn waits, or withdraws its
-- actions, only if it has read the log up to there: its append compares this column under the row's lock.
alter table session add column action_head bigint not null default 0;
-- The session of a waiting turn awaits input.
alter table session drop constraint session_running_turn;
alter table session add constraint session_running_turn check (
    (status <> 'running' or running_turn_id is not null)
    and (running_turn_id is null or status in ('running', 'awaiting_input'))
) not valid;

-- A turn waits for actions.
alter table turn drop constraint turn_state;
alter table turn add constraint turn_state check (state in ('queued', 'running', 'waiting', 'ok', 'error')) not valid;

-- Tools of an agent that a caller runs; the names of the others are in `tools`.
alter table revision add column custom_tools json;
