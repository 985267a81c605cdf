//! Fenced append: everything that a leased turn writes, in one statement.
//!
//! It advances the session's `head` only if the epoch still matches, so a worker that lost its
//! lease changes nothing. It changes only columns that the turn owns, and only by differences,
//! because a caller may change the row between two records. `batch` does the same for several
//! sessions in one commit; `log_only` is for events that change only the log. `fence` and `fold`
//! are the parts that all these statements share.

mod batch;
mod fence;
mod fold;
mod log_only;

use sqlx::FromRow;

use crate::store::{
    Result, Store,
    agent::snapshot,
    column::{count, word},
    event::{Columns, Packed, appended, outbox},
    parameter::named,
    usage::ledger,
};
use crate::{
    base::{Id, Timestamp},
    domain::TurnId,
};

use fold::{
    Member, fold_columns, fold_query, fold_session, fold_turn, fold_usage, log_columns, log_query, one,
    one_row, start_fits,
};

pub use fence::Fence;
use fence::turn_open;
pub(in crate::store) use fence::{fence, held, leased};

/// Events to append under one lease.
#[derive(Clone, Debug)]
pub struct Record {
    pub fence: Fence,
    /// `None` for events of the session alone.
    pub turn: Option<TurnId>,
    pub ts: Timestamp,
    pub events: Vec<Packed>,
}

/// Result of a fenced append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The events follow the `seq` of `base`.
    After {
        base: i64,
        /// Whether some of them created deliveries.
        has_deliveries: bool,
    },
    /// Another worker has a newer epoch: stop.
    Stale,
    /// The epoch holds, but the row is not in the state that the events assume.
    ///
    /// Either input arrived before the start, so the input window must be read again. Or the turn
    /// has ended, and this statement was abandoned before that and executed late.
    Moved,
}

#[derive(FromRow)]
struct Row {
    base: Option<i64>,
    held: bool,
    has_deliveries: bool,
}

impl Row {
    fn recorded(&self) -> Recorded {
        match (self.base, self.held) {
            (Some(base), _) => Recorded::After { base, has_deliveries: self.has_deliveries },
            (None, true) => Recorded::Moved,
            (None, false) => Recorded::Stale,
        }
    }
}

/// Result of one member.
#[derive(FromRow)]
struct MemberRow {
    /// False when another transaction had locked the session's row.
    seen: bool,
    #[sqlx(flatten)]
    row: Row,
}

impl Store {
    /// Appends the events of one turn and applies their changes, if the fence holds.
    ///
    /// At the end of the turn the same statement removes the job, or makes it ready again when more
    /// input waits, so no wake is lost. Without a turn the events belong to the session alone, for
    /// example events of its sandbox.
    pub async fn record(&self, record: &Record) -> Result<Recorded> {
        let member = &Member::of(record);
        if member.delta.is_none() {
            return self.record_log(member).await;
        }
        let query = fold_query!(RECORD, one(member), {}, Columns::of(&record.events));
        let row: Row = query.fetch_one(&self.append).await?;
        Ok(row.recorded())
    }
}

const RECORD: &str = concat!(
    "with ",
    fold_columns!(one_row),
    ", s as (
    ",
    fold_session!("m", concat!(fence!(), " and ", start_fits!(), " and ", turn_open!())),
    "
), appended as (
    ",
    appended!(of_session),
    "
), outbox as (
    ",
    outbox!(),
    "
), folded as (
    ",
    fold_turn!("s join m using (member)"),
    "
), ",
    fold_usage!(),
    ", done as (
    delete from job j
    using s
    cross join m
    where s.ends
      and not s.more
      and j.org_id = m.org_id
      and j.session_id = m.session_id
      and j.kind = 'turn'
      and j.worker_id = m.worker_id
), again as (
    update job j
    set worker_id = null, ready_at = now(), takeovers = 0
    from s
    cross join m
    where s.ends
      and s.more
      and j.org_id = m.org_id
      and j.session_id = m.session_id
      and j.kind = 'turn'
      and j.worker_id = m.worker_id
)
select (select base from s) as base,
       exists (select from session u cross join m where ",
    fence!(),
    ") as held,
       exists (select from outbox) as has_deliveries"
);
