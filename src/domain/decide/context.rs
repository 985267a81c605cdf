//! Change the context and register tools.

use super::{Rejection, Stamp};
use crate::domain::{
    context::ContextChange,
    event::{Body, Draft},
    registry::Tool,
    session::{Session, Status},
};

pub(super) fn change(
    session: &Session,
    change: ContextChange,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    let mut after = session.context.clone();
    after.apply(&change);
    let is_change = after != session.context;
    Ok(is_change.then(|| stamp.draft(None, Body::SessionContextUpdated(change))).into_iter().collect())
}

pub(super) fn register(
    session: &Session,
    tool: Tool,
    known: Option<&Tool>,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    let is_new = known != Some(&tool);
    Ok(is_new.then(|| stamp.draft(None, Body::ToolRegistered(tool))).into_iter().collect())
}
