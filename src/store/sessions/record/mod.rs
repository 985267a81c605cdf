//! Fenced append: everything that a leased turn writes, in one statement.
//!
//! It advances the session's `head` only if the epoch still matches, so a worker that lost its
//! lease changes nothing. It changes only columns that the turn owns, and only by differences,
//! because a caller may change the row between two records. `single` writes one record, `batch`
//! those of several sessions in one commit; `log_only` is for events that change only the log, `wake` for those that
//! wake another session or have a snapshot. `fence` and `fold` are the parts that all these statements share.

mod batch;
mod fence;
mod fold;
mod log_only;
mod single;
mod wake;

use sqlx::FromRow;

use crate::{
    base::Timestamp,
    domain::{SessionId, TurnId},
    store::{event::Packed, job::Ready, snapshot::NewSnapshot},
};

pub use fence::Fence;
pub(in crate::store) use fence::{fence, held, leased, next_epoch};

/// Events to append under one lease.
#[derive(Clone, Debug)]
pub struct Record {
    pub fence: Fence,
    /// `None` for events of the session alone.
    pub turn: Option<TurnId>,
    /// The session that started this one. Turns above continue if they wait for this session and that ends its turn, or
    /// waits itself.
    pub parent: Option<SessionId>,
    pub ts: Timestamp,
    pub events: Vec<Packed>,
    /// For events that withdraw actions, or wait for them: `seq` of the newest end of an action that was read. They
    /// are appended only while there is no later one.
    pub actions_to: Option<i64>,
    /// For an end as completed: `seq` of the newest message that steers the turn and was read. It is appended only while
    /// there is no later one.
    pub steers_to: Option<i64>,
    /// The snapshot that one of the events reports. It is stored if they are appended, and not otherwise.
    pub snapshot: Option<NewSnapshot>,
}

/// Result of a fenced append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The events follow the `seq` of `base`.
    After {
        base: i64,
        /// Whether some of them created deliveries.
        has_deliveries: bool,
        /// Jobs that became ready: of sessions above, or of this one, whose wait for sessions is over already.
        woken: Vec<Ready>,
    },
    /// Another worker has a newer epoch: stop.
    Stale,
    /// The database may have lost events since the lease read the log. Nothing was written; continue under a new
    /// epoch, which reads the log again.
    Late,
    /// The epoch holds, but the row is not in the state that the events assume.
    ///
    /// Either input arrived before the start, so the input window must be read again; or an action has ended, or a
    /// cancel came, before the turn waits; or a message steers the turn before it completes. Or the turn has ended, and this statement was abandoned before that and executed late.
    Moved,
}

#[derive(FromRow)]
struct Row {
    base: Option<i64>,
    held: bool,
    is_current: bool,
    has_deliveries: bool,
}

impl Row {
    fn recorded(&self) -> Recorded {
        match (self.base, self.held) {
            (Some(base), _) => {
                Recorded::After { base, has_deliveries: self.has_deliveries, woken: Vec::new() }
            }
            (None, _) if !self.is_current => Recorded::Late,
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
