//! Usage, prices, budget and capacity of the organization.

use serde::Deserialize;
use serde_json::json;
use time::{Date, Duration, macros::format_description};
use utoipa::IntoParams;

use crate::{
    base::limit::{USAGE_DAYS_DEFAULT, USAGE_DAYS_MAX},
    domain::price::PriceList,
    http::{
        path,
        prelude::*,
        scope::{ReadUsage, WriteBudget},
    },
    store::{
        spend::SpendStatus,
        usage::{By, Filter, Sum},
    },
    wire::{
        budget::{BudgetView, PatchBudget, UsageRow},
        capacity::{CapacityView, ResourceUse},
        price::PricesView,
    },
};

/// Filters and grouping of usage.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageQuery {
    /// First day in UTC, for example 2026-01-31; default four weeks back.
    #[param(format = Date)]
    pub from: Option<String>,
    /// Last day in UTC; default today.
    #[param(format = Date)]
    pub to: Option<String>,
    /// Grouping: comma-separated list of `day`, `agent` and `model`; default `day`.
    pub by: Option<String>,
    /// Id or name of an agent; `agent_id` is accepted too.
    #[serde(alias = "agent_id")]
    pub agent: Option<String>,
    /// A model as `provider/model`.
    pub model: Option<String>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// Get usage by day, agent and model
///
/// Sorted by day, agent and model. Usage is retained when sessions are deleted.
#[utoipa::path(get, path = "/usage", tag = "usage", operation_id = "getUsage", params(UsageQuery),
    responses((status = 200, body = Page<UsageRow>), Errors))]
pub(super) async fn usage(caller: Caller<ReadUsage>, Query(query): Query<UsageQuery>) -> Result<Response> {
    let today = caller.origin().now().date();
    let to = day("to", query.to.as_deref())?.unwrap_or(today);
    let back = |days| to.checked_sub(Duration::days(days)).unwrap_or(Date::MIN);
    let from = day("from", query.from.as_deref())?.unwrap_or_else(|| back(USAGE_DAYS_DEFAULT - 1));
    if from > to || from <= back(USAGE_DAYS_MAX) {
        let message = format!("`from` to `to` must span 1 to {USAGE_DAYS_MAX} days");
        return Err(ApiError::invalid("from", message));
    }
    let by = by(query.by.as_deref().unwrap_or("day"))?;
    let agent = path::resolve_optional(&caller.app, caller.org, query.agent.as_deref()).await?;
    let mut filter = Filter { from, to, by, agent, model: query.model, after: None };
    let list = caller.list("usage", &filter).at(query.limit, query.cursor.as_deref())?;
    filter.after = list.below.clone();
    let mut tx = caller.begin().await?;
    let sums = tx.usage(&filter, list.limit()).await?;
    Ok(respond(&list.page(sums, Sum::place, |sum| UsageRow {
        day: sum.day.map(|day| day.to_string()),
        agent_id: sum.agent,
        model: sum.model,
        usage: sum.usage,
    })))
}

/// Get the organization's balance, spend caps and spend
#[utoipa::path(get, path = "/budget", tag = "usage", operation_id = "getBudget",
    responses((status = 200, body = BudgetView), Errors))]
pub(super) async fn budget(caller: Caller<ReadUsage>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(&tx.spend_status(None).await?)))
}

/// Change the organization's spend caps
///
/// They apply from the next model call.
#[utoipa::path(patch, path = "/budget", tag = "usage", operation_id = "updateBudget", request_body = PatchBudget,
    responses((status = 200, body = BudgetView), Errors))]
pub(super) async fn patch_budget(
    caller: Caller<WriteBudget>,
    Body(change): Body<PatchBudget>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    if let Some(caps) = &change.spend_caps {
        tx.set_spend_caps(caps).await?;
        let details = json!({ "spend_caps": caps });
        caller.record_audit(&mut tx, "budget.updated", caller.org, details).await?;
    }
    let now = tx.spend_status(None).await?;
    tx.commit().await?;
    Ok(respond(&view(&now)))
}

/// Get the capacity that the organization's sandboxes take
#[utoipa::path(get, path = "/capacity", tag = "usage", operation_id = "getCapacity",
    responses((status = 200, body = CapacityView), Errors))]
pub(super) async fn capacity(caller: Caller<ReadUsage>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let now = tx.capacity().await?;
    let max = caller.app.0.organization_max;
    Ok(respond(&CapacityView {
        sandboxes: ResourceUse { used: now.sandboxes, max: max.sandboxes.map(u64::from) },
        memory_bytes: ResourceUse { used: now.memory_bytes, max: max.memory_bytes },
        checkpoint_bytes: ResourceUse { used: now.checkpoint_bytes, max: max.checkpoint_bytes },
        image_bytes: ResourceUse { used: now.image_bytes, max: max.image_bytes },
        sessions_waiting: now.waiting,
    }))
}

/// Get the prices that apply to the organization
#[utoipa::path(get, path = "/prices", tag = "usage", operation_id = "getPrices",
    responses((status = 200, body = PricesView), Errors))]
pub(super) async fn prices(caller: Caller<ReadUsage>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let own = tx.prices().await?;
    Ok(respond(&PricesView { unit: "micro_usd", own, bundled: PriceList::bundled().clone() }))
}

fn view(now: &SpendStatus) -> BudgetView {
    BudgetView {
        balance_micros: now.balance,
        spend_caps: now.organization.caps,
        spent: now.organization.spent,
        reserved_micros: now.organization.reserved,
    }
}

fn day(param: &'static str, text: Option<&str>) -> Result<Option<Date>> {
    let form = format_description!("[year]-[month]-[day]");
    // There is no usage before that, and Postgres cannot represent the year -9999.
    let is_known = |day: &Date| day.year() >= 2000;
    let read = |text| Date::parse(text, form).ok().filter(is_known);
    text.map(|text| {
        read(text).ok_or_else(|| ApiError::invalid(param, format!("`{param}` must be a day like 2026-01-31")))
    })
    .transpose()
}

fn by(text: &str) -> Result<By> {
    let mut by = By::default();
    for word in text.split(',') {
        let named = match word {
            "day" => &mut by.day,
            "agent" => &mut by.agent,
            "model" => &mut by.model,
            _ => return Err(ApiError::invalid("by", "`by` is a list of `day`, `agent`, `model`")),
        };
        *named = true;
    }
    Ok(by)
}
