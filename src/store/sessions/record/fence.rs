//! The epoch fence: the condition that refuses the writes of a lease that another worker took over.

use uuid::Uuid;

use crate::{
    domain::{OrgId, SessionId},
    store::{Result, Tx},
};

/// Permission to write for a session, valid until another worker takes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    pub org: OrgId,
    pub session: SessionId,
    pub epoch: i64,
    /// The process that holds the job.
    pub worker: Uuid,
    /// Generation of the database in which the lease read the log. An append in another one might follow events
    /// that are lost.
    pub generation: i64,
}

/// Whether the row `u` of `session` is the one that the lease `m` holds.
///
/// `m` has `org_id`, `session_id` and `epoch`.
macro_rules! fence {
    () => {
        "u.org_id = m.org_id
      and u.session_id = m.session_id
      and u.epoch = m.epoch
      and u.status <> 'archived'"
    };
}
pub(in crate::store) use fence;

/// The epoch that follows the one of `$session`: larger than any before, also than those that a failover lost, which
/// sandboxes and workers may remember. So it is the time in milliseconds, if the clocks of the servers agree.
macro_rules! next_epoch {
    ($session:literal) => {
        concat!("greatest(", $session, ".epoch + 1, (extract(epoch from now()) * 1000)::bigint)")
    };
}
pub(in crate::store) use next_epoch;

/// Whether the server has the generation in which the lease `m` read the log.
macro_rules! is_current {
    () => {
        concat!("m.generation = (select ", $crate::store::generation::generation!(), ")")
    };
}
pub(super) use is_current;

/// Rows `u` of `session` that a lease holds: session $2 of organization $1, if its epoch is $3.
macro_rules! leased {
    () => {
        concat!(
            "from session u
    cross join (select $1::uuid as org_id, $2::uuid as session_id, $3::bigint as epoch) m
    where ",
            $crate::store::record::fence!()
        )
    };
}
pub(in crate::store) use leased;

/// Start of a statement that writes other tables under a fence, with the parameters of `leased`.
macro_rules! held {
    () => {
        concat!(
            "with held as (
    select u.session_id ",
            $crate::store::record::leased!(),
            "
    for share of u
)"
        )
    };
}
pub(in crate::store) use held;

impl Tx {
    /// Returns whether a lease holds the session, whose row is locked.
    pub async fn holds(&mut self, fence: Fence) -> Result<bool> {
        let query = sqlx::query_scalar(concat!("select exists (select ", leased!(), ")"));
        let query = query.bind(fence.org.uuid()).bind(fence.session.uuid()).bind(fence.epoch);
        Ok(query.fetch_one(self.connection()).await?)
    }
}

/// Whether the row `$session` of `session`, perhaps read after a wait for it, has the destinations that this
/// statement sees. Otherwise its events would not be delivered to a destination that was just created.
macro_rules! destinations_seen {
    ($session:literal) => {
        concat!(
            $session,
            ".destination_changes = (
          select seen.destination_changes
          from session seen
          where seen.org_id = ",
            $session,
            ".org_id and seen.session_id = ",
            $session,
            ".session_id
      )"
        )
    };
}
pub(in crate::store) use destinations_seen;

/// Whether the turn of `m`, if it has one, may still write to the session `u`.
///
/// Nothing is written for a turn that is over, by whoever comes late.
macro_rules! turn_open {
    () => {
        "(m.turn_id is null
           or u.running_turn_id = m.turn_id
           or (u.queued_turn_id = m.turn_id and u.running_turn_id is null))"
    };
}
pub(in crate::store) use turn_open;
