//! Reads of a log: the rows of the table `event`, and the segments of a session that was archived long ago.
//!
//! Readers do not know where an event is: every statement that reads whole events is here. Statements elsewhere
//! that read columns of `event` are for sessions that are open, which have no segments.

mod object;
mod page;
mod row;
mod segment;

pub(crate) use self::{
    object::{Segment, SegmentEncoder, Segments},
    page::{LogPage, Range},
};
use self::{
    page::{Filter, Order, Selection},
    row::{Row, columns},
    segment::SEGMENTS,
};
use crate::{
    base::Id,
    domain::{Entry, EventId, OrgId, SessionId},
    store::{Result, Store, Tx, column::threshold},
};

/// `$6` matches exactly, as a prefix when it ends in `.*`, as a suffix when it begins with `*.`.
const RANGE: &str = columns!(
    "where org_id = $1
       and session_id = $2
       and seq > $3
       and level <= $4
       and ($5::uuid is null or turn_id = $5)
       and ($6::text is null or type = $6
            or (right($6, 2) = '.*' and starts_with(type, left($6, -1)))
            or (left($6, 2) = '*.' and right(type, length($6) - 1) = substr($6, 2)))
     order by seq
     limit $7"
);

macro_rules! range {
    ($org:expr, $session:expr, $range:expr) => {
        sqlx::query_as(RANGE)
            .bind($org.uuid())
            .bind($session.uuid())
            .bind($range.after)
            .bind(threshold($range.level))
            .bind($range.turn.map(Id::uuid))
            .bind(&$range.kind)
            .bind($range.limit)
    };
}

macro_rules! segments {
    ($page:expr) => {
        sqlx::query_as(SEGMENTS)
            .bind($page.org.uuid())
            .bind($page.selection.session.uuid())
            .bind($page.selection.after)
            .bind($page.selection.before)
    };
}

fn in_range(session: SessionId, range: &Range) -> Selection<'_> {
    let (after, limit, filter) = (range.after, range.limit, Filter::Range(range));
    Selection { session, after, before: i64::MAX, order: Order::OldestFirst, limit, filter }
}

impl Tx {
    /// Returns a page of a log, in order.
    pub async fn events<'a>(&mut self, session: SessionId, range: &'a Range) -> Result<LogPage<'a>> {
        let org = self.org;
        let rows: Vec<Row> = range!(org, session, range).fetch_all(self.connection()).await?;
        self.with_segments(LogPage::new(org, in_range(session, range), rows)?).await
    }

    /// Returns a page of one event, or of none if the log does not have it.
    ///
    /// Scans the session's part of the primary key: an index by id would slow down every append for
    /// a rare request.
    pub async fn event(&mut self, session: SessionId, event: EventId) -> Result<LogPage<'static>> {
        let org = self.org;
        let rows: Vec<Row> =
            sqlx::query_as(columns!("where org_id = $1 and session_id = $2 and event_id = $3"))
                .bind(org.uuid())
                .bind(session.uuid())
                .bind(event.uuid())
                .fetch_all(self.connection())
                .await?;
        // The newest segment first: it has the result of the session.
        let (order, filter) = (Order::NewestFirst, Filter::Id(event));
        let selection = Selection { session, after: 0, before: i64::MAX, order, limit: 1, filter };
        self.with_segments(LogPage::new(org, selection, rows)?).await
    }

    async fn with_segments<'a>(&mut self, mut page: LogPage<'a>) -> Result<LogPage<'a>> {
        if page.may_lack_events() {
            page.segments = segments!(page).fetch_all(self.connection()).await?;
        }
        Ok(page)
    }
}

impl Store {
    /// Returns a page of a log, in order, for the service's own work.
    pub async fn read_events(&self, org: OrgId, session: SessionId, range: &Range) -> Result<Vec<Entry>> {
        let rows: Vec<Row> = range!(org, session, range).fetch_all(&self.system).await?;
        self.with_segments(LogPage::new(org, in_range(session, range), rows)?).await
    }

    /// Returns a page of the events of these types after `after`, in order; `agent.message` of level `user` only.
    pub async fn read_events_of_types(
        &self,
        org: OrgId,
        session: SessionId,
        after: i64,
        types: &[&'static str],
        limit: i64,
    ) -> Result<Vec<Entry>> {
        let sql = columns!(
            "where org_id = $1
               and session_id = $2
               and seq > $3
               and type = any($4)
               and (type <> 'agent.message' or level = 1)
             order by seq
             limit $5"
        );
        let rows: Vec<Row> = sqlx::query_as(sql)
            .bind(org.uuid())
            .bind(session.uuid())
            .bind(after)
            .bind(types)
            .bind(limit)
            .fetch_all(&self.system)
            .await?;
        let (order, filter) = (Order::OldestFirst, Filter::Read(types));
        let selection = Selection { session, after, before: i64::MAX, order, limit, filter };
        self.with_segments(LogPage::new(org, selection, rows)?).await
    }

    /// Returns a page of the events of these types before `before`, the newest first.
    pub async fn read_events_before(
        &self,
        org: OrgId,
        session: SessionId,
        before: i64,
        types: &[&'static str],
        limit: i64,
    ) -> Result<Vec<Entry>> {
        let sql = columns!(
            "where org_id = $1
               and session_id = $2
               and seq < $3
               and type = any($4)
             order by seq desc
             limit $5"
        );
        let rows: Vec<Row> = sqlx::query_as(sql)
            .bind(org.uuid())
            .bind(session.uuid())
            .bind(before)
            .bind(types)
            .bind(limit)
            .fetch_all(&self.system)
            .await?;
        let (order, filter) = (Order::NewestFirst, Filter::Types(types));
        let selection = Selection { session, after: 0, before, order, limit, filter };
        self.with_segments(LogPage::new(org, selection, rows)?).await
    }

    /// Reads one event by its `seq`, for the outbox. After a failover another event may have the `seq` of a lost one.
    pub async fn event_at(&self, org: OrgId, session: SessionId, seq: i64, event: EventId) -> Result<Entry> {
        let sql = columns!("where org_id = $1 and session_id = $2 and seq = $3 and event_id = $4");
        let rows: Vec<Row> = sqlx::query_as(sql)
            .bind(org.uuid())
            .bind(session.uuid())
            .bind(seq)
            .bind(event.uuid())
            .fetch_all(&self.system)
            .await?;
        let (after, before, order) = (seq - 1, seq + 1, Order::OldestFirst);
        let selection = Selection { session, after, before, order, limit: 1, filter: Filter::Id(event) };
        let page = LogPage::new(org, selection, rows)?;
        self.with_segments(page).await?.pop().ok_or(crate::store::Error::NotFound)
    }

    /// Returns rows of a log after `after` and up to `to`, in order, for the worker that moves them.
    pub async fn event_rows(
        &self,
        org: OrgId,
        session: SessionId,
        (after, to): (i64, i64),
        limit: i64,
    ) -> Result<Vec<Entry>> {
        let sql = columns!(
            "where org_id = $1
               and session_id = $2
               and seq > $3
               and seq <= $4
             order by seq
             limit $5"
        );
        let rows: Vec<Row> = sqlx::query_as(sql)
            .bind(org.uuid())
            .bind(session.uuid())
            .bind(after)
            .bind(to)
            .bind(limit)
            .fetch_all(&self.system)
            .await?;
        rows.into_iter().map(Row::entry).collect()
    }

    async fn with_segments(&self, mut page: LogPage<'_>) -> Result<Vec<Entry>> {
        if page.may_lack_events() {
            page.segments = segments!(page).fetch_all(&self.system).await?;
        }
        page.entries(self).await
    }
}
