//! Spend status, reservations of calls in progress, and balances.
//!
//! Reservations of an organization are made one at a time. Everything that decides about one is
//! read in a single statement after the lock. The append of a call's end turns its reservation into
//! cost in one statement too, so the sum of both never misses any cost.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    budget::{budgets, is_first_warning, lock_tree, of_held_leases},
    column::{count, from_json, json, uncount},
    connection::Connection,
    record::{Fence, leased},
};
use crate::{
    base::Id,
    domain::{
        AgentId, OrgId, SessionId,
        budget::{self, MaxUsage},
        spend::{CapStatus, Spend, SpendCaps, Spent, Verdict, verdict},
    },
};

/// Spend status of an organization and one of its agents.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpendStatus {
    pub organization: CapStatus,
    pub agent: CapStatus,
    /// Remaining balance in micro-USD; `None` without a limit.
    pub balance: Option<i64>,
}

#[derive(FromRow)]
struct Row {
    organization_caps: Option<String>,
    agent_caps: Option<String>,
    balance_micros: Option<i64>,
    organization_1: i64,
    organization_7: i64,
    organization_28: i64,
    agent_1: i64,
    agent_7: i64,
    agent_28: i64,
    organization_reserved: i64,
    agent_reserved: i64,
}

fn caps(text: Option<&str>) -> Result<SpendCaps> {
    Ok(text.map(from_json).transpose()?.unwrap_or_default())
}

// Windows of 1, 7 and 28 days in whole hours, by the primary key of `usage_hour`: the current hour
// and as many before it as the window has. A reservation counts while its lease holds. $3 is the
// session that reserves and $4 its exec, null for a model call; an existing reservation of the same
// call is ignored, because the new one replaces it.
const SPEND_STATUS: &str = concat!(
    "
with spent as (
    select coalesce(sum(micros) filter (where hour >= this_hour - interval '24 hours'), 0)::bigint as organization_1,
           coalesce(sum(micros) filter (where hour >= this_hour - interval '168 hours'), 0)::bigint as organization_7,
           coalesce(sum(micros), 0)::bigint as organization_28,
           coalesce(sum(micros) filter (where hour >= this_hour - interval '24 hours' and agent_id = $2), 0)::bigint
               as agent_1,
           coalesce(sum(micros) filter (where hour >= this_hour - interval '168 hours' and agent_id = $2), 0)::bigint
               as agent_7,
           coalesce(sum(micros) filter (where agent_id = $2), 0)::bigint as agent_28
    from (
        select hour, agent_id, model_micros + sandbox_cpu_micros + sandbox_memory_micros + fee_micros as micros,
               date_trunc('hour', now(), 'UTC') as this_hour
        from usage_hour
        where org_id = $1 and hour >= date_trunc('hour', now(), 'UTC') - interval '672 hours'
    ) of_hour
), reserved as (
    select coalesce(sum(r.micros), 0)::bigint as organization_reserved,
           coalesce(sum(r.micros) filter (where r.agent_id = $2), 0)::bigint as agent_reserved
    from (
        select session_id, agent_id, epoch, micros
        from reservation
        where org_id = $1 and ($4::text is not null or session_id is distinct from $3)
        union all
        select session_id, agent_id, epoch, micros
        from exec_reservation
        where org_id = $1 and (session_id is distinct from $3 or call_id is distinct from $4)
    ) r
    ",
    of_held_leases!(),
    "
)
select o.spend_caps::text as organization_caps, g.spend_caps::text as agent_caps, o.balance_micros, spent.*, reserved.*
from (values ($1::uuid, $2::uuid)) as wanted (org_id, agent_id)
left join billing o on o.org_id = wanted.org_id
left join agent g on g.org_id = wanted.org_id and g.agent_id = wanted.agent_id
cross join spent
cross join reserved"
);

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

/// The call that reserves.
#[derive(Clone, Copy)]
struct ReservingCall<'a> {
    session: SessionId,
    /// Call id of the exec; `None` for a model call.
    call: Option<&'a str>,
}

