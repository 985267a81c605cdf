//! Live list of an organization's sessions: a snapshot of the list, then its changes.
//!
//! A frame contains a state, not a difference: it replaces the reader's copy of that session. All
//! followers of one organization's lists share one read per notification, and each applies its own
//! filter. A position in a list is a database snapshot, so that no change is skipped, however late it was
//! committed; see `store::listing`.

mod feed;
mod follower;

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    base::{Timestamp, limit::STREAM_PAGE_ROWS},
    domain::{AgentId, OrgId, Session, SessionId, Status},
    store::{
        self, Store, Tx,
        listing::{Change, ListPosition, Snapshot},
        session::Filter,
    },
    stream::views,
    wire::{
        listing::{ListedFrame, Unlisted},
        session::SessionView,
    },
};

pub(super) use feed::Feeds;
pub(super) use follower::Follower;

/// A list to follow and the reader's position.
#[derive(Clone, Debug)]
pub struct ListTail {
    pub org: OrgId,
    /// Filter of the list. `overdue` is not supported, because it changes without a change to the
    /// session.
    pub filter: Filter,
    /// Number of sessions in the initial snapshot, newest first.
    pub rows: i64,
    /// Position of the reader; `None` sends the initial snapshot.
    pub from: Option<Position>,
}

/// A reader's position in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    seen: Snapshot,
    /// Set while reading the changes between `seen` and a later snapshot.
    way: Option<(Snapshot, ListPosition)>,
}

/// A frame for a reader of a list.
#[derive(Clone, Debug)]
pub enum ListFrame {
    /// One line of JSON, and the reader's position after it. `None` during the initial snapshot, which is
    /// sent again after an interruption.
    Line { position: Option<Position>, json: Arc<str> },
    /// Heartbeat, so that proxies do not consider the connection dead.
    Alive,
}

/// A change, in the form shared by all followers.
#[derive(Debug)]
struct Item {
    place: ListPosition,
    /// Position of a reader after this change.
    behind: Position,
    session: SessionId,
    /// Properties that filters compare; `None` if the session was deleted.
    traits: Option<FilterFields>,
    json: Arc<str>,
}

/// Properties of a session that filters compare.
#[derive(Debug)]
struct FilterFields {
    status: Status,
    agent: Option<AgentId>,
    key: Option<String>,
    /// Only while the session is open: afterwards another session may use the slug.
    slug: Option<String>,
    parent: Option<SessionId>,
    metadata: Map<String, Value>,
    created_at: Timestamp,
}

/// Relation of a session to a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    In,
    /// Not in the list, but it may have been.
    Out,
    /// Never was in the list and never will be.
    Foreign,
}

/// Changes returned by one read.
enum Page {
    Changes {
        items: Vec<Arc<Item>>,
        end: Position,
        has_more: bool,
    },
    /// The position belongs to another database: start with a new initial snapshot.
    Foreign,
}

impl Position {
    /// Whether the next read covers only changes up to a snapshot that was taken earlier.
    fn is_catching_up(&self) -> bool {
        self.way.is_some()
    }
}

impl FilterFields {
    fn of(session: &Session) -> Self {
        Self {
            status: session.status,
            agent: session.created.agent_id,
            key: session.created.key.clone(),
            slug: session.created.slug.clone().filter(|_| session.status != Status::Archived),
            parent: session.created.parent_session_id,
            metadata: session.created.metadata.clone(),
            created_at: session.created_at,
        }
    }

    /// Compares like the store's query, except for the time-dependent `overdue`.
    fn membership(&self, filter: &Filter) -> Membership {
        let is_own = filter.agent.is_none_or(|agent| self.agent == Some(agent))
            && filter.parent.is_none_or(|parent| self.parent == Some(parent))
            && filter.key.as_ref().is_none_or(|key| self.key.as_ref() == Some(key))
            && filter.after.is_none_or(|after| self.created_at > after)
            && filter.before.is_none_or(|before| self.created_at < before);
        let has = |(name, wanted): &(String, String)| match self.metadata.get(name) {
            Some(Value::String(text)) => text == wanted,
            None | Some(Value::Null) => false,
            Some(other) => serde_json::to_string(other).is_ok_and(|text| text == *wanted),
        };
        if !is_own {
            Membership::Foreign
        } else if filter.status.is_none_or(|status| self.status == status)
            && filter.slug.as_ref().is_none_or(|slug| self.slug.as_ref() == Some(slug))
            && filter.metadata.iter().all(has)
        {
            Membership::In
        } else {
            Membership::Out
        }
    }
}

impl Item {
    /// Returns the frame for a list with this filter, if any.
    fn frame_for(&self, filter: &Filter) -> Option<Arc<str>> {
        match self.traits.as_ref().map(|traits| traits.membership(filter)) {
            None | Some(Membership::In) => Some(self.json.clone()),
            Some(Membership::Out) => {
                let frame = ListedFrame::Unlisted { id: self.session, reason: Unlisted::Filtered };
                Some(frame.line().into())
            }
            Some(Membership::Foreign) => None,
        }
    }
}

