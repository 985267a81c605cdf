//! Actions: their state for commands and lists. Their content is in the log.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    column::{from_json, from_word, word},
    parameter::named,
};
use crate::{
    base::{Id, Timestamp},
    domain::{
        ActionId, ClaimId, EventId, OrgId, SessionId, TurnId,
        action::{Action, ActionKind, ActionState, Ended},
    },
};

/// An action as a command finds it.
#[derive(Clone, Debug)]
pub struct FoundAction {
    pub state: ActionState,
    /// `seq` of its event `action.required`.
    pub seq: i64,
    /// `seq` of its answer.
    pub answer_seq: Option<i64>,
}

#[derive(FromRow)]
struct StateRow {
    turn_id: Uuid,
    seq: i64,
    kind: String,
    outcome: Option<String>,
    ended_at: Option<Timestamp>,
    answer_seq: Option<i64>,
    is_expired: bool,
    claim: Option<Uuid>,
}

/// An open action, as a list shows it.
#[derive(Clone, Debug)]
pub struct PendingAction {
    pub session: SessionId,
    pub action: Action,
    /// Until then only the owner of a claim may answer.
    pub claimed_until: Option<Timestamp>,
}

#[derive(FromRow)]
struct PendingRow {
    session_id: Uuid,
    body: String,
    /// The row has a part of the body.
    is_cut: bool,
    claimed_until: Option<Timestamp>,
}

/// Which open actions a list shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct PendingFilter {
    /// Of this session; else of all sessions of the organization.
    pub session: Option<SessionId>,
    /// Also of the sessions below it.
    pub with_children: bool,
    pub kind: Option<ActionKind>,
    /// Page position: only actions after this one.
    pub after: Option<ActionId>,
}

/// What may end the wait of a turn.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct ActionsNow {
    /// `seq` of the newest event with which a caller, or an expiry, ended an action of the session.
    pub action_head: i64,
    /// Whether the time of an open action of the turn has passed.
    pub has_expired: bool,
}

