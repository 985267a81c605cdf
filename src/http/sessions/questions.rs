//! Answers to the questions of an agent whose turn waits for them.

use crate::{
    domain::{
        ClaimId,
        action::{ActionAnswer, ActionKind, Consequences},
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
        && let Some((place, words)) = question::problem(&action.questions, &answers.answers)
    {
        return Err(match place {
            None => ApiError::invalid("answers", format!("`answers` {words}")),
            Some((index, field)) => {
                ApiError::invalid(format!("answers[{index}].{field}"), format!("`{field}` {words}"))
            }
        });
    }
    Ok(unit.answer(id, ActionAnswer::Answers(answers), Consequences::default(), claim, &stamp).await?)
}
