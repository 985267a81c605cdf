//! Answers to the questions of an agent whose turn waits for them.

use crate::{
    domain::{
        ClaimId,
        action::{Action, ActionAnswer, ActionKind, Consequences},
        question::{self, Answers},
    },
    http::{auth::SessionCaller, prelude::*, scope::Scope},
    journal::Answered,
};

/// Answers the questions of an action.
pub(super) async fn answer<S: Scope>(
    caller: &SessionCaller<S>,
    unit: &mut Unit,
    answers: Answers,
    claim: Option<ClaimId>,
) -> Result<Answered> {
    let (id, stamp) = (caller.session, caller.stamp());
    unit.tx().lock_session(id).await?;
    // The answer of another kind is refused; the one of an ended action may be a repetition.
    if let Some(action) = unit.open_action(id, answers.action_id).await?
        && action.kind == ActionKind::Question
    {
        check(&action, &answers)?;
    }
    Ok(unit.answer(id, ActionAnswer::Answers(answers), Consequences::default(), claim, &stamp).await?)
}

/// Checks that the answers fit the questions of their action.
fn check(action: &Action, answers: &Answers) -> Result<()> {
    if answers.declined {
        return match (&action.server, answers.answers.as_slice()) {
            (None, _) => {
                Err(ApiError::invalid("declined", "only questions of an MCP server can be declined"))
            }
            (Some(_), []) => Ok(()),
            (Some(_), _) => {
                Err(ApiError::invalid("answers", "`answers` must be empty when `declined` is true"))
            }
        };
    }
    match question::problem(&action.questions, &answers.answers) {
        None => Ok(()),
        Some((None, words)) => Err(ApiError::invalid("answers", format!("`answers` {words}"))),
        Some((Some((index, field)), words)) => {
            Err(ApiError::invalid(format!("answers[{index}].{field}"), format!("`{field}` {words}")))
        }
    }
}
