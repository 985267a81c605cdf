//! Patch: title, metadata and limits, each only when it really changes.

use serde_json::{Map, Value};

use super::{Rejection, Stamp};
use crate::domain::{
    event::{Body, Draft},
    session::{Limits, Session, Status},
};

pub(super) fn decide(
    session: &Session,
    title: Option<Option<String>>,
    metadata: Option<Map<String, Value>>,
    limits: Option<Limits>,
    stamp: &Stamp,
) -> Result<Vec<Draft>, Rejection> {
    if session.status == Status::Archived {
        return Err(Rejection::Archived);
    }
    let created = &session.created;
    let title = title.filter(|title| *title != created.title);
    let metadata = metadata.filter(|metadata| *metadata != created.metadata);
    let limits = limits.filter(|limits| *limits != created.limits);
    if title.is_none() && metadata.is_none() && limits.is_none() {
        return Ok(Vec::new());
    }
    Ok(vec![stamp.draft(None, Body::SessionUpdated { title, metadata, limits })])
}
