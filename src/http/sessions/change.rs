//! Changes of a session that need no sandbox.

use crate::{
    domain::decide::Stamp,
    http::{prelude::*, scope::WriteSessions},
    journal::Executed,
    stream::view,
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
