//! Patch: title, slug, metadata and limits; an event only for actual changes.

use serde_json::{Map, Value};

use super::{Rejection, Stamp};
use crate::domain::{
    event::{Body, Draft},
    session::{Limits, Session, Status},
};

/// Changes of a session; absent fields keep their value.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub title: Option<Option<String>>,
    pub slug: Option<Option<String>>,
    pub metadata: Option<Map<String, Value>>,
    pub limits: Option<Limits>,
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
    if title.is_none() && slug.is_none() && metadata.is_none() && limits.is_none() {
        return Ok(Vec::new());
    }
    Ok(vec![stamp.draft(None, Body::SessionUpdated { title, slug, metadata, limits })])
}
