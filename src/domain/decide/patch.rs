//! Patch: title, slug, metadata, limits and the pinned agent; an event only for actual changes.

use serde_json::{Map, Value};

use super::{Rejection, Stamp};
use crate::domain::{
    event::{Body, Draft},
    session::{AgentSnapshot, Limits, Session, Status},
};

/// Changes of a session; absent fields keep their value.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub title: Option<Option<String>>,
    pub slug: Option<Option<String>>,
    pub metadata: Option<Map<String, Value>>,
    pub limits: Option<Limits>,
    /// Refused while a turn runs or waits, because a turn keeps the agent that it started with.
    pub agent_snapshot: Option<Box<AgentSnapshot>>,
}

pub(super) fn decide(session: &Session, change: Change, stamp: &Stamp) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    let created = &session.created;
    let title = change.title.filter(|title| *title != created.title);
    let slug = change.slug.filter(|slug| *slug != created.slug);
    let metadata = change.metadata.filter(|metadata| *metadata != created.metadata);
    let limits = change.limits.filter(|limits| *limits != created.limits);
    let agent_snapshot =
        change.agent_snapshot.filter(|agent| created.agent_snapshot.as_ref() != Some(&**agent));
    if agent_snapshot.is_some() && session.running.is_some() {
        return Err(Rejection::TurnRunning);
    }
    let is_same = title.is_none() && slug.is_none() && metadata.is_none() && limits.is_none();
    if is_same && agent_snapshot.is_none() {
        return Ok(Vec::new());
    }
    Ok(vec![stamp.draft(None, Body::SessionUpdated { title, slug, metadata, limits, agent_snapshot })])
}
