//! Usage sums: by session and model, and by day, agent and model.
//!
//! The statement of an append (`record`) adds to both, so they match the log. The only exception is
//! late usage of an archived or deleted session, which is in the sums alone (see [`Store::bill_late`]).

use sqlx::FromRow;

use serde::{Deserialize, Serialize};
use time::Date;
use uuid::Uuid;

use crate::store::{
    Result, Store, Tx,
    agent::snapshot,
    column::{count, uncount},
    parameter::named,
    record::Fence,
};
use crate::{
    base::{Id, limit::HOUSEKEEPING_BATCH},
    domain::{AgentId, Cost, SessionId, Usage, delta::Delta},
};

/// Adds the inserted counters to those of the row `u` with which they conflict.
macro_rules! added {
    () => {
        "input_tokens = u.input_tokens + excluded.input_tokens,
        output_tokens = u.output_tokens + excluded.output_tokens,
        cache_write_tokens = u.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = u.cache_read_tokens + excluded.cache_read_tokens,
        steps = u.steps + excluded.steps,
        tool_calls = u.tool_calls + excluded.tool_calls,
        model_micros = u.model_micros + excluded.model_micros,
        sandbox_cpu_micros = u.sandbox_cpu_micros + excluded.sandbox_cpu_micros,
        sandbox_memory_micros = u.sandbox_memory_micros + excluded.sandbox_memory_micros,
        fee_micros = u.fee_micros + excluded.fee_micros,
        unpriced_steps = u.unpriced_steps + excluded.unpriced_steps"
    };
}
pub(in crate::store) use added;

/// Adds usage to the sums of the organization and subtracts its cost from the balance. Parts of a statement's `with`.
///
/// `used` selects `org_id, agent_id, model` and the counters. Usage of a session without an agent has the nil agent id,
/// and usage without a model has an empty model name. The hour is the current one by the clock of
/// the database: `PastSpend` relies on it. Rows that sessions share are locked in one order. Each hour of the day has
/// eight shards, and each connection adds to its own one, so two connections rarely wait for each other.
macro_rules! organization_sums {
    ($used:expr) => {
        concat!(
            "used as (
    ",
            $used,
            "
), of_hour as (
    insert into usage_hour as u (
        org_id, hour, agent_id, model, shard, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens,
        steps, tool_calls, model_micros, sandbox_cpu_micros, sandbox_memory_micros, fee_micros, unpriced_steps
    )
    select org_id, hour, coalesce(agent_id, '00000000-0000-0000-0000-000000000000'), model,
           pg_backend_pid() % 8, sum(input_tokens), sum(output_tokens), sum(cache_write_tokens),
           sum(cache_read_tokens), sum(steps), sum(tool_calls), sum(model_micros), sum(sandbox_cpu_micros),
           sum(sandbox_memory_micros), sum(fee_micros), sum(unpriced_steps)
    from used
    cross join date_trunc('hour', now(), 'UTC') as hour
    group by org_id, hour, agent_id, model
    order by org_id, hour, coalesce(agent_id, '00000000-0000-0000-0000-000000000000'), model
    on conflict (org_id, hour, agent_id, model, shard) do update set ",
            $crate::store::usage::added!(),
            "
), payer as (
    select a.org_id, owed.micros
    from (
        select org_id,
               sum(model_micros + sandbox_cpu_micros + sandbox_memory_micros + fee_micros)::bigint as micros
        from used
        group by org_id
    ) owed
    join billing a using (org_id)
    where owed.micros > 0
      and a.balance_micros is not null
    order by a.org_id
    for update of a
), paid as (
    update billing a
    set balance_micros = a.balance_micros - p.micros
    from payer p
    where a.org_id = p.org_id
)"
        )
    };
}
pub(in crate::store) use organization_sums;