impl Tx {
    /// Reads an action of a locked session. Whether its time has passed is asked after the lock: a transaction may
    /// have waited for it.
    pub async fn action(&mut self, session: SessionId, action: ActionId) -> Result<FoundAction> {
        let org = self.org.uuid();
        let row: StateRow = sqlx::query_as(
            "select turn_id, seq, kind, outcome, ended_at, answer_seq, expires_at <= clock_timestamp() as is_expired,
                    case when claimed_until > clock_timestamp() then claim end as claim
             from action
             where org_id = $1 and session_id = $2 and action_id = $3",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(action.uuid())
        .fetch_one(self.connection())
        .await?;
        let outcome: Option<Ended> = row.outcome.as_deref().map(from_word).transpose()?;
        let state = ActionState {
            id: action,
            turn: Id::from_uuid(row.turn_id),
            kind: from_word(&row.kind)?,
            ended: outcome.zip(row.ended_at),
            is_expired: row.is_expired,
            claim: row.claim.map(Id::from_uuid),
        };
        Ok(FoundAction { state, seq: row.seq, answer_seq: row.answer_seq })
    }

    /// Reads the id and the body of an event of a locked session, by its place in the log.
    pub async fn event_at(&mut self, session: SessionId, seq: i64) -> Result<(EventId, String)> {
        let org = self.org.uuid();
        let (id, body): (Uuid, String) = sqlx::query_as(
            "select event_id, body::text from event where org_id = $1 and session_id = $2 and seq = $3",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(seq)
        .fetch_one(self.connection())
        .await?;
        Ok((Id::from_uuid(id), body))
    }

    /// Ends open actions of a locked session. `answer_seq` is the `seq` of the answer, if one is answered. Returns the
    /// kind of each that was open.
    pub async fn end_actions(
        &mut self,
        session: SessionId,
        actions: &[ActionId],
        outcome: Ended,
        answer_seq: Option<i64>,
    ) -> Result<Vec<ActionKind>> {
        let ids: Vec<_> = actions.iter().map(|action| action.uuid()).collect();
        let ended: Vec<String> = named!(
            query_scalar(
                "update action
                 set outcome = $outcome, ended_at = now(), answer_seq = $answer_seq
                 where org_id = $org_id and session_id = $session_id and action_id = any($ids) and outcome is null
                 returning kind"
            ),
            {
                org_id: self.org.uuid(),
                session_id: session.uuid(),
                ids: ids,
                outcome: word(&outcome),
                answer_seq: answer_seq,
            }
        )
        .fetch_all(self.connection())
        .await?;
        ended.iter().map(|kind| from_word(kind)).collect()
    }

    /// Returns the open actions of a turn whose time has passed, in the order of their opening.
    pub async fn expired_actions(&mut self, session: SessionId, turn: TurnId) -> Result<Vec<ActionId>> {
        let org = self.org.uuid();
        let rows: Vec<Uuid> = sqlx::query_scalar(
            "select action_id
             from action
             where org_id = $1 and session_id = $2 and turn_id = $3 and outcome is null
               and expires_at <= clock_timestamp()
             order by seq",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(turn.uuid())
        .fetch_all(self.connection())
        .await?;
        Ok(rows.into_iter().map(Id::from_uuid).collect())
    }

    /// Returns whether a turn has an open action.
    pub async fn has_open_actions(&mut self, session: SessionId, turn: TurnId) -> Result<bool> {
        let org = self.org.uuid();
        let found = sqlx::query_scalar(
            "select exists (
                 select from action
                 where org_id = $1 and session_id = $2 and turn_id = $3 and outcome is null
             )",
        )
        .bind(org)
        .bind(session.uuid())
        .bind(turn.uuid())
        .fetch_one(self.connection())
        .await?;
        Ok(found)
    }

    /// Claims an open action; returns the end of the claim.
    pub async fn claim_action(
        &mut self,
        session: SessionId,
        action: ActionId,
        claim: ClaimId,
        seconds: u64,
    ) -> Result<Timestamp> {
        let claimed_until = named!(
            query_scalar(
                "update action
                 set claim = $claim, claimed_until = clock_timestamp() + $seconds * interval '1 second'
                 where org_id = $org_id and session_id = $session_id and action_id = $action_id and outcome is null
                 returning claimed_until"
            ),
            {
                org_id: self.org.uuid(),
                session_id: session.uuid(),
                action_id: action.uuid(),
                claim: claim.uuid(),
                seconds: seconds as f64,
            }
        );
        Ok(claimed_until.fetch_one(self.connection()).await?)
    }

    /// Returns a page of open actions that can still be answered, oldest first, by the index `action_open` or the
    /// primary key.
    pub async fn pending_actions(
        &mut self,
        filter: &PendingFilter,
        limit: i64,
    ) -> Result<Vec<PendingAction>> {
        let query = named!(
            query_as(
                "with recursive tree as (
                     select session_id
                     from session
                     where org_id = $org_id and session_id = $session_id
                     union all
                     select s.session_id
                     from tree t
                     join session s on s.org_id = $org_id and s.parent_session_id = t.session_id
                     where $with_children
                 )
                 select a.session_id, e.body::text as body, e.content_ref is not null as is_cut,
                        case when a.claimed_until > now() then a.claimed_until end as claimed_until
                 from action a
                 join event e on e.org_id = a.org_id and e.session_id = a.session_id and e.seq = a.seq
                 where a.org_id = $org_id
                   and a.outcome is null
                   and a.expires_at > now()
                   and ($session_id::uuid is null or a.session_id in (select session_id from tree))
                   and ($kind::text is null or a.kind = $kind)
                   and ($after::uuid is null or a.action_id > $after)
                 order by a.action_id
                 limit $limit"
            ),
            {
                org_id: self.org.uuid(),
                session_id: filter.session.map(Id::uuid),
                with_children: filter.with_children,
                kind: filter.kind.as_ref().map(word),
                after: filter.after.map(Id::uuid),
                limit: limit,
            }
        );
        let rows: Vec<PendingRow> = query.fetch_all(self.connection()).await?;
        let pending = |row: PendingRow| {
            let mut action: Action = from_json(&row.body)?;
            if row.is_cut {
                // Earlier versions kept a part of them.
                action.input = serde_json::Value::Null;
            }
            Ok(PendingAction {
                session: Id::from_uuid(row.session_id),
                action,
                claimed_until: row.claimed_until,
            })
        };
        rows.into_iter().map(pending).collect()
    }
}

impl Store {
    /// Reads what may end the wait of a turn, for its worker.
    pub async fn actions_now(&self, org: OrgId, session: SessionId, turn: TurnId) -> Result<ActionsNow> {
        let now = sqlx::query_as(
            "select s.action_head, exists (
                 select from action a
                 where a.org_id = $1 and a.session_id = $2 and a.turn_id = $3 and a.outcome is null
                   and a.expires_at <= clock_timestamp()
             ) as has_expired
             from session s
             where s.org_id = $1 and s.session_id = $2",
        );
        Ok(now.bind(org.uuid()).bind(session.uuid()).bind(turn.uuid()).fetch_one(&self.system).await?)
    }
}
