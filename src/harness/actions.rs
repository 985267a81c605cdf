//! Actions of a turn: opened with the calls that need a caller, and settled by the answers.

use std::time::Duration;

use serde_json::Value;

use super::{Halt, turn::Run};
use crate::{
    base::{
        Timestamp,
        limit::{ELICITATION_INPUT_BYTES_MAX, ELICITATIONS_MAX, LOOP_EXPIRES_SECONDS},
    },
    domain::{
        ActionId, Actor, EventId,
        action::{Action, ActionKind, Closed, ConfirmationReason},
        custom_tool::OnExpiry,
        elicitation::Elicitation,
        event::{Body, Draft},
        log_fold::{ActionEnd, TurnFold},
        permission::{Grant, Policy, PolicyDecision},
        repetition::Repetition,
        tool::ToolCall,
    },
    tool::CallResult,
};

/// Told to the model when nobody confirmed a call that repeats others.
const LOOPED: &str = "You have made the same calls several times. Do something else, or say what you need.";

impl Run<'_> {
    /// Returns the action of a call that a caller runs or answers, or a person must confirm; `None` for another call,
    /// and for one whose arguments do not fit.
    pub(super) fn action(
        &self,
        call: &ToolCall,
        call_event_id: EventId,
        repeats: Option<Repetition>,
    ) -> Option<Draft> {
        let action = |kind, expires_seconds| self.new_action(call, call_event_id, kind, expires_seconds);
        let decision = self.decision(call);
        let action = if let Some(tool) = self.ports.tools.caller_tool(call) {
            Action { on_expiry: tool.on_expiry, ..action(ActionKind::ToolResult, tool.expires_seconds) }
        } else if decision.policy != Policy::Deny
            && let Some((questions, expires_seconds)) = self.ports.tools.questions(call)
        {
            Action { questions, ..action(ActionKind::Question, expires_seconds) }
        } else if repeats.is_some() && decision.policy != Policy::Deny && self.ports.tools.check(call).is_ok()
        {
            Action {
                reason: Some(ConfirmationReason::Loop),
                args_hash: Some(self.ports.tools.args_hash(call)),
                ..action(ActionKind::Confirmation, LOOP_EXPIRES_SECONDS)
            }
        } else {
            let PolicyDecision { policy: Policy::Ask, rule, always, schema_hash, expires_seconds } = decision
            else {
                return None;
            };
            Action {
                reason: Some(ConfirmationReason::Policy),
                rule,
                args_hash: Some(self.ports.tools.args_hash(call)),
                schema_hash,
                always,
                ..action(ActionKind::Confirmation, expires_seconds)
            }
        };
        Some(self.opened(action))
    }

    /// An action of a call without what its kind needs.
    fn new_action(
        &self,
        call: &ToolCall,
        call_event_id: EventId,
        kind: ActionKind,
        expires_seconds: u64,
    ) -> Action {
        let expires_after = time::Duration::seconds(i64::try_from(expires_seconds).unwrap_or(i64::MAX));
        Action {
            id: self.ports.origin.id(),
            kind,
            call_id: call.call_id.clone(),
            call_event_id,
            tool: call.tool.clone(),
            input: call.input.clone(),
            expires_at: self.ports.origin.now().saturating_add(expires_after),
            on_expiry: OnExpiry::default(),
            reason: None,
            rule: None,
            args_hash: None,
            schema_hash: None,
            always: Vec::new(),
            questions: Vec::new(),
            server: None,
            message: None,
            continuation: None,
        }
    }

    /// The event of an action, with the same id.
    fn opened(&self, action: Action) -> Draft {
        let id = EventId::from_uuid(action.id.uuid());
        Draft { id, ..self.draft(Body::ActionRequired(Box::new(action)), Actor::agent()) }
    }

    /// Returns the action of a call whose server asks a person; the result of one that has asked too often.
    pub(super) fn elicitation(&self, call: &ToolCall, elicitation: Elicitation) -> Vec<Draft> {
        let Elicitation { server, message, questions, continuation, expires_seconds } = elicitation;
        let Some(turn) = self.own() else { return Vec::new() };
        let rounds = turn.elicitations(&call.call_id);
        let event = turn.call_event(&call.call_id).filter(|_| rounds < ELICITATIONS_MAX);
        let Some(call_event_id) = event else {
            let words = format!(
                "The server has asked {rounds} times and did not finish, so the call was given up; its outcome is unknown."
            );
            return self.result_events(call, CallResult::unknown(words));
        };
        let action = self.new_action(call, call_event_id, ActionKind::Question, expires_seconds);
        // The state must not be cut from a large body, and Postgres reads the body, which no zero may be in: the event of the
        // call has its arguments.
        let json = call.input.to_string();
        let is_shown = json.len() <= ELICITATION_INPUT_BYTES_MAX && !json.contains("\\u0000");
        let input = if is_shown { call.input.clone() } else { Value::Null };
        let (server, message, continuation) = (Some(server), Some(message), Some(continuation));
        vec![self.opened(Action { input, questions, server, message, continuation, ..action })]
    }

    /// Evaluates the permissions for a call of the model.
    pub(super) fn decision(&self, call: &ToolCall) -> PolicyDecision {
        let granted: Vec<Grant> = self.fold.grants().cloned().collect();
        self.ports.tools.decision(call, &granted)
    }

    /// Records the start of a call that was confirmed: from here on it may have run. Returns words for the model if
    /// the call is not the one that was confirmed.
    pub(super) async fn start_confirmed(&mut self, call: &ToolCall) -> Result<Option<&'static str>, Halt> {
        let Some(confirmed) = self.own().and_then(|turn| turn.confirmed(&call.call_id)) else {
            return Ok(None);
        };
        if confirmed != self.ports.tools.args_hash(call) {
            return Ok(Some(
                "This tool or its working directory has changed since the call was confirmed, so it did not run. Call it again.",
            ));
        }
        let started = Body::ToolStarted { call_id: call.call_id.clone() };
        self.record(vec![self.draft(started, Actor::system())]).await?;
        self.fresh.insert(call.call_id.clone());
        Ok(None)
    }

    /// Appends the results of calls whose actions have ended.
    pub(super) async fn settle_actions(&mut self, calls: &[ToolCall]) -> Result<bool, Halt> {
        let results = calls.iter().filter_map(|call| {
            let done = self.caller_result(&call.call_id)?;
            Some(self.result_events(call, done))
        });
        let results = results.flatten().collect();
        self.record(results).await?;
        Ok(false)
    }

    /// Returns the ends of the actions that are open when the turn ends.
    pub(super) fn withdrawals(&self) -> Vec<Draft> {
        let open = self.own().into_iter().flat_map(|turn| turn.open_actions());
        let closed = |(action_id, ..): (ActionId, &str, Timestamp)| Body::ActionClosed {
            action_id,
            reason: Closed::Withdrawn,
        };
        open.map(|action| self.draft(closed(action), Actor::system())).collect()
    }

    /// Returns the result of a call whose action has ended.
    pub(super) fn caller_result(&self, call_id: &str) -> Option<CallResult> {
        caller_result(self.own()?, call_id)
    }

    /// Returns the result of a call that no worker has begun; a caller may have answered it already.
    pub(super) fn not_run(&self, call: &ToolCall, words: &str) -> CallResult {
        self.caller_result(&call.call_id).unwrap_or_else(|| CallResult::not_run(words))
    }

    /// Returns the result of a call that needs a caller, for a turn that ends now.
    pub(super) fn unanswered(&self, call: &ToolCall, why: &str) -> Option<CallResult> {
        unanswered(self.own()?, &call.call_id, why)
    }
}

/// Returns the result of a call that needs a caller, for a turn that ends now; `None` for one that may have begun.
pub fn unanswered(turn: &TurnFold, call_id: &str, why: &str) -> Option<CallResult> {
    let not_run = || CallResult::not_run(format!("The turn was {why} before anybody ran this tool."));
    caller_result(turn, call_id).or_else(|| turn.has_not_begun(call_id).then(not_run))
}

fn caller_result(turn: &TurnFold, call_id: &str) -> Option<CallResult> {
    Some(match turn.ended_action(call_id)? {
        ActionEnd::Answered { text, is_error, after_ms, content } => CallResult {
            is_error: *is_error,
            content: content.clone(),
            duration: Duration::from_millis(*after_ms),
            ..CallResult::ok(text.clone())
        },
        ActionEnd::Rejected { words } => CallResult::not_run(words.clone()),
        ActionEnd::Expired { kind, .. } => match kind.expired() {
            (words, true) => CallResult::unknown(words),
            (words, false) if turn.is_loop(call_id) => CallResult::not_run(format!("{words} {LOOPED}")),
            (words, false) => CallResult::not_run(words),
        },
        ActionEnd::Confirmed | ActionEnd::Elicited(_) => return None,
    })
}