/// Adds usage to both sums, and deletes the reservations of calls that have ended. Parts of a statement's `with`.
///
/// `used` is that of [`organization_sums`], with `session_id`, one row a session; `over` selects `org_id, session_id`.
macro_rules! ledger {
    ($used:expr, $over:literal) => {
        concat!(
            $crate::store::usage::organization_sums!($used),
            ", of_session as (
    insert into session_model as u (
        org_id, session_id, model, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, steps,
        tool_calls, model_micros, sandbox_cpu_micros, sandbox_memory_micros, fee_micros, unpriced_steps
    )
    select org_id, session_id, model, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, steps,
           tool_calls, model_micros, sandbox_cpu_micros, sandbox_memory_micros, fee_micros, unpriced_steps
    from used
    on conflict (org_id, session_id, model) do update set ",
            $crate::store::usage::added!(),
            "
), freed as (
    delete from reservation r
    using (",
            $over,
            ") o
    where r.org_id = o.org_id
      and r.session_id = o.session_id
)"
        )
    };
}
pub(in crate::store) use ledger;

/// The usage columns, which have the same names in every table.
#[derive(FromRow)]
pub(in crate::store) struct Counters {
    input_tokens: i64,
    output_tokens: i64,
    cache_write_tokens: i64,
    cache_read_tokens: i64,
    steps: i64,
    tool_calls: i64,
    model_micros: i64,
    sandbox_cpu_micros: i64,
    sandbox_memory_micros: i64,
    fee_micros: i64,
    unpriced_steps: i64,
}

impl From<Counters> for Usage {
    fn from(row: Counters) -> Self {
        Self {
            input_tokens: uncount(row.input_tokens),
            output_tokens: uncount(row.output_tokens),
            cache_write_tokens: uncount(row.cache_write_tokens),
            cache_read_tokens: uncount(row.cache_read_tokens),
            steps: uncount(row.steps),
            tool_calls: uncount(row.tool_calls),
            cost: Cost {
                model_micros: uncount(row.model_micros),
                sandbox_cpu_micros: uncount(row.sandbox_cpu_micros),
                sandbox_memory_micros: uncount(row.sandbox_memory_micros),
                fee_micros: uncount(row.fee_micros),
                unpriced_steps: uncount(row.unpriced_steps),
            },
        }
    }
}

/// Dimensions by which usage is grouped.
#[derive(Clone, Copy, Debug, Default)]
pub struct By {
    pub day: bool,
    pub agent: bool,
    pub model: bool,
}

/// Filter for a sum of usage.
#[derive(Clone, Debug)]
pub struct Filter {
    pub from: Date,
    pub to: Date,
    pub by: By,
    pub agent: Option<AgentId>,
    pub model: Option<String>,
    /// The page position.
    pub after: Option<UsageCursor>,
}

/// Position of a row in the sums.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UsageCursor(i32, Option<AgentId>, String);

/// One row of a sum: the usage of one group.
#[derive(Debug)]
pub struct Sum {
    pub day: Option<Date>,
    /// The inner `None` is the usage of sessions without an agent.
    pub agent: Option<Option<AgentId>>,
    pub model: Option<Option<String>>,
    pub usage: Usage,
}

impl Sum {
    /// Returns the position of the row.
    pub fn place(&self) -> UsageCursor {
        let day = self.day.map_or(0, Date::to_julian_day);
        UsageCursor(day, self.agent.flatten(), self.model.clone().flatten().unwrap_or_default())
    }
}

#[derive(FromRow)]
struct SumRow {
    day: Option<Date>,
    agent_id: Option<Uuid>,
    model: Option<String>,
    #[sqlx(flatten)]
    counters: Counters,
}

#[derive(FromRow)]
struct OfModel {
    model: String,
    #[sqlx(flatten)]
    counters: Counters,
}

