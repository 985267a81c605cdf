//! Confirmations of calls, and the rules that they grant.

use serde_json::json;

use crate::{
    base::limit::GRANTS_MAX,
    domain::{
        ClaimId, EventId, Session, SessionId,
        action::{
            Action, ActionAnswer, ActionKind, Closed, Confirmation, Consequences, Decision, Others, Then,
        },
        decide::{Command, Stamp},
        permission::{Grant, Permissions, Policy, Rule},
        tool::{Replay, ToolCall, ToolSpec},
    },
    http::{
        auth::SessionCaller,
        prelude::*,
        scope::{ApproveActions, ReadSessions, Scope},
    },
    journal::Answered,
    permission::{self, Evaluator, RuledTool},
    store::{action::PendingFilter, audit::Act, registry::StoredGrant},
    tool,
    wire::permission::{GrantView, SessionPermissions},
};

/// Get the permissions of a session
///
/// The rules that it is bound by, and those that were granted in it since.
#[utoipa::path(get, path = "/sessions/{session_id}/permissions", tag = "actions", operation_id = "getPermissions",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = SessionPermissions), Errors))]
pub(super) async fn get(caller: Caller<ReadSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let permissions = permissions_of(&tx.session(id).await?);
    let granted = tx.grants(id).await?.into_iter().map(|StoredGrant { event, at, actor, grant }| GrantView {
        event_id: event,
        rule: grant.rule,
        granted_by: actor,
        granted_at: at,
    });
    let granted = granted.collect();
    Ok(respond(&SessionPermissions { permissions, granted }))
}

/// Revoke a granted rule
///
/// `event_id` is that of the grant in the permissions of the session. Calls that run go on.
#[utoipa::path(delete, path = "/sessions/{session_id}/permissions/{event_id}", tag = "actions",
    operation_id = "revokePermission", params(("session_id" = SessionId, Path), ("event_id" = EventId, Path)),
    responses((status = 204), Errors))]
pub(super) async fn revoke(
    caller: Caller<ApproveActions>,
    Path((id, event)): Path<(SessionId, EventId)>,
) -> Result<Response> {
    let stamp = caller.stamp();
    let mut unit = caller.unit().await?;
    unit.tx().lock_session(id).await?;
    let granted = unit.tx().grants(id).await?.into_iter().find(|granted| granted.event == event);
    let StoredGrant { grant, .. } = granted.ok_or_else(ApiError::not_found)?;
    unit.execute(id, Command::RevokeGrant { grant_event_id: event }, &stamp).await?;
    caller.record_audit(unit.tx(), "permission.revoked", id, json!({ "rule": grant.rule })).await?;
    unit.commit().await?;
    Ok(no_content())
}

/// Confirms or rejects a call.
pub(super) async fn confirm<S: Scope>(
    caller: &SessionCaller<S>,
    unit: &mut Unit,
    confirmation: Confirmation,
    claim: Option<ClaimId>,
) -> Result<Answered> {
    let (id, stamp) = (caller.session, caller.stamp());
    check_fields(&confirmation)?;
    let session = unit.tx().lock_session(id).await?;
    let action = unit.open_action(id, confirmation.action_id).await?;
    let consequences = match &action {
        Some(action) if action.kind == ActionKind::Confirmation => {
            consequences(unit, &session, action, &confirmation).await?
        }
        // The answer of another kind is refused; the one of an ended action may be a repetition.
        Some(_) | None => Consequences::default(),
    };
    let granted = consequences.grant.as_ref().map(|grant| grant.rule.clone());
    let ends_turn = confirmation.then == Then::EndTurn;
    let decision = confirmation.decision;
    let answer = ActionAnswer::Confirmation(confirmation);
    let mut answered = unit.answer(id, answer, consequences, claim, &stamp).await?;
    if let Some(action) = action.filter(|_| answered.is_new) {
        audit(unit, &stamp, id, &action, decision, granted).await?;
        if ends_turn {
            answered.session = unit.execute(id, Command::Interrupt, &stamp).await?.session;
        }
    }
    Ok(answered)
}

/// Checks that the fields belong to the decision.
fn check_fields(confirmation: &Confirmation) -> Result<()> {
    let Confirmation { decision, rule, message, others, then, .. } = confirmation;
    let rejects = *decision == Decision::Reject;
    let always = *decision == Decision::Always;
    for (field, is_wrong, words) in [
        ("rule", rule.is_some() && !always, "is only for the decision `always`"),
        (
            "rule",
            rule.is_none() && always,
            "is needed for the decision `always`: one of the action's `always`",
        ),
        ("message", message.is_some() && !rejects, "is only for the decision `reject`"),
        ("others", !others.is_keep() && !rejects, "is only for the decision `reject`"),
        ("then", !then.is_continue() && !rejects, "is only for the decision `reject`"),
    ] {
        if is_wrong {
            return Err(ApiError::invalid(field, format!("`{field}` {words}")));
        }
    }
    Ok(())
}

