//! Spend status of organizations and agents, and balances.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    budget::of_held_leases,
    column::{count, from_json, json, uncount},
    connection::Connection,
};
use crate::{
    base::{Id, Timestamp},
    domain::{
        AgentId, OrgId, SessionId,
        spend::{CapStatus, Spend, SpendCaps, Spent, Verdict, verdict},
    },
};

use super::past_spend::PastSpend;

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
    /// Start of the current hour by the clock of the database.
    this_hour: Timestamp,
    organization_micros: i64,
    agent_micros: i64,
    organization_reserved: i64,
    agent_reserved: i64,
}

fn caps(text: Option<&str>) -> Result<SpendCaps> {
    Ok(text.map(from_json).transpose()?.unwrap_or_default())
}

// Spent in the hour $5 and those beside it; `PastSpend` has the hours before. By the primary key of `usage_hour`,
// with equal hours: a generic plan for a range of hours may read the whole table. A reservation counts while its
// lease holds. $3 is the session that reserves and $4 its exec, null for a model call; the reservation of this
// call itself does not count.
const SPEND_STATUS: &str = concat!(
    "
with spent as (
    select coalesce(sum(micros), 0)::bigint as organization_micros,
           coalesce(sum(micros) filter (where agent_id = $2), 0)::bigint as agent_micros
    from (
        select agent_id, model_micros + sandbox_cpu_micros + sandbox_memory_micros + fee_micros as micros
        from usage_hour
        where org_id = $1 and hour in ($5::timestamptz - interval '1 hour', $5, $5::timestamptz + interval '1 hour')
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
select o.spend_caps::text as organization_caps, g.spend_caps::text as agent_caps, o.balance_micros,
       date_trunc('hour', now(), 'UTC') as this_hour, spent.*, reserved.*
from (values ($1::uuid, $2::uuid)) as wanted (org_id, agent_id)
left join billing o on o.org_id = wanted.org_id
left join agent g on g.org_id = wanted.org_id and g.agent_id = wanted.agent_id
cross join spent
cross join reserved"
);

/// The call that reserves.
#[derive(Clone, Copy)]
pub(super) struct ReservingCall<'a> {
    pub session: SessionId,
    /// Call id of the exec; `None` for a model call.
    pub call: Option<&'a str>,
}

/// Reads the spend status of an organization and one of its agents.
///
/// All that concurrent calls change is read in one statement, which misses no cost: the append of a call's end
/// replaces its reservation by its cost.
pub(super) async fn spend_status(
    connection: &mut Connection,
    past_spend: &PastSpend,
    org: OrgId,
    agent: Option<AgentId>,
    reserving: Option<ReservingCall<'_>>,
) -> Result<SpendStatus> {
    let agent = agent.map(Id::uuid);
    let mut past = past_spend.sums(connection, org, None).await?;
    loop {
        let row: Row = sqlx::query_as(SPEND_STATUS)
            .bind(org.uuid())
            .bind(agent)
            .bind(reserving.map(|reserving| reserving.session.uuid()))
            .bind(reserving.and_then(|reserving| reserving.call))
            .bind(past.hour)
            .fetch_one(&mut *connection)
            .await?;
        if row.this_hour > past.hour {
            past = past_spend.sums(connection, org, Some(row.this_hour)).await?;
            continue;
        }
        let spent = |past: [i64; 3], micros: i64| {
            let [days_1, days_7, days_28] = past.map(|past| uncount(past + micros));
            Spent { days_1, days_7, days_28 }
        };
        let of_agent = agent.map_or([0; 3], |agent| past.agent(agent));
        return Ok(SpendStatus {
            organization: CapStatus {
                caps: caps(row.organization_caps.as_deref())?,
                spent: spent(past.organization, row.organization_micros),
                reserved: uncount(row.organization_reserved),
            },
            agent: CapStatus {
                caps: caps(row.agent_caps.as_deref())?,
                spent: spent(of_agent, row.agent_micros),
                reserved: uncount(row.agent_reserved),
            },
            balance: row.balance_micros,
        });
    }
}

impl Store {
    /// Reads the spend status of an organization, for the service's own work.
    ///
    /// Includes the status of one of its agents.
    pub async fn spend_status_of(&self, org: OrgId, agent: Option<AgentId>) -> Result<SpendStatus> {
        let mut connection = self.system.acquire().await?;
        spend_status(&mut connection, &self.past_spend, org, agent, None).await
    }

    /// Returns the exceeded cap, if that was not yet reported within the cap's window.
    pub async fn newly_exceeded(&self, org: OrgId, agent: Option<AgentId>) -> Result<Option<Spend>> {
        let mut tx = self.system.begin().await?;
        let now = spend_status(&mut tx, &self.past_spend, org, agent, None).await?;
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

/// Records a report of a cap; returns whether it is the first one for this value of the cap within
/// its window.
pub(super) async fn is_first_cap_report(
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
        let (org, past_spend) = (self.org, self.past_spend.clone());
        spend_status(self.connection(), &past_spend, org, agent, None).await
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
