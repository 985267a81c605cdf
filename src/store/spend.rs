//! What may be spent: standings, promises to calls under way, balances.
//!
//! A promise is made by one asker of a tenant at a time, and everything that it is
//! judged by is read in one statement after that: a call's append turns its promise
//! into cost in one statement too, so the sum of both never misses any.

use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::{
    Result, Store, Tx,
    column::{count, from_json, json, uncount},
    record::Fence,
};
use crate::{
    base::Id,
    domain::{
        AgentId, TenantId,
        spend::{SpendCaps, Spent, Standing, Verdict, judge},
    },
};

/// Where an organization stands, and one of its agents.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standings {
    pub organization: Standing,
    pub agent: Standing,
    /// Micro-USD that are left; `None` without a bound.
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

// Days by the primary key of `usage_day`. A promise counts while its lease holds; $3 is
// the session that asks, whose older promise is replaced.
const STANDINGS: &str = "
with spent as (
    select coalesce(sum(micros) filter (where age < 1), 0)::bigint as organization_1,
           coalesce(sum(micros) filter (where age < 7), 0)::bigint as organization_7,
           coalesce(sum(micros), 0)::bigint as organization_28,
           coalesce(sum(micros) filter (where age < 1 and agent_id = $2), 0)::bigint as agent_1,
           coalesce(sum(micros) filter (where age < 7 and agent_id = $2), 0)::bigint as agent_7,
           coalesce(sum(micros) filter (where agent_id = $2), 0)::bigint as agent_28
    from (
        select agent_id, (now() at time zone 'utc')::date - day as age,
               model_micros + sandbox_cpu_micros + sandbox_memory_micros + fee_micros as micros
        from usage_day
        where tenant_id = $1 and day > (now() at time zone 'utc')::date - 28
    ) days
), reserved as (
    select coalesce(sum(r.micros), 0)::bigint as organization_reserved,
           coalesce(sum(r.micros) filter (where r.agent_id = $2), 0)::bigint as agent_reserved
    from reservation r
    join session s on s.tenant_id = r.tenant_id and s.session_id = r.session_id and s.epoch = r.epoch
    join job j on j.tenant_id = r.tenant_id and j.session_id = r.session_id and j.kind = 'turn'
    where r.tenant_id = $1
      and r.session_id is distinct from $3
      and j.worker_id is not null
      and j.ready_at > now()
)
select o.spend_caps::text as organization_caps, g.spend_caps::text as agent_caps, o.balance_micros, spent.*, reserved.*
from (values ($1::uuid, $2::uuid)) as wanted (tenant_id, agent_id)
left join account o on o.tenant_id = wanted.tenant_id
left join agent g on g.tenant_id = wanted.tenant_id and g.agent_id = wanted.agent_id
cross join spent
cross join reserved";

async fn standings(
    connection: &mut PgConnection,
    tenant: TenantId,
    agent: Option<AgentId>,
    asker: Option<Uuid>,
) -> Result<Standings> {
    let row: Row = sqlx::query_as(STANDINGS)
        .bind(tenant.uuid())
        .bind(agent.map(Id::uuid))
        .bind(asker)
        .fetch_one(connection)
        .await?;
    let spent = |days: [i64; 3]| {
        let [days_1, days_7, days_28] = days.map(uncount);
        Spent { days_1, days_7, days_28 }
    };
    Ok(Standings {
        organization: Standing {
            caps: caps(row.organization_caps.as_deref())?,
            spent: spent([row.organization_1, row.organization_7, row.organization_28]),
            reserved: uncount(row.organization_reserved),
        },
        agent: Standing {
            caps: caps(row.agent_caps.as_deref())?,
            spent: spent([row.agent_1, row.agent_7, row.agent_28]),
            reserved: uncount(row.agent_reserved),
        },
        balance: row.balance_micros,
    })
}

