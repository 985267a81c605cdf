//! Actions: answers and claims of callers, and expiry.

use super::{Error, Journal, Unit};
use crate::{
    base::{Timestamp, limit::TOOL_OUTPUT_BYTES_MAX},
    domain::{
        ActionId, Actor, ClaimId, EventId, OrgId, Session, SessionId, TurnId,
        action::{Action, ActionAnswer, ActionKind, Closed, Consequences, Ended},
        decide::{Command, Rejection, Stamp},
        event::{Body, Event},
        open_work::{CallEnd, OpenCall},
        question::{self, Answers},
    },
    store::{self, action::PendingFilter},
};

/// Questions that are read to find out whether there is one.
const OPEN_QUESTIONS_READ: i64 = 8;

/// The event of an answer.
#[derive(Debug)]
pub struct Answered {
    pub event: EventId,
    pub seq: i64,
    /// Whether this request appended it; else an equal one did before.
    pub is_new: bool,
    /// The session after the answer.
    pub session: Session,
}

impl Unit {
    /// Answers an action. The same answer again returns the first event. `consequences` are those of a confirmation.
    ///
    /// The turn continues when its last open action has ended, or a call waits for an earlier one: then the job is made
    /// ready in this transaction.
    ///
    /// # Errors
    /// `Rejected` when the action has ended, its time has passed, or another caller has claimed it;
    /// `Store(NotFound)` when the session has no such action.
    pub async fn answer(
        &mut self,
        id: SessionId,
        answer: ActionAnswer,
        consequences: Consequences,
        claim: Option<ClaimId>,
        stamp: &Stamp,
    ) -> Result<Answered, Error> {
        let session = self.tx.lock_session(id).await?;
        let action = answer.action_id();
        let found = self.tx.action(id, action).await?;
        if let Some(seq) = found.answer_seq {
            match self.tx.event_at(id, seq).await {
                Ok((event, body)) if answer.is_that_of(&body) => {
                    return Ok(Answered { event, seq, is_new: false, session });
                }
                // The events of an archived session may be in a blob, which is not read in a transaction.
                // Then the answer is refused like another one.
                Ok(_) | Err(store::Error::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let turn = found.state.turn;
        // A session above may wait until it can answer what is left. Its job is locked before anything is written.
        let above = match session.created.parent_session_id.filter(|_| session.is_waiting()) {
            Some(parent) => self.tx.lock_jobs_above(parent).await?,
            None => Vec::new(),
        };
        let command = Command::Answer { state: found.state, answer, consequences, claim };
        let executed = self.execute_locked(session, command, stamp).await?;
        let Some(Event { seq, draft, .. }) = executed.events.first() else {
            unreachable!("an answer is always an event")
        };
        self.end_actions(id, &[action], Ended::Answered, Some(*seq)).await?;
        if executed.session.is_waiting() && self.lets_turn_continue(id, turn).await? {
            self.enqueue(id).await?;
        }
        self.wake_above(&above, id).await?;
        Ok(Answered { event: draft.id, seq: *seq, is_new: true, session: executed.session })
    }

    /// Returns the open questions of a session; `is_alone`: only if nothing else is open.
    pub async fn open_questions(&mut self, id: SessionId, is_alone: bool) -> Result<Vec<Action>, Error> {
        let kind = (!is_alone).then_some(ActionKind::Question);
        let filter = PendingFilter { session: Some(id), kind, ..PendingFilter::default() };
        let open = self.tx.pending_actions(&filter, OPEN_QUESTIONS_READ).await?;
        let open: Vec<_> = open.into_iter().map(|pending| pending.action).collect();
        let all = open.iter().all(|action| action.kind == ActionKind::Question);
        Ok(if all { open } else { Vec::new() })
    }

    /// Answers the only question for which a turn waits with the text of a message, if there is one that takes a text.
    /// Otherwise the message waits for the next turn. `is_alone`: only if the turn waits for nothing else.
    ///
    /// # Errors
    /// `Store(NotFound)` when there is no such session.
    pub async fn answer_by_message(
        &mut self,
        id: SessionId,
        text: &str,
        is_alone: bool,
        stamp: &Stamp,
    ) -> Result<Option<Answered>, Error> {
        if !self.tx.lock_session(id).await?.is_waiting() {
            return Ok(None);
        }
        let mut open = self.open_questions(id, is_alone).await?;
        let (Some(action), true) = (open.pop(), open.is_empty()) else { return Ok(None) };
        // What goes to an MCP server is answered on purpose.
        if action.server.is_some() {
            return Ok(None);
        }
        let answer = question::Answer { labels: Vec::new(), text: Some(text.to_owned()) };
        let answers = Answers { action_id: action.id, answers: vec![answer], declined: false };
        let is_too_long =
            serde_json::to_vec(&answers.answers).is_ok_and(|json| json.len() > TOOL_OUTPUT_BYTES_MAX);
        if is_too_long || question::problem(&action.questions, &answers.answers).is_some() {
            return Ok(None);
        }
        match self.answer(id, ActionAnswer::Answers(answers), Consequences::default(), None, stamp).await {
            Ok(answered) => Ok(Some(answered)),
            // Its time has just passed, or another caller is about to answer.
            Err(Error::Rejected(Rejection::ActionExpired | Rejection::ActionClaimed)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a waiting turn has something to do after an answer: no action is open any more, or a call of
    /// the service may have waited for the one that was answered.
    async fn lets_turn_continue(&mut self, id: SessionId, turn: TurnId) -> Result<bool, Error> {
        if !self.tx.has_open_actions(id, turn).await? {
            return Ok(true);
        }
        let open = self.tx.open_work(id, turn).await?;
        let is_runnable = |call: &OpenCall| {
            matches!(call.action, None | Some((_, _, Some(CallEnd::Confirmed | CallEnd::Rejected(_)))))
        };
        Ok(open.0.iter().any(is_runnable))
    }

    /// Reads an open action of a locked session as its event has it; `None` once it has ended. Arguments that are too
    /// large are null.
    ///
    /// # Errors
    /// `Store(NotFound)` when the session has no such action.
    pub async fn open_action(&mut self, id: SessionId, action: ActionId) -> Result<Option<Action>, Error> {
        let found = self.tx.action(id, action).await?;
        if found.state.ended.is_some() {
            return Ok(None);
        }
        let (_, body) = self.tx.event_at(id, found.seq).await?;
        serde_json::from_str(&body).map(Some).map_err(|error| store::Error::Corrupt(error.to_string()).into())
    }

    /// Claims an action, so that until the end of the claim only its owner may answer. Returns that end.
    ///
    /// # Errors
    /// As for [`Unit::answer`].
    pub async fn claim_action(
        &mut self,
        id: SessionId,
        action: ActionId,
        claim: ClaimId,
        seconds: u64,
        stamp: &Stamp,
    ) -> Result<Timestamp, Error> {
        let session = self.tx.lock_session(id).await?;
        let state = self.tx.action(id, action).await?.state;
        self.execute_locked(session, Command::ClaimAction(state), stamp).await?;
        Ok(self.tx.claim_action(id, action, claim, seconds).await?)
    }

    /// Marks actions as ended, and counts them.
    async fn end_actions(
        &mut self,
        id: SessionId,
        actions: &[ActionId],
        outcome: Ended,
        answer_seq: Option<i64>,
    ) -> Result<(), store::Error> {
        for kind in self.tx.end_actions(id, actions, outcome, answer_seq).await? {
            metrics::counter!("sojourn_actions_total", "kind" => kind.name(), "outcome" => outcome.name())
                .increment(1);
        }
        Ok(())
    }

    /// Marks actions as ended that these events end without an answer or an expiry.
    pub(super) async fn close_actions(
        &mut self,
        id: SessionId,
        events: &[Event],
    ) -> Result<(), store::Error> {
        for wanted in [Closed::Withdrawn, Closed::Allowed, Closed::Rejected] {
            let closed = |event: &Event| match &event.draft.body {
                Body::ActionClosed { action_id, reason } if *reason == wanted => Some(*action_id),
                _ => None,
            };
            let ids: Vec<_> = events.iter().filter_map(closed).collect();
            if !ids.is_empty() {
                self.end_actions(id, &ids, wanted.into(), None).await?;
            }
        }
        Ok(())
    }
}

impl Journal {
    /// Closes the actions of a turn whose time has passed. Whoever does it, it happens once.
    pub(super) async fn expire_actions(&self, org: OrgId, id: SessionId, turn: TurnId) -> Result<(), Error> {
        let stamp = Stamp { actor: Actor::system(), origin: self.origin.clone() };
        let mut unit = self.begin(org).await?;
        let session = unit.tx.lock_session(id).await?;
        if session.running.as_ref().is_none_or(|running| running.id != turn) {
            return Ok(());
        }
        let ids = unit.tx.expired_actions(id, turn).await?;
        unit.execute_locked(session, Command::ExpireActions(ids.clone()), &stamp).await?;
        unit.end_actions(id, &ids, Ended::Expired, None).await?;
        unit.commit().await?;
        Ok(())
    }
}