/// Reads the newest sessions of a list, and the position after them.
async fn begin(store: &Store, tail: &ListTail) -> store::Result<(Vec<Arc<str>>, Position)> {
    let mut tx = store.begin(tail.org).await?;
    let seen = tx.freeze().await?;
    let sessions = tx.sessions(&tail.filter, tail.rows).await?;
    let lines = listed(&mut tx, sessions).await?.into_iter().map(|(_, json)| json).collect();
    Ok((lines, Position { seen, way: None }))
}

/// Returns the current position of an organization's lists.
async fn now(store: &Store, org: OrgId) -> store::Result<Position> {
    let seen = store.begin(org).await?.freeze().await?;
    Ok(Position { seen, way: None })
}

/// Reads the changes after a position.
async fn read(store: &Store, org: OrgId, from: &Position) -> store::Result<Page> {
    let mut tx = store.begin(org).await?;
    let current = tx.freeze().await?;
    if !current.can_follow(&from.seen) || tx.lacks_removals_since(&from.seen).await? {
        return Ok(Page::Foreign);
    }
    let (now, beyond) = match &from.way {
        Some((now, place)) => (now.clone(), Some(*place)),
        None => (current, None),
    };
    let changes = tx.changes(&from.seen, &now, beyond, STREAM_PAGE_ROWS).await?;
    let has_more = changes.len() as i64 == STREAM_PAGE_ROWS;
    let ids: Vec<_> = changes.iter().filter(|one| !one.is_removed).map(|one| one.session).collect();
    let sessions = tx.sessions_of(&ids).await?;
    let traits: HashMap<_, _> = sessions.iter().map(|one| (one.id, FilterFields::of(one))).collect();
    let mut lines: HashMap<_, _> = listed(&mut tx, sessions).await?.into_iter().collect();
    let mut traits = traits;
    let end = Position { seen: now.clone(), way: None };
    let count = changes.len();
    let item = |(at, change): (usize, Change)| {
        let Change { place, session, is_removed } = change;
        let way = Some((now.clone(), place));
        let is_last = at + 1 == count && !has_more;
        let behind = if is_last { end.clone() } else { Position { seen: from.seen.clone(), way } };
        let json = match lines.remove(&session) {
            Some(json) => json,
            None => ListedFrame::Unlisted { id: session, reason: Unlisted::Deleted }.line().into(),
        };
        let traits = if is_removed { None } else { traits.remove(&session) };
        Arc::new(Item { place, behind, session, traits, json })
    };
    let items: Vec<_> = changes.into_iter().enumerate().map(item).collect();
    let end = items.last().map_or(end.clone(), |item| item.behind.clone());
    Ok(Page::Changes { items, end, has_more })
}

/// Serializes sessions as lines of JSON, in the same form as in a page of the list.
async fn listed(tx: &mut Tx, sessions: Vec<Session>) -> store::Result<Vec<(SessionId, Arc<str>)>> {
    let line = |session: SessionView| {
        let id = session.id;
        (id, ListedFrame::Listed { session: Box::new(session) }.line().into())
    };
    Ok(views(tx, sessions).await?.into_iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::Origin;

    #[test]
    fn a_session_is_in_the_list_out_of_it_or_none_of_its_business() {
        let origin = Origin::system();
        let agent: AgentId = origin.id();
        let metadata = json!({ "team": "blue", "level": 3, "none": null });
        let traits = FilterFields {
            status: Status::Idle,
            agent: Some(agent),
            parent: None,
            key: None,
            slug: Some("one".to_owned()),
            metadata: metadata.as_object().expect("an object").clone(),
            created_at: origin.now(),
        };
        let membership = |change: &dyn Fn(&mut Filter)| {
            let mut filter = Filter::default();
            change(&mut filter);
            traits.membership(&filter)
        };
        let metadata = |name: &str, value: &str| {
            let pair = (name.to_owned(), value.to_owned());
            membership(&move |filter: &mut Filter| filter.metadata = vec![pair.clone()])
        };
        assert_eq!(membership(&|_| {}), Membership::In);
        assert_eq!(membership(&|filter| filter.agent = Some(agent)), Membership::In);
        assert_eq!(membership(&|filter| filter.status = Some(Status::Running)), Membership::Out);
        assert_eq!(membership(&|filter| filter.slug = Some("one".to_owned())), Membership::In);
        assert_eq!(membership(&|filter| filter.slug = Some("two".to_owned())), Membership::Out);
        assert_eq!(metadata("team", "blue"), Membership::In);
        assert_eq!(metadata("level", "3"), Membership::In);
        assert_eq!(metadata("team", "red"), Membership::Out);
        assert_eq!(metadata("none", "null"), Membership::Out);
        assert_eq!(membership(&|filter| filter.agent = Some(origin.id())), Membership::Foreign);
        assert_eq!(membership(&|filter| filter.key = Some("k".to_owned())), Membership::Foreign);
        assert_eq!(membership(&|filter| filter.before = Some(traits.created_at)), Membership::Foreign);
    }
}
