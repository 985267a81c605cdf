//! Cached sums of an organization's usage in past hours.
//!
//! A reservation needs the usage of up to 28 days. Appends add to the row of the current hour, by the clock of
//! the database, so the hours before the previous one do not change any more. A process reads them once an
//! hour, and only the two last hours for each reservation. A failover that loses the last commits does not
//! make the sums wrong: they are at least an hour old.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Result, connection::Connection};
use crate::{
    base::{Timestamp, limit::PAST_SPEND_AGENTS_MAX},
    domain::OrgId,
};

/// Cache of a process. Cheap to clone.
#[derive(Clone, Default)]
pub(in crate::store) struct PastSpend(Arc<Mutex<Cached>>);

#[derive(Default)]
struct Cached {
    orgs: HashMap<OrgId, Slot>,
    /// Number of sums in all slots.
    agents: usize,
}

/// Locked while the sums are read, so that concurrent calls read them once.
type Slot = Arc<tokio::sync::Mutex<Option<Arc<Sums>>>>;

/// Micro-USD of the windows of 1, 7 and 28 days, without `hour` and the hour before it.
#[derive(Debug)]
pub(in crate::store) struct Sums {
    /// Start of the hour in which they were read.
    pub hour: Timestamp,
    pub organization: [i64; 3],
    agents: HashMap<Uuid, [i64; 3]>,
}

#[derive(FromRow)]
struct Row {
    agent_id: Uuid,
    days_1: i64,
    days_7: i64,
    days_28: i64,
}

/// By the primary key of `usage_hour`.
const PAST: &str = "
select agent_id, coalesce(sum(micros) filter (where hour >= $2::timestamptz - interval '24 hours'), 0)::bigint as days_1,
       coalesce(sum(micros) filter (where hour >= $2::timestamptz - interval '168 hours'), 0)::bigint as days_7,
       sum(micros)::bigint as days_28
from (
    select agent_id, hour, model_micros + sandbox_cpu_micros + sandbox_memory_micros + fee_micros as micros
    from usage_hour
    where org_id = $1 and hour >= $2::timestamptz - interval '672 hours' and hour < $2::timestamptz - interval '1 hour'
) of_hour
group by agent_id";

impl Sums {
    /// Returns the sums of one agent.
    pub(in crate::store) fn agent(&self, agent: Uuid) -> [i64; 3] {
        self.agents.get(&agent).copied().unwrap_or_default()
    }
}

impl PastSpend {
    /// Returns the sums of an organization that were read in the hour `since` or later, or in any hour.
    ///
    /// Reads them if there are none. The caller holds the connection before it waits for another reader.
    pub(in crate::store) async fn sums(
        &self,
        connection: &mut Connection,
        org: OrgId,
        since: Option<Timestamp>,
    ) -> Result<Arc<Sums>> {
        let slot = self.cached().orgs.entry(org).or_default().clone();
        let mut slot = slot.lock().await;
        if let Some(sums) = slot.as_ref().filter(|sums| since.is_none_or(|since| sums.hour >= since)) {
            return Ok(sums.clone());
        }
        let sums = Arc::new(read(connection, org).await?);
        let replaced = slot.replace(sums.clone());
        self.count(sums.agents.len() + 1, replaced.map_or(0, |sums| sums.agents.len() + 1));
        Ok(sums)
    }

    /// Counts sums that were read and replaced; empties the cache when it is full.
    fn count(&self, read: usize, replaced: usize) {
        let mut cached = self.cached();
        cached.agents = (cached.agents + read).saturating_sub(replaced);
        if cached.agents > PAST_SPEND_AGENTS_MAX {
            *cached = Cached::default();
        }
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.0.lock().expect("no code panics while it holds the cache lock")
    }
}

async fn read(connection: &mut Connection, org: OrgId) -> Result<Sums> {
    let (hour,): (Timestamp,) =
        sqlx::query_as("select date_trunc('hour', now(), 'UTC')").fetch_one(&mut *connection).await?;
    let rows: Vec<Row> = sqlx::query_as(PAST).bind(org.uuid()).bind(hour).fetch_all(connection).await?;
    let agents: HashMap<_, _> =
        rows.into_iter().map(|row| (row.agent_id, [row.days_1, row.days_7, row.days_28])).collect();
    let mut organization = [0; 3];
    for of_agent in agents.values() {
        for (sum, micros) in organization.iter_mut().zip(of_agent) {
            *sum += micros;
        }
    }
    Ok(Sums { hour, organization, agents })
}
