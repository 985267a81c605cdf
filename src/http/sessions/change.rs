//! Changes of a session, and requests for its turns, that need no sandbox.

use crate::{
    domain::decide::Stamp,
    http::{prelude::*, scope::WriteSessions},
    journal::Executed,
    stream::view,
    wire::message::Steered,
};

/// Changes a session once and returns it.
pub(super) async fn change(
    caller: &Caller<WriteSessions>,
    once: &IdempotentRequest,
    work: impl AsyncFnOnce(&mut Unit, &Stamp) -> Result<Executed>,
) -> Result<Answer> {
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let session = work(unit, &caller.stamp()).await?.session;
        Ok(Answer::new(StatusCode::OK, &view(unit.tx(), session).await?))
    })
    .await
}

/// Makes a request for a turn once; answers 202 with its event, or 200 if it is repeated.
pub(super) async fn request(
    caller: &Caller<WriteSessions>,
    once: &IdempotentRequest,
    work: impl AsyncFnOnce(&mut Unit, &Stamp) -> Result<Executed>,
) -> Result<Answer> {
    let mut answer = once
        .run(&caller.app, caller.org, async |unit: &mut Unit| {
            let executed = work(unit, &caller.stamp()).await?;
            let Some(event) = executed.events.first() else { unreachable!("a request is always an event") };
            Ok(Answer::new(StatusCode::ACCEPTED, &Steered::of(event, &executed.session)))
        })
        .await?;
    if answer.replayed {
        answer.status = StatusCode::OK;
    }
    Ok(answer)
}
