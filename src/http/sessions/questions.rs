//! Answers to the questions of an agent whose turn waits for them.

use crate::{
    domain::{
        ClaimId,
        action::{ActionAnswer, ActionKind, Consequences},
        decide::Rejection,
        question::{self, Answers},
    },
    http::{auth::SessionCaller, prelude::*, scope::Scope},
    journal::{self, Answered},
    store::action::{PendingAction, PendingFilter},
    wire::action::validate_size,
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

/// Answers the only question for which a turn waits with the text of a message, if there is one that takes a text.
/// Otherwise the message waits for the next turn.
pub(super) async fn answer_by_message<S: Scope>(
    caller: &SessionCaller<S>,
    unit: &mut Unit,
    text: &str,
) -> Result<Option<Answered>> {
    let (id, stamp) = (caller.session, caller.stamp());
    if !unit.tx().lock_session(id).await?.is_waiting() {
        return Ok(None);
    }
    let filter = PendingFilter { session: Some(id), ..PendingFilter::default() };
    let open = unit.tx().pending_actions(&filter, 2).await?;
    let [PendingAction { action, .. }] = open.as_slice() else { return Ok(None) };
    let answer = question::Answer { labels: Vec::new(), text: Some(text.to_owned()) };
    let answers = Answers { action_id: action.id, answers: vec![answer] };
    let is_question = action.kind == ActionKind::Question;
    if !is_question
        || question::problem(&action.questions, &answers.answers).is_some()
        || validate_size(&answers.answers, &()).is_err()
    {
        return Ok(None);
    }
    match unit.answer(id, ActionAnswer::Answers(answers), Consequences::default(), None, &stamp).await {
        Ok(answered) => Ok(Some(answered)),
        // Its time has just passed, or another caller is about to answer.
        Err(journal::Error::Rejected(Rejection::ActionExpired | Rejection::ActionClaimed)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