impl Tx {
    /// Returns sums ordered by day, agent and model, by the primary key.
    pub async fn usage(&mut self, filter: &Filter, limit: i64) -> Result<Vec<Sum>> {
        let Filter { from, to, by, agent, model, after } = filter;
        let query = named!(
            query_as(
                "select *
                 from (
                     select case when $by_day then (hour at time zone 'UTC')::date end as day,
                            case when $by_agent then agent_id end as agent_id,
                            case when $by_model then model end as model,
                            sum(input_tokens)::bigint as input_tokens,
                            sum(output_tokens)::bigint as output_tokens,
                            sum(cache_write_tokens)::bigint as cache_write_tokens,
                            sum(cache_read_tokens)::bigint as cache_read_tokens,
                            sum(steps)::bigint as steps,
                            sum(tool_calls)::bigint as tool_calls,
                            sum(model_micros)::bigint as model_micros,
                            sum(sandbox_cpu_micros)::bigint as sandbox_cpu_micros,
                            sum(sandbox_memory_micros)::bigint as sandbox_memory_micros,
                            sum(fee_micros)::bigint as fee_micros,
                            sum(unpriced_steps)::bigint as unpriced_steps
                     from usage_hour
                     where org_id = $org_id
                       and hour >= $from::timestamp at time zone 'UTC'
                       and hour < ($to::timestamp + interval '1 day') at time zone 'UTC'
                       and ($agent_id::uuid is null or agent_id = $agent_id)
                       and ($model::text is null or model = $model)
                     group by 1, 2, 3
                 ) sums
                 where $after_day::date is null
                    or (coalesce(day, $from), coalesce(agent_id, '00000000-0000-0000-0000-000000000000'),
                        coalesce(model, '') collate \"C\") > ($after_day::date, $after_agent::uuid, $after_model)
                 order by day, agent_id, model collate \"C\"
                 limit $limit"
            ),
            {
                org_id: self.org.uuid(),
                from: from,
                to: to,
                agent_id: agent.map(Id::uuid),
                model: model,
                by_day: by.day,
                by_agent: by.agent,
                by_model: by.model,
                after_day:
                    after.as_ref().map(|after| Date::from_julian_day(after.0).unwrap_or(*from).max(*from)),
                after_agent: after.as_ref().map(|after| after.1.map_or(Uuid::nil(), Id::uuid)),
                after_model: after.as_ref().map(|after| after.2.clone()),
                limit: limit,
            }
        );
        let rows: Vec<SumRow> = query.fetch_all(self.connection()).await?;
        let sum = |row: SumRow| Sum {
            day: row.day,
            agent: row.agent_id.map(|id| (!id.is_nil()).then(|| Id::from_uuid(id))),
            model: row.model.map(|model| Some(model).filter(|model| !model.is_empty())),
            usage: row.counters.into(),
        };
        Ok(rows.into_iter().map(sum).collect())
    }

    /// Returns the usage of a session by model, by the table's primary key.
    pub async fn usage_by_model(&mut self, session: SessionId) -> Result<Vec<(Option<String>, Usage)>> {
        let org = self.org.uuid();
        let rows: Vec<OfModel> = sqlx::query_as(
            "select *
             from session_model
             where org_id = $1 and session_id = $2
             order by model",
        )
        .bind(org)
        .bind(session.uuid())
        .fetch_all(self.connection())
        .await?;
        let named = |model: String| Some(model).filter(|model| !model.is_empty());
        Ok(rows.into_iter().map(|row| (named(row.model), row.counters.into())).collect())
    }
}

/// The usage of a lease whose session has ended, as `used` of [`ledger`].
macro_rules! late_used {
    () => {
        "select $org_id::uuid as org_id, $session_id::uuid as session_id, s.agent_id, s.model,
           $input_tokens as input_tokens, $output_tokens as output_tokens,
           $cache_write_tokens as cache_write_tokens, $cache_read_tokens as cache_read_tokens, $steps as steps,
           $tool_calls as tool_calls, $model_micros as model_micros, $sandbox_cpu_micros as sandbox_cpu_micros,
           $sandbox_memory_micros as sandbox_memory_micros, $fee_micros as fee_micros,
           $unpriced_steps as unpriced_steps
    from s"
    };
}

/// `$epoch` is the one under which the session was archived. The log of an archived session is
/// closed, so only the sums change.
const LATE: &str = concat!(
    "with s as (
    select agent_id, coalesce($model, ",
    snapshot!("session"),
    " ->> 'model', '') as model
    from session
    where org_id = $org_id and session_id = $session_id and status = 'archived' and closed_epoch = $epoch
    for no key update
), ",
    ledger!(late_used!(), "select $org_id as org_id, $session_id as session_id from s"),
    "
select exists (select from s)"
);

/// The same for a session that was deleted under this lease or after it was archived under it. The sums of the next session
/// above that exists include those of its deleted children.
const LATE_OF_DELETED: &str = concat!(
    "with recursive s as (
    select agent_id, coalesce($model, model, '') as model, parent_session_id
    from purged_session_blobs
    where org_id = $org_id and session_id = $session_id and last_epoch = $epoch
), ",
    organization_sums!(late_used!()),
    ", above (session_id) as (
    select parent_session_id from s
    union all
    select b.parent_session_id
    from above a
    join purged_session_blobs b on b.org_id = $org_id and b.session_id = a.session_id
), counted as (
    update session p
    set deleted_tokens = p.deleted_tokens + $input_tokens + $output_tokens + $cache_write_tokens + $cache_read_tokens,
        deleted_cost_micros = p.deleted_cost_micros + $model_micros + $sandbox_cpu_micros + $sandbox_memory_micros
            + $fee_micros,
        deleted_tool_calls = p.deleted_tool_calls + $tool_calls
    from above a
    where p.org_id = $org_id and p.session_id = a.session_id
)
select exists (select from s)"
);