impl Store {
    /// Where an organization stands, and one of its agents, for the service's own work.
    pub async fn standings_of(&self, tenant: TenantId, agent: Option<AgentId>) -> Result<Standings> {
        let mut connection = self.system.acquire().await?;
        standings(&mut connection, tenant, agent, None).await
    }

    /// Promises `micros` to the next call of a leased turn, if that may be spent.
    /// `None` when the fence does not hold.
    pub async fn reserve(
        &self,
        fence: Fence,
        agent: AgentId,
        micros: Option<u64>,
    ) -> Result<Option<Verdict>> {
        let mut tx = self.system.begin().await?;
        // One asker of a tenant at a time; what it reads was committed before.
        sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))")
            .bind(format!("spend/{}", fence.tenant))
            .execute(&mut *tx)
            .await?;
        let now = standings(&mut tx, fence.tenant, Some(agent), Some(fence.session.uuid())).await?;
        let verdict = match (judge(&now.organization, &now.agent, now.balance), micros) {
            (Verdict::Granted { .. }, None) => Verdict::Unpriced,
            (verdict, _) => verdict,
        };
        if matches!(verdict, Verdict::Granted { .. }) {
            let done = sqlx::query(
                "insert into reservation (tenant_id, session_id, agent_id, epoch, micros)
                 select tenant_id, session_id, $4, $3, $5
                 from session
                 where tenant_id = $1 and session_id = $2 and epoch = $3 and status <> 'archived'
                 on conflict (tenant_id, session_id) do update set
                    agent_id = excluded.agent_id, epoch = excluded.epoch, micros = excluded.micros",
            )
            .bind(fence.tenant.uuid())
            .bind(fence.session.uuid())
            .bind(fence.epoch)
            .bind(agent.uuid())
            .bind(count(micros.unwrap_or_default()))
            .execute(&mut *tx)
            .await?;
            if done.rows_affected() == 0 {
                return Ok(None);
            }
        }
        tx.commit().await?;
        Ok(Some(verdict))
    }

    /// Sets what is left to an organization; `None` is without a bound.
    ///
    /// # Errors
    /// `Conflict` when there is no such organization.
    pub async fn set_balance(&self, tenant: TenantId, micros: Option<i64>) -> Result<()> {
        sqlx::query(
            "insert into account (tenant_id, balance_micros)
             values ($1, $2)
             on conflict (tenant_id) do update set balance_micros = excluded.balance_micros, updated_at = now()",
        )
        .bind(tenant.uuid())
        .bind(micros)
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Adds to what is left to an organization and returns the sum; one that had no
    /// bound has this one from now on.
    ///
    /// # Errors
    /// `Conflict` when there is no such organization.
    pub async fn top_up(&self, tenant: TenantId, micros: i64) -> Result<i64> {
        let (balance,): (i64,) = sqlx::query_as(
            "insert into account as a (tenant_id, balance_micros)
             values ($1, $2)
             on conflict (tenant_id) do update set
                balance_micros = coalesce(a.balance_micros, 0) + excluded.balance_micros, updated_at = now()
             returning balance_micros",
        )
        .bind(tenant.uuid())
        .bind(micros)
        .fetch_one(&self.system)
        .await?;
        Ok(balance)
    }
}

impl Tx {
    /// Where the organization stands, and one of its agents.
    pub async fn standings(&mut self, agent: Option<AgentId>) -> Result<Standings> {
        let tenant = self.tenant;
        standings(self.connection(), tenant, agent, None).await
    }

    /// Replaces the caps of the organization.
    pub async fn set_spend_caps(&mut self, caps: &SpendCaps) -> Result<()> {
        let tenant = self.tenant.uuid();
        sqlx::query(
            "insert into account (tenant_id, spend_caps)
             values ($1, $2::json)
             on conflict (tenant_id) do update set spend_caps = excluded.spend_caps, updated_at = now()",
        )
        .bind(tenant)
        .bind(json(caps))
        .execute(self.connection())
        .await?;
        Ok(())
    }
}
