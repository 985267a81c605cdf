//! Reservations of calls in progress: reserved first, then checked.
//!
//! A call writes its reservation, commits it, and then reads what is spent and what others have reserved. It is
//! granted if those leave something of each limit. Of two concurrent calls at least one reads the reservation of
//! the other, so no limit is exceeded by calls that did not see each other, and a call that is granted waits for
//! nobody.
//!
//! At the edge of a limit both could read the other's reservation, and both be refused. So a call that would be
//! refused because of reservations checks once more under a lock, and deletes its reservation before the next
//! one checks: refusals happen one after the other, and the last of several calls reads only those that stay.
//! Calls take this lock only while all of a limit is reserved.
//!
//! Considered and not done: sums kept by the appends, because their rows would be contended by every append of an
//! organization; a decision by the order of reservations alone, because an earlier one may be committed after
//! a later one was checked.

use crate::store::{
    Result, Store,
    budget::{budgets, is_first_warning, lock_tree},
    column::count,
    connection::Connection,
    record::{Fence, leased},
};
use crate::{
    base::Id,
    domain::{
        AgentId,
        budget::{self, MaxUsage},
        spend::{Spend, Verdict, verdict},
    },
};

use super::spend::{ReservingCall, is_first_cap_report, spend_status};

/// A request for a reservation.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// `None` in a session without an agent.
    pub agent: Option<AgentId>,
    /// Call id of the exec; `None` for a model call.
    pub call: Option<&'a str>,
    pub most: MaxUsage,
    /// A spend cap or a balance limits the organization or the agent.
    pub is_bound: bool,
    /// Limits apply to the session together with its ancestors and descendants.
    pub is_shared: bool,
}

impl Store {
    /// Reserves the maximum that a call of a lease may use, if the limits allow it.
    ///
    /// The reservation of a model call lasts until the append of its end, that of an exec until
    /// [`Store::release_exec`]; both at most as long as their lease. If this is canceled or fails, the
    /// reservation may stay until the next one of the call or the end of the lease.
    ///
    /// `close` of the verdict contains caps, and limits of ancestors, without a warning so far.
    /// `None` when the fence does not hold.
    pub async fn reserve(&self, fence: Fence, ask: &Ask<'_>) -> Result<Option<Verdict>> {
        let mut connection = self.system.acquire().await?;
        if !write_reservation(&mut connection, fence, ask).await? {
            return Ok(None);
        }
        match self.check(&mut connection, fence, ask).await? {
            Verdict::Granted { close } => {
                let close = first_warnings(&mut connection, fence, ask, close).await?;
                Ok(Some(Verdict::Granted { close }))
            }
            Verdict::Wait => {
                drop(connection);
                self.check_in_turn(fence, ask).await.map(Some)
            }
            verdict @ (Verdict::Exceeded(_) | Verdict::BalanceExhausted | Verdict::Unpriced) => {
                withdraw(&mut connection, fence, ask).await?;
                Ok(Some(verdict))
            }
        }
    }

    /// Releases the reservation of an exec, after its cost is written.
    pub async fn release_exec(&self, fence: Fence, call: &str) -> Result<()> {
        sqlx::query("delete from exec_reservation where org_id = $1 and session_id = $2 and call_id = $3")
            .bind(fence.org.uuid())
            .bind(fence.session.uuid())
            .bind(call)
            .execute(&self.system)
            .await?;
        Ok(())
    }