/// Binds the usage of a lease to a statement.
macro_rules! late {
    ($sql:expr, $fence:expr, $delta:expr) => {{
        let (fence, delta): (Fence, &Delta) = ($fence, $delta);
        let (usage, cost) = (&delta.usage, &delta.usage.cost);
        named!(query_as($sql), {
            org_id: fence.org.uuid(),
            session_id: fence.session.uuid(),
            epoch: fence.epoch,
            model: &delta.model,
            input_tokens: count(usage.input_tokens),
            output_tokens: count(usage.output_tokens),
            cache_write_tokens: count(usage.cache_write_tokens),
            cache_read_tokens: count(usage.cache_read_tokens),
            steps: count(usage.steps),
            tool_calls: count(usage.tool_calls),
            model_micros: count(cost.model_micros),
            sandbox_cpu_micros: count(cost.sandbox_cpu_micros),
            sandbox_memory_micros: count(cost.sandbox_memory_micros),
            fee_micros: count(cost.fee_micros),
            unpriced_steps: count(cost.unpriced_steps),
        })
    }};
}

impl Store {
    /// Adds a lease's usage to the sums if its session was archived or deleted under that lease.
    ///
    /// The successor of any other lease records the usage of work that the lease had started.
    pub async fn bill_late(&self, fence: Fence, delta: &Delta) -> Result<()> {
        let is_archived: (bool,) = late!(LATE, fence, delta).fetch_one(&self.system).await?;
        if !is_archived.0 {
            let _: (bool,) = late!(LATE_OF_DELETED, fence, delta).fetch_one(&self.system).await?;
        }
        Ok(())
    }

    /// Merges the shards of past hours into one row, one batch of rows at a time. Returns the number of rows that were
    /// added up.
    ///
    /// Only days to which nothing is added any more. By the index `usage_hour_sharded`.
    pub async fn fold_shards(&self) -> Result<u64> {
        let spread: i64 = sqlx::query_scalar(concat!(
            "with spread as (
                delete from usage_hour
                where ctid = any (array(
                    select ctid
                    from usage_hour
                    where shard <> 0
                      and hour < date_trunc('day', now(), 'UTC') - interval '24 hours'
                    limit $1
                    for update skip locked
                ))
                returning *
             ), folded as (
                insert into usage_hour as u (
                    org_id, hour, agent_id, model, shard, input_tokens, output_tokens, cache_write_tokens,
                    cache_read_tokens, steps, tool_calls, model_micros, sandbox_cpu_micros, sandbox_memory_micros,
                    fee_micros, unpriced_steps
                )
                select org_id, hour, agent_id, model, 0, sum(input_tokens), sum(output_tokens), sum(cache_write_tokens),
                       sum(cache_read_tokens), sum(steps), sum(tool_calls), sum(model_micros), sum(sandbox_cpu_micros),
                       sum(sandbox_memory_micros), sum(fee_micros), sum(unpriced_steps)
                from spread
                group by org_id, hour, agent_id, model
                on conflict (org_id, hour, agent_id, model, shard) do update set ",
            added!(),
            "
             )
             select count(*) from spread"
        ))
        .bind(HOUSEKEEPING_BATCH)
        .fetch_one(&self.system)
        .await?;
        Ok(spread.cast_unsigned())
    }
}
