//! Billing settings of an organization that a turn needs before it starts.

use sqlx::FromRow;

use crate::store::{
    Result, Store, Tx,
    column::{from_json, json},
};
use crate::{
    base::Id,
    domain::{AgentId, OrgId, price::PriceList, spend::SpendCaps},
};

/// Billing settings that apply to the turns of an agent.
#[derive(Debug)]
pub struct Billing {
    /// The organization's own price list.
    pub prices: Option<PriceList>,
    /// Stays valid for a deleted agent, whose sessions continue. True without an agent.
    pub agent_enabled: bool,
    /// A spend cap or a balance limits the cost of calls.
    pub is_bound: bool,
    /// The operator suspended the organization.
    pub is_suspended: bool,
}

#[derive(FromRow)]
struct Row {
    prices: Option<String>,
    agent_enabled: bool,
    has_balance: bool,
    organization_caps: Option<String>,
    agent_caps: Option<String>,
    is_suspended: bool,
}

const PRICES: &str = "select prices::text from billing where org_id = $1";

impl Tx {
    /// Reads the organization's own price list, if any.
    pub async fn prices(&mut self) -> Result<Option<PriceList>> {
        let org = self.org.uuid();
        let row: Option<(Option<String>,)> =
            sqlx::query_as(PRICES).bind(org).fetch_optional(self.connection()).await?;
        row.and_then(|(prices,)| prices).as_deref().map(from_json).transpose()
    }
}

impl Store {
    /// Reads the billing settings for an agent's turns, by primary keys.
    pub async fn billing(&self, org: OrgId, agent: Option<AgentId>) -> Result<Billing> {
        let row: Row = sqlx::query_as(
            "select o.prices::text, coalesce(g.enabled, true) as agent_enabled,
                    o.balance_micros is not null as has_balance, o.spend_caps::text as organization_caps,
                    g.spend_caps::text as agent_caps, t.suspended_at is not null as is_suspended
             from (values ($1::uuid, $2::uuid)) as wanted (org_id, agent_id)
             left join org t on t.org_id = wanted.org_id
             left join billing o on o.org_id = wanted.org_id
             left join agent g on g.org_id = wanted.org_id and g.agent_id = wanted.agent_id",
        )
        .bind(org.uuid())
        .bind(agent.map(Id::uuid))
        .fetch_one(&self.system)
        .await?;
        let bind = |caps: Option<&str>| -> Result<bool> {
            Ok(caps.map(from_json::<SpendCaps>).transpose()?.is_some_and(|caps| caps.bind()))
        };
        Ok(Billing {
            prices: row.prices.as_deref().map(from_json).transpose()?,
            agent_enabled: row.agent_enabled,
            is_bound: row.has_balance
                || bind(row.organization_caps.as_deref())?
                || bind(row.agent_caps.as_deref())?,
            is_suspended: row.is_suspended,
        })
    }

    /// Sets or removes the price list that overrides the bundled one.
    ///
    /// # Errors
    /// `Conflict` when there is no such organization.
    pub async fn set_prices(&self, org: OrgId, prices: Option<&PriceList>) -> Result<()> {
        sqlx::query(
            "insert into billing (org_id, prices)
             values ($1, $2::json)
             on conflict (org_id) do update set prices = excluded.prices, updated_at = now()",
        )
        .bind(org.uuid())
        .bind(prices.map(json))
        .execute(&self.system)
        .await?;
        Ok(())
    }
}