    /// Checks a reservation that is committed, and deletes it if it is refused, one call at a time.
    async fn check_in_turn(&self, fence: Fence, ask: &Ask<'_>) -> Result<Verdict> {
        let mut tx = self.system.begin().await?;
        // Everyone who needs both locks takes them in this order. Statements after them see every
        // reservation that was deleted under them.
        if ask.is_bound {
            sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))")
                .bind(format!("spend/{}", fence.org))
                .execute(&mut tx)
                .await?;
        }
        if ask.is_shared {
            lock_tree(&mut tx, fence.org, fence.session).await?;
        }
        let verdict = match self.check(&mut tx, fence, ask).await? {
            Verdict::Granted { close } => {
                Verdict::Granted { close: first_warnings(&mut tx, fence, ask, close).await? }
            }
            refused => {
                withdraw(&mut tx, fence, ask).await?;
                refused
            }
        };
        tx.commit().await?;
        Ok(verdict)
    }

    /// Decides whether what is spent and what others have reserved allows a call.
    async fn check(&self, connection: &mut Connection, fence: Fence, ask: &Ask<'_>) -> Result<Verdict> {
        let mut all = Vec::new();
        if ask.is_bound {
            let reserving = ReservingCall { session: fence.session, call: ask.call };
            let now =
                spend_status(connection, &self.past_spend, fence.org, ask.agent, Some(reserving)).await?;
            match verdict(&now.organization, &now.agent, now.balance) {
                Verdict::Granted { .. } if ask.most.cost_micros.is_none() => return Ok(Verdict::Unpriced),
                Verdict::Granted { close } => all.extend(close),
                refused => return Ok(refused),
            }
        }
        if ask.is_shared {
            let budgets = budgets(connection, fence.org, fence.session, ask.call).await?;
            match budget::check_budgets(&budgets, ask.most) {
                Verdict::Granted { close } => all.extend(close),
                refused => return Ok(refused),
            }
        }
        Ok(Verdict::Granted { close: all })
    }
}

/// Records warnings, and returns those that were not recorded before.
async fn first_warnings(
    connection: &mut Connection,
    fence: Fence,
    ask: &Ask<'_>,
    close: Vec<Spend>,
) -> Result<Vec<Spend>> {
    let mut new = Vec::new();
    for spend in close {
        let is_first = match spend.session {
            // The session itself warns of its own limits.
            Some(session) if session == fence.session => false,
            Some(session) => is_first_warning(connection, fence.org, session, &spend).await?,
            None => is_first_cap_report(connection, fence.org, ask.agent, "warning", &spend).await?,
        };
        if is_first {
            new.push(spend);
        }
    }
    Ok(new)
}

/// Writes a reservation; false when the fence does not hold.
async fn write_reservation(connection: &mut Connection, fence: Fence, ask: &Ask<'_>) -> Result<bool> {
    let to_model = concat!(
        "insert into reservation (org_id, session_id, agent_id, epoch, micros, tokens)
         select u.org_id, u.session_id, $4, $3, $5, $7 ",
        leased!(),
        " and $6::text is null
         on conflict (org_id, session_id) do update set
            agent_id = excluded.agent_id, epoch = excluded.epoch, micros = excluded.micros,
            tokens = excluded.tokens"
    );
    // Reservations of earlier leases no longer count.
    let to_command = concat!(
        "with past as (
            delete from exec_reservation where org_id = $1 and session_id = $2 and epoch < $3 and call_id <> $6
         )
         insert into exec_reservation (org_id, session_id, call_id, agent_id, epoch, micros)
         select u.org_id, u.session_id, $6, $4, $3, $5 ",
        leased!(),
        " and $7::bigint is not null
         on conflict (org_id, session_id, call_id) do update set
            epoch = excluded.epoch, micros = excluded.micros"
    );
    let done = sqlx::query(if ask.call.is_some() { to_command } else { to_model })
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(ask.agent.map(Id::uuid))
        .bind(count(ask.most.cost_micros.unwrap_or_default()))
        .bind(ask.call)
        .bind(count(ask.most.tokens))
        .execute(connection)
        .await?;
    Ok(done.rows_affected() > 0)
}

/// Deletes the reservation of a call that is refused.
async fn withdraw(connection: &mut Connection, fence: Fence, ask: &Ask<'_>) -> Result<()> {
    let of_model = "delete from reservation
                    where org_id = $1 and session_id = $2 and epoch = $3 and $4::text is null";
    let of_command = "delete from exec_reservation
                      where org_id = $1 and session_id = $2 and epoch = $3 and call_id = $4";
    sqlx::query(if ask.call.is_some() { of_command } else { of_model })
        .bind(fence.org.uuid())
        .bind(fence.session.uuid())
        .bind(fence.epoch)
        .bind(ask.call)
        .execute(connection)
        .await?;
    Ok(())
}
