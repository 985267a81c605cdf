//! What was used, by session and model and by day, agent and model.
//!
//! Both are sums that the statement of an append adds to (`record`), so they cannot
//! differ from the log for longer than that statement takes.

use sqlx::FromRow;

use super::{Result, Tx, column::uncount};
use crate::domain::{Cost, SessionId, Usage};

/// Adds what `s` (session, agent, model) used, in $26-$36, to both sums: two parts of
/// a statement's `with`, skipped unless $37.
macro_rules! ledger {
    () => {
        "of_session as (
    insert into session_model as m (
        tenant_id, session_id, model, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, steps,
        tool_calls, model_micros, sandbox_cpu_micros, sandbox_memory_micros, fee_micros, unpriced_steps
    )
    select $1, $2, s.model, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36
    from s
    where $37 and s.model is not null
    on conflict (tenant_id, session_id, model) do update set
        input_tokens = m.input_tokens + excluded.input_tokens,
        output_tokens = m.output_tokens + excluded.output_tokens,
        cache_write_tokens = m.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = m.cache_read_tokens + excluded.cache_read_tokens,
        steps = m.steps + excluded.steps,
        tool_calls = m.tool_calls + excluded.tool_calls,
        model_micros = m.model_micros + excluded.model_micros,
        sandbox_cpu_micros = m.sandbox_cpu_micros + excluded.sandbox_cpu_micros,
        sandbox_memory_micros = m.sandbox_memory_micros + excluded.sandbox_memory_micros,
        fee_micros = m.fee_micros + excluded.fee_micros,
        unpriced_steps = m.unpriced_steps + excluded.unpriced_steps
), of_day as (
    insert into usage_day as d (
        tenant_id, day, agent_id, model, shard, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens,
        steps, tool_calls, model_micros, sandbox_cpu_micros, sandbox_memory_micros, fee_micros, unpriced_steps
    )
    select $1, ($6 at time zone 'utc')::date, s.agent_id, s.model, get_byte(uuid_send($2), 15) % 8, $26, $27, $28,
           $29, $30, $31, $32, $33, $34, $35, $36
    from s
    where $37 and s.model is not null and s.agent_id is not null
    on conflict (tenant_id, day, agent_id, model, shard) do update set
        input_tokens = d.input_tokens + excluded.input_tokens,
        output_tokens = d.output_tokens + excluded.output_tokens,
        cache_write_tokens = d.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = d.cache_read_tokens + excluded.cache_read_tokens,
        steps = d.steps + excluded.steps,
        tool_calls = d.tool_calls + excluded.tool_calls,
        model_micros = d.model_micros + excluded.model_micros,
        sandbox_cpu_micros = d.sandbox_cpu_micros + excluded.sandbox_cpu_micros,
        sandbox_memory_micros = d.sandbox_memory_micros + excluded.sandbox_memory_micros,
        fee_micros = d.fee_micros + excluded.fee_micros,
        unpriced_steps = d.unpriced_steps + excluded.unpriced_steps
)"
    };
}
pub(super) use ledger;

/// The columns of a usage, as every table names them.
#[derive(FromRow)]
pub(super) struct Counters {
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

#[derive(FromRow)]
struct OfModel {
    model: String,
    #[sqlx(flatten)]
    counters: Counters,
}

impl Tx {
    /// What a session used of each model, by its primary key.
    pub async fn usage_by_model(&mut self, session: SessionId) -> Result<Vec<(String, Usage)>> {
        let tenant = self.tenant.uuid();
        let rows: Vec<OfModel> = sqlx::query_as(
            "select *
             from session_model
             where tenant_id = $1 and session_id = $2
             order by model",
        )
        .bind(tenant)
        .bind(session.uuid())
        .fetch_all(self.connection())
        .await?;
        Ok(rows.into_iter().map(|row| (row.model, row.counters.into())).collect())
    }
}