/// Returns what a confirmation of an open action changes beside it.
async fn consequences(
    unit: &mut Unit,
    session: &Session,
    action: &Action,
    confirmation: &Confirmation,
) -> Result<Consequences> {
    if confirmation.args_hash.is_some() && confirmation.args_hash != action.args_hash {
        let words = "`args_hash` is not that of the action: another call was confirmed";
        return Err(ApiError::conflict("args_changed", words));
    }
    let others = async |unit: &mut Unit| {
        let filter = PendingFilter {
            session: Some(session.id),
            kind: Some(ActionKind::Confirmation),
            ..PendingFilter::default()
        };
        let open = unit.tx().pending_actions(&filter, i64::MAX).await?;
        Ok::<_, ApiError>(open.into_iter().map(|one| one.action).filter(|one| one.id != action.id))
    };
    match confirmation.decision {
        Decision::Reject if confirmation.others == Others::Reject => {
            let closed = others(unit).await?.map(|one| (one.id, Closed::Rejected)).collect();
            Ok(Consequences { grant: None, closed })
        }
        Decision::Once | Decision::Reject => Ok(Consequences::default()),
        Decision::Always => {
            let mut grants: Vec<_> =
                unit.tx().grants(session.id).await?.into_iter().map(|one| one.grant).collect();
            let specs = tool::specs();
            let grant = grant_of(action, confirmation, &specs)?;
            if grants.len() >= GRANTS_MAX {
                let words = format!("a session has at most {GRANTS_MAX} granted rules; revoke one");
                return Err(ApiError::conflict("too_many_grants", words));
            }
            grants.push(grant.clone());
            let permissions = permissions_of(session);
            let cwd = session.context.working_dir.as_deref().unwrap_or(tool::WORKSPACE);
            let evaluator = Evaluator { permissions: &permissions, grants: &grants, cwd };
            let is_allowed = |one: &Action| {
                let call = ToolCall {
                    call_id: one.call_id.clone(),
                    tool: one.tool.clone(),
                    input: one.input.clone(),
                };
                // Arguments that are too large for the list are null.
                !one.input.is_null()
                    && ruled(one, &specs)
                        .is_some_and(|tool| evaluator.evaluate(&call, tool).policy == Policy::Allow)
            };
            let allowed =
                others(unit).await?.filter(is_allowed).map(|one| (one.id, Closed::Allowed)).collect();
            Ok(Consequences { grant: Some(grant), closed: allowed })
        }
    }
}

/// Returns the grant of a confirmation, if its rule is one that the action offers, or narrower.
fn grant_of(action: &Action, confirmation: &Confirmation, specs: &[ToolSpec]) -> Result<Grant> {
    let refused = |words: String| ApiError::invalid("rule", words);
    let rule: &Rule = confirmation.rule.as_ref().ok_or_else(|| refused("`rule` is needed".to_owned()))?;
    if let Some((_, field, words)) = permission::problem(std::slice::from_ref(rule), &tool::names()) {
        return Err(ApiError::invalid(format!("rule.{field}"), format!("`{field}` {words}")));
    }
    if !action.always.iter().any(|offered| rule.is_within(offered)) {
        return Err(refused("`rule` must be one of the action's `always`, or narrower".to_owned()));
    }
    // The rule is for the tool of the action.
    let tool =
        ruled(action, specs).ok_or_else(|| refused("`rule` is for no tool that has rules".to_owned()))?;
    // The event of the confirmation has no id yet.
    let confirmation_event_id = EventId::from_uuid(action.id.uuid());
    Ok(Grant { rule: rule.clone(), schema_hash: tool.schema_hash, confirmation_event_id })
}

/// Returns what rules depend on of the tool of an action: the service knows its own, the turn has told that of others.
fn ruled(action: &Action, specs: &[ToolSpec]) -> Option<RuledTool> {
    match &action.schema_hash {
        Some(schema_hash) => Some(RuledTool { replay: Replay::Unsafe, schema_hash: schema_hash.clone() }),
        None => specs.iter().find(|spec| spec.name == action.tool).map(RuledTool::from),
    }
}

async fn audit(
    unit: &mut Unit,
    stamp: &Stamp,
    id: SessionId,
    action: &Action,
    decision: Decision,
    granted: Option<Rule>,
) -> Result<()> {
    let act = match decision {
        Decision::Once | Decision::Always => "action.confirmed",
        Decision::Reject => "action.rejected",
    };
    let details = json!({ "action_id": action.id, "tool": action.tool, "args_hash": action.args_hash });
    let mut acts = vec![(act, details)];
    acts.extend(granted.map(|rule| ("permission.granted", json!({ "action_id": action.id, "rule": rule }))));
    for (action, details) in acts {
        let (id, target) = (stamp.origin.id(), Some(id.to_string()));
        unit.tx().record_audit(&Act { id, actor: &stamp.actor, action, target, details }).await?;
    }
    Ok(())
}

fn permissions_of(session: &Session) -> Permissions {
    session.created.agent_snapshot.as_ref().map(|agent| agent.permissions.clone()).unwrap_or_default()
}
