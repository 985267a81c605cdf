//! A page of a log, from rows and from segments.

use std::collections::VecDeque;

use super::{object::Segment, row::Row};
use crate::{
    domain::{Entry, EventId, Level, OrgId, SessionId, TurnId},
    store::{Error, Result, Store},
};

/// Filter for events of a log.
#[derive(Clone, Debug)]
pub struct Range {
    /// Only events after this `seq`.
    pub after: i64,
    pub level: Level,
    /// An exact type, or `prefix.*`.
    pub kind: Option<String>,
    pub turn: Option<TurnId>,
    pub limit: i64,
}

/// The part of a log that a page is of, and the order of its events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selection<'a> {
    pub(super) session: SessionId,
    /// Only events after this `seq`.
    pub(super) after: i64,
    /// Only events before this `seq`.
    pub(super) before: i64,
    pub(super) order: Order,
    pub(super) limit: i64,
    pub(super) filter: Filter<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    OldestFirst,
    NewestFirst,
}

/// A condition on events, as the statements have it for rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Filter<'a> {
    Id(EventId),
    Range(&'a Range),
    Types(&'a [&'static str]),
    /// Events of these types; `agent.message` of level `user` only.
    Read(&'a [&'static str]),
}

impl Filter<'_> {
    fn matches(self, entry: &Entry) -> bool {
        match self {
            Self::Id(id) => entry.id == id,
            Self::Range(range) => {
                entry.level <= range.level
                    && range.turn.is_none_or(|turn| entry.turn_id == Some(turn))
                    && range.kind.as_deref().is_none_or(|kind| is_of(kind, &entry.kind))
            }
            Self::Types(types) => types.contains(&entry.kind.as_str()),
            Self::Read(types) => {
                types.contains(&entry.kind.as_str())
                    && (entry.kind != "agent.message" || entry.level == Level::User)
            }
        }
    }

    /// Whether events of one of these types may match.
    fn may_match(self, kinds: &[String]) -> bool {
        match self {
            Self::Id(_) => true,
            Self::Range(range) => {
                range.kind.as_deref().is_none_or(|wanted| kinds.iter().any(|kind| is_of(wanted, kind)))
            }
            Self::Types(types) | Self::Read(types) => kinds.iter().any(|kind| types.contains(&kind.as_str())),
        }
    }
}

/// Whether a type is the wanted one, which may be `prefix.*` or `*.suffix`.
fn is_of(wanted: &str, kind: &str) -> bool {
    let prefix = wanted.strip_suffix('*').filter(|prefix| prefix.ends_with('.'));
    let suffix = wanted.strip_prefix('*').filter(|suffix| suffix.starts_with('.'));
    kind == wanted
        || prefix.is_some_and(|prefix| kind.starts_with(prefix))
        || suffix.is_some_and(|suffix| kind.ends_with(suffix))
}

/// A page of a log of which some events may be in the blob store.
///
/// [`LogPage::entries`] reads them. Call it after the end of the transaction: a bucket may take seconds.
#[derive(Debug)]
#[must_use]
pub struct LogPage<'a> {
    pub(super) org: OrgId,
    pub(super) selection: Selection<'a>,
    rows: Vec<Entry>,
    /// Whether the log has segments; unknown without a row.
    has_segments: Option<bool>,
    /// Segments with events of the selected part of the log, oldest first.
    pub(super) segments: Vec<Segment>,
}

impl<'a> LogPage<'a> {
    pub(super) fn new(org: OrgId, selection: Selection<'a>, rows: Vec<Row>) -> Result<Self> {
        let has_segments = rows.first().map(|row| row.has_segments);
        let rows = rows.into_iter().map(Row::entry).collect::<Result<_>>()?;
        Ok(Self { org, selection, rows, has_segments, segments: Vec::new() })
    }

    /// Whether segments may have events of this page: they are before all rows.
    ///
    /// Read the segments after the rows. What moves in between is in both, and what moved before has a segment.
    pub(super) fn may_lack_events(&self) -> bool {
        if self.has_segments == Some(false) {
            return false;
        }
        match self.selection.order {
            Order::OldestFirst => self.rows.first().is_none_or(|first| first.seq != self.selection.after + 1),
            Order::NewestFirst => (self.rows.len() as i64) < self.selection.limit,
        }
    }

    /// Returns the events of the page, in order.
    ///
    /// # Errors
    /// `SegmentLost` if the object of a segment is missing or damaged: a page never lacks events.
    pub async fn entries(self, store: &Store) -> Result<Vec<Entry>> {
        if self.segments.is_empty() {
            return Ok(self.rows);
        }
        let Selection { session, order, filter, limit, .. } = self.selection;
        let limit = usize::try_from(limit).unwrap_or_default();
        let mut segments = self.segments;
        if order == Order::NewestFirst {
            segments.reverse();
        }
        let mut rows = VecDeque::from(self.rows);
        let mut entries = Vec::new();
        for segment in segments {
            let is_next = |row: &mut Entry| match order {
                Order::OldestFirst => row.seq < segment.from_seq,
                Order::NewestFirst => row.seq > segment.to_seq,
            };
            while let Some(row) = rows.pop_front_if(is_next) {
                entries.push(row);
            }
            if entries.len() >= limit {
                break;
            }
            // Its rows were deleted between the two statements.
            let has_rows = rows.front().is_some_and(|row| segment.contains(row.seq));
            if has_rows || !filter.may_match(&segment.types) {
                continue;
            }
            let events = store.segments.read(self.org, session, &segment).await?;
            let (after, before) = (self.selection.after, self.selection.before);
            let is_selected =
                |entry: &&Entry| entry.seq > after && entry.seq < before && filter.matches(entry);
            let free = limit - entries.len();
            match order {
                Order::OldestFirst => {
                    entries.extend(events.iter().filter(is_selected).take(free).cloned());
                }
                Order::NewestFirst => {
                    entries.extend(events.iter().rev().filter(is_selected).take(free).cloned());
                }
            }
        }
        entries.extend(rows);
        entries.truncate(limit);
        Ok(entries)
    }

    /// Returns the only event of the page.
    ///
    /// # Errors
    /// `NotFound` if the log does not have it; else as [`LogPage::entries`].
    pub async fn entry(self, store: &Store) -> Result<Entry> {
        self.entries(store).await?.pop().ok_or(Error::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_matches_exactly_by_prefix_or_by_suffix() {
        for (wanted, kind, expected) in [
            ("turn.started", "turn.started", true),
            ("turn.start", "turn.started", false),
            ("turn.*", "turn.started", true),
            ("turn*", "turn.started", false),
            ("turn.*", "turns.started", false),
            ("*.message", "user.message", true),
            ("*message", "user.message", false),
            ("*.message", "user.message.more", false),
        ] {
            assert_eq!(is_of(wanted, kind), expected, "{wanted} {kind}");
        }
    }
}