async fn spend_status(
    connection: &mut Connection,
    org: OrgId,
    agent: Option<AgentId>,
    reserving: Option<ReservingCall<'_>>,
) -> Result<SpendStatus> {
    let row: Row = sqlx::query_as(SPEND_STATUS)
        .bind(org.uuid())
        .bind(agent.map(Id::uuid))
        .bind(reserving.map(|reserving| reserving.session.uuid()))
        .bind(reserving.and_then(|reserving| reserving.call))
        .fetch_one(connection)
        .await?;
    let spent = |days: [i64; 3]| {
        let [days_1, days_7, days_28] = days.map(uncount);
        Spent { days_1, days_7, days_28 }
    };
    Ok(SpendStatus {
        organization: CapStatus {
            caps: caps(row.organization_caps.as_deref())?,
            spent: spent([row.organization_1, row.organization_7, row.organization_28]),
            reserved: uncount(row.organization_reserved),
        },
        agent: CapStatus {
            caps: caps(row.agent_caps.as_deref())?,
            spent: spent([row.agent_1, row.agent_7, row.agent_28]),
            reserved: uncount(row.agent_reserved),
        },
        balance: row.balance_micros,
    })
}

impl Store {
    /// Reads the spend status of an organization, for the service's own work.
    ///
    /// Includes the status of one of its agents.
    pub async fn spend_status_of(&self, org: OrgId, agent: Option<AgentId>) -> Result<SpendStatus> {
        let mut connection = self.system.acquire().await?;
        spend_status(&mut connection, org, agent, None).await
    }

    /// Reserves the maximum that a call of a lease may use, if the limits allow it.
    ///
    /// The reservation of a model call lasts until the append of its end, that of an exec until
    /// [`Store::release_exec`].
    ///
    /// `close` of the verdict contains caps, and limits of ancestors, without a warning so far.
    /// `None` when the fence does not hold.
    pub async fn reserve(&self, fence: Fence, ask: &Ask<'_>) -> Result<Option<Verdict>> {
        let mut tx = self.system.begin().await?;
        // Every caller that needs both locks takes them in this order.
        let mut close = Vec::new();
        if ask.is_bound {
            match check_caps(&mut tx, fence, ask).await? {
                Verdict::Granted { close: more } => close.extend(more),
                verdict => return Ok(Some(verdict)),
            }
        }
        if ask.is_shared {
            match check_tree_limits(&mut tx, fence, ask).await? {
                Verdict::Granted { close: more } => close.extend(more),
                verdict => return Ok(Some(verdict)),
            }
        }
        if !write_reservation(&mut tx, fence, ask).await? {
            return Ok(None);
        }
        let mut new = Vec::new();
        for spend in close {
            let is_first = match spend.session {
                // The session itself warns of its own limits.
                Some(session) if session == fence.session => false,
                Some(session) => is_first_warning(&mut tx, fence.org, session, &spend).await?,
                None => is_first_cap_report(&mut tx, fence.org, ask.agent, "warning", &spend).await?,
            };
            if is_first {
                new.push(spend);
            }
        }
        tx.commit().await?;
        Ok(Some(Verdict::Granted { close: new }))
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

    /// Returns the exceeded cap, if that was not yet reported within the cap's window.
    pub async fn newly_exceeded(&self, org: OrgId, agent: Option<AgentId>) -> Result<Option<Spend>> {
        let mut tx = self.system.begin().await?;
        let now = spend_status(&mut tx, org, agent, None).await?;
        let Verdict::Exceeded(spend) = verdict(&now.organization, &now.agent, now.balance) else {
            return Ok(None);
        };
        let is_first = is_first_cap_report(&mut tx, org, agent, "exceeded", &spend).await?;
        tx.commit().await?;
        Ok(is_first.then_some(spend))
    }

    /// Sets the balance of an organization; `None` removes the limit.
    ///
    /// # Errors
    /// `Conflict` when there is no such organization.
    pub async fn set_balance(&self, org: OrgId, micros: Option<i64>) -> Result<()> {
        sqlx::query(
            "insert into billing (org_id, balance_micros)
             values ($1, $2)
             on conflict (org_id) do update set balance_micros = excluded.balance_micros, updated_at = now()",
        )
        .bind(org.uuid())
        .bind(micros)
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Adds to the balance of an organization and returns the new balance.
    ///
    /// An organization without a limit gets this amount as its balance.
    ///
    /// # Errors
    /// `Conflict` when there is no such organization.
    pub async fn top_up(&self, org: OrgId, micros: i64) -> Result<i64> {
        top_up(&mut self.system.acquire().await?, org, micros).await
    }
}

async fn top_up(connection: &mut Connection, org: OrgId, micros: i64) -> Result<i64> {
    let (balance,): (i64,) = sqlx::query_as(
        "insert into billing as a (org_id, balance_micros)
         values ($1, $2)
         on conflict (org_id) do update set
            balance_micros = coalesce(a.balance_micros, 0) + excluded.balance_micros, updated_at = now()
         returning balance_micros",
    )
    .bind(org.uuid())
    .bind(micros)
    .fetch_one(connection)
    .await?;
    Ok(balance)
}

/// Checks caps and balance, one caller of an organization at a time.
///
/// Reads after the lock see everything that was committed before.
async fn check_caps(tx: &mut Connection, fence: Fence, ask: &Ask<'_>) -> Result<Verdict> {
    sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))")
        .bind(format!("spend/{}", fence.org))
        .execute(&mut *tx)
        .await?;
    let reserving = ReservingCall { session: fence.session, call: ask.call };
    let now = spend_status(tx, fence.org, ask.agent, Some(reserving)).await?;
    Ok(match verdict(&now.organization, &now.agent, now.balance) {
        Verdict::Granted { .. } if ask.most.cost_micros.is_none() => Verdict::Unpriced,
        verdict => verdict,
    })
}

