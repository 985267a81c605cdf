//! The live list of an organization's sessions: those that are there, then whatever changes.
//!
//! A frame is a state, not a step: it replaces what the reader has of that session. All
//! who follow the lists of one organization share one read a notification, and each filters for itself.
//! A place in a list is a snapshot of the database, so that nothing is stepped over
//! however late it was committed; `store::listing` says how.

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

/// What a follower wants of a list.
#[derive(Clone, Debug)]
pub struct Roll {
    pub org: OrgId,
    /// Which sessions; what is `overdue` is not followed, for no change makes it so.
    pub filter: Filter,
    /// Sessions that are said at the beginning, the newest ones.
    pub rows: i64,
    /// Where the reader was; nowhere yet when absent.
    pub from: Option<Position>,
}

/// A reader's place in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    seen: Snapshot,
    /// On the way from `seen` to a later moment.
    way: Option<(Snapshot, ListPosition)>,
}

/// One thing that a reader is told.
#[derive(Clone, Debug)]
pub enum RollFrame {
    /// A line of JSON, and where the reader is behind it; none while it hears the
    /// beginning, which is then said again.
    Line { position: Option<Position>, json: Arc<str> },
    /// Nothing, so that nobody on the way believes the connection dead.
    Alive,
}

/// A change as all followers share it.
#[derive(Debug)]
struct Item {
    place: ListPosition,
    /// Where a reader is behind it.
    behind: Position,
    session: SessionId,
    /// What filters ask for; none when the session is gone.
    traits: Option<Traits>,
    json: Arc<str>,
}

/// What filters ask of a session.
#[derive(Debug)]
struct Traits {
    status: Status,
    agent: Option<AgentId>,
    key: Option<String>,
    /// While it is open: it may be another's afterwards.
    slug: Option<String>,
    parent: Option<SessionId>,
    metadata: Map<String, Value>,
    created_at: Timestamp,
}

/// How a session stands to a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    In,
    /// It may have been in it before.
    Out,
    /// It never was and never will be.
    Foreign,
}

/// The changes of one look.
enum Page {
    Changes {
        items: Vec<Arc<Item>>,
        end: Position,
        has_more: bool,
    },
    /// The place is of another database: begin anew.
    Foreign,
}

impl Position {
    /// Whether what is read next is only what had come when the way was begun.
    fn is_on_the_way(&self) -> bool {
        self.way.is_some()
    }
}

impl Traits {
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

    /// As the store compares, but for what changes by itself.
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
    /// What a list with this filter says of it.
    fn said(&self, filter: &Filter) -> Option<Arc<str>> {
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

/// The newest sessions of a list and the place behind them.
async fn begin(store: &Store, roll: &Roll) -> store::Result<(Vec<Arc<str>>, Position)> {
    let mut tx = store.begin(roll.org).await?;
    let seen = tx.freeze().await?;
    let sessions = tx.sessions(&roll.filter, roll.rows).await?;
    let lines = listed(&mut tx, sessions).await?.into_iter().map(|(_, json)| json).collect();
    Ok((lines, Position { seen, way: None }))
}

/// Where a list is now.
async fn now(store: &Store, org: OrgId) -> store::Result<Position> {
    let seen = store.begin(org).await?.freeze().await?;
    Ok(Position { seen, way: None })
}

/// What changed beyond a place.
async fn read(store: &Store, org: OrgId, from: &Position) -> store::Result<Page> {
    let mut tx = store.begin(org).await?;
    let current = tx.freeze().await?;
    if !current.can_follow(&from.seen) {
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
    let traits: HashMap<_, _> = sessions.iter().map(|one| (one.id, Traits::of(one))).collect();
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

/// Sessions as lines, each as it would be in a page of the list.
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
        let traits = Traits {
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