/// Checks the limits of a session tree, one caller of the tree at a time.
async fn check_tree_limits(tx: &mut Connection, fence: Fence, ask: &Ask<'_>) -> Result<Verdict> {
    lock_tree(tx, fence.org, fence.session).await?;
    let budgets = budgets(tx, fence.org, fence.session, ask.call).await?;
    Ok(budget::check_budgets(&budgets, ask.most))
}

/// Writes a reservation; false when the fence does not hold.
async fn write_reservation(tx: &mut Connection, fence: Fence, ask: &Ask<'_>) -> Result<bool> {
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
        .execute(tx)
        .await?;
    Ok(done.rows_affected() > 0)
}

/// Records a report of a cap; returns whether it is the first one for this value of the cap within
/// its window.
async fn is_first_cap_report(
    tx: &mut Connection,
    org: OrgId,
    agent: Option<AgentId>,
    kind: &str,
    spend: &Spend,
) -> Result<bool> {
    let done = sqlx::query(
        "insert into spend_notice as s (org_id, agent_id, kind, cap, allowed)
         values ($1, $2, $3, $4, $5)
         on conflict (org_id, agent_id, kind, cap) do update set allowed = excluded.allowed, sent_at = now()
         where s.allowed <> excluded.allowed or s.sent_at < now() - make_interval(days => $6)",
    )
    .bind(org.uuid())
    .bind(agent.filter(|_| spend.is_of_agent()).map_or(Uuid::nil(), Id::uuid))
    .bind(kind)
    .bind(spend.limit)
    .bind(count(spend.allowed))
    .bind(spend.days())
    .execute(tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

impl Tx {
    /// Reads the spend status of the organization and one of its agents.
    pub async fn spend_status(&mut self, agent: Option<AgentId>) -> Result<SpendStatus> {
        let org = self.org;
        spend_status(self.connection(), org, agent, None).await
    }

    /// Adds to the balance of the organization and returns the new balance.
    pub async fn top_up(&mut self, micros: i64) -> Result<i64> {
        let org = self.org;
        top_up(self.connection(), org, micros).await
    }

    /// Replaces the spend caps of the organization.
    pub async fn set_spend_caps(&mut self, caps: &SpendCaps) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "insert into billing (org_id, spend_caps)
             values ($1, $2::json)
             on conflict (org_id) do update set spend_caps = excluded.spend_caps, updated_at = now()",
        )
        .bind(org)
        .bind(json(caps))
        .execute(self.connection())
        .await?;
        Ok(())
    }
}
