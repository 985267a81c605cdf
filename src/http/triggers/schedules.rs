//! Schedules of an agent and their runs.

use serde_json::json;

use crate::{
    base::{Timestamp, limit::SCHEDULES_MAX},
    domain::{
        AgentId, ScheduleId,
        schedule::{CronSchedule, InvalidCron, SessionTemplate},
        session::Limits,
    },
    http::{
        prelude::*,
        scope::{ReadSchedules, WriteSchedules},
        sessions::sources,
    },
    store::{self, run::Run, schedule::Schedule},
    trigger::{self, Fired, Refused},
    wire::schedule::{CreateSchedule, PatchSchedule, RunError, RunView, ScheduleView},
};

/// Create a schedule
#[utoipa::path(post, path = "/agents/{agent_id}/schedules", tag = "schedules", operation_id = "createSchedule",
    params(("agent_id" = AgentId, Path)), request_body = CreateSchedule,
    responses((status = 201, body = ScheduleView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteSchedules>,
    Path(agent): Path<AgentId>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateSchedule>>,
) -> Result<Answer> {
    let cadence = cadence(&wanted.cron, &wanted.time_zone)?;
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        // The lock prevents adding a schedule to an agent that is being deleted.
        unit.tx().lock_agent(agent).await?;
        if unit.tx().count_schedules(agent).await? >= SCHEDULES_MAX {
            let message = format!("an agent has at most {SCHEDULES_MAX} schedules");
            return Err(ApiError::conflict("too_many_schedules", message));
        }
        let now = unit.tx().now().await?;
        let schedule = build_schedule(&caller.app, unit, agent, wanted, &cadence, now).await?;
        unit.tx().insert_schedule(&schedule).await?;
        let details = json!({ "agent_id": agent, "cron": schedule.cron, "time_zone": schedule.time_zone });
        caller.record_audit(unit.tx(), "schedule.created", schedule.id, details).await?;
        Ok(Answer::new(StatusCode::CREATED, &view(schedule)))
    })
    .await
}

/// List an agent's schedules
///
/// Newest first.
#[utoipa::path(get, path = "/agents/{agent_id}/schedules", tag = "schedules", operation_id = "listSchedules",
    params(("agent_id" = AgentId, Path), PageQuery), responses((status = 200, body = Page<ScheduleView>), Errors))]
pub(super) async fn list(
    caller: Caller<ReadSchedules>,
    Path(agent): Path<AgentId>,
    Query(query): Query<PageQuery>,
) -> Result<Response> {
    let list = caller.list("schedules", &agent).at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    tx.agent(agent).await?;
    let schedules = tx.schedules(agent, list.below, list.limit()).await?;
    Ok(respond(&list.page(schedules, |schedule| schedule.id, view)))
}

/// Get a schedule
#[utoipa::path(get, path = "/agents/{agent_id}/schedules/{schedule_id}", tag = "schedules",
    operation_id = "getSchedule", params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path)),
    responses((status = 200, body = ScheduleView), Errors))]
pub(super) async fn get(
    caller: Caller<ReadSchedules>,
    Path((agent, schedule)): Path<(AgentId, ScheduleId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(tx.schedule(agent, schedule).await?)))
}

/// Change a schedule
///
/// Earlier runs are unchanged.
#[utoipa::path(patch, path = "/agents/{agent_id}/schedules/{schedule_id}", tag = "schedules",
    operation_id = "updateSchedule", params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path)),
    request_body = PatchSchedule, responses((status = 200, body = ScheduleView), Errors))]
pub(super) async fn patch(
    caller: Caller<WriteSchedules>,
    Path((agent, schedule)): Path<(AgentId, ScheduleId)>,
    Body(change): Body<PatchSchedule>,
) -> Result<Response> {
    let mut unit = caller.unit().await?;
    let environment = change.environment.as_ref().and_then(Option::as_ref);
    sources::check_stored_choice(&caller.app, &mut unit, environment).await?;
    let tx = unit.tx();
    let schedule = tx.lock_schedule(agent, schedule).await?;
    let schedule = changed(schedule, change, tx.now().await?)?;
    tx.update_schedule(&schedule).await?;
    let details =
        json!({ "cron": schedule.cron, "time_zone": schedule.time_zone, "enabled": schedule.enabled });
    caller.record_audit(tx, "schedule.updated", schedule.id, details).await?;
    unit.commit().await?;
    Ok(respond(&view(schedule)))
}

/// Delete a schedule with its runs
///
/// Sessions that it started continue.
#[utoipa::path(delete, path = "/agents/{agent_id}/schedules/{schedule_id}", tag = "schedules",
    operation_id = "deleteSchedule", params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path)),
    responses((status = 204), Errors))]
pub(super) async fn delete(
    caller: Caller<WriteSchedules>,
    Path((agent, schedule)): Path<(AgentId, ScheduleId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.delete_schedule(agent, schedule).await?;
    caller.record_audit(&mut tx, "schedule.deleted", schedule, json!({})).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// Start a run now
///
/// Also possible while the schedule is disabled.
#[utoipa::path(post, path = "/agents/{agent_id}/schedules/{schedule_id}/fire", tag = "schedules",
    operation_id = "fireSchedule", params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path)),
    responses((status = 202, body = RunView), Errors))]
pub(super) async fn fire(
    caller: Caller<WriteSchedules>,
    Path((agent, schedule)): Path<(AgentId, ScheduleId)>,
    once: IdempotentRequest,
) -> Result<Answer> {
    let stamp = caller.stamp();
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let schedule = unit.tx().lock_schedule(agent, schedule).await?;
        let by_hand = Fired::Manual(unit.tx().now().await?);
        let run = trigger::fire(unit, &schedule, by_hand, caller.app.0.scripted, &stamp).await?;
        Ok(Answer::new(StatusCode::ACCEPTED, &run_view(run)))
    })
    .await
}

/// List the runs of a schedule
///
/// Newest first. Runs are retained for 30 days.
#[utoipa::path(get, path = "/agents/{agent_id}/schedules/{schedule_id}/runs", tag = "schedules",
    operation_id = "listScheduleRuns",
    params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path), PageQuery),
    responses((status = 200, body = Page<RunView>), Errors))]
pub(super) async fn runs(
    caller: Caller<ReadSchedules>,
    Path((agent, schedule)): Path<(AgentId, ScheduleId)>,
    Query(query): Query<PageQuery>,
) -> Result<Response> {
    let list = caller.list("runs", &schedule).at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    tx.schedule(agent, schedule).await?;
    let runs = tx.runs(schedule, list.below, list.limit()).await?;
    Ok(respond(&list.page(runs, |run| run.id, run_view)))
}

/// Builds the requested schedule after checking that it can ever fire.
async fn build_schedule(
    app: &App,
    unit: &mut Unit,
    agent: AgentId,
    wanted: CreateSchedule,
    cadence: &CronSchedule,
    now: Timestamp,
) -> Result<Schedule> {
    let next = cadence.next_after(now).ok_or_else(|| refused(&InvalidCron::Never))?;
    let CreateSchedule { title, metadata, limits, environment, .. } = &wanted;
    let named = [title.is_some(), metadata.is_some(), limits.is_some(), environment.is_some()];
    let session_template = match wanted.session_id {
        Some(session) => {
            refuse_template(named)?;
            let found = unit.tx().session(session).await.map_err(|error| match error {
                store::Error::NotFound => Refused::UnknownSession.into(),
                error => ApiError::from(error),
            })?;
            if found.created.agent_id != Some(agent) {
                return Err(Refused::UnknownSession.into());
            }
            None
        }
        None => Some(SessionTemplate {
            title: wanted.title,
            metadata: wanted.metadata.unwrap_or_default(),
            limits: wanted.limits.unwrap_or_default().over(Limits::default()),
            environment: wanted.environment,
        }),
    };
    let environment = session_template.as_ref().and_then(|template| template.environment.as_ref());
    sources::check_stored_choice(app, unit, environment).await?;
    Ok(Schedule {
        id: app.0.journal.origin().id(),
        agent,
        cron: wanted.cron,
        time_zone: wanted.time_zone,
        input: wanted.input,
        overlap: wanted.overlap,
        enabled: wanted.enabled,
        session: wanted.session_id,
        session_template,
        next_fire_at: wanted.enabled.then_some(next),
        consecutive_failures: 0,
        paused_reason: None,
        created_at: now,
        updated_at: now,
    })
}

/// Applies a change to a schedule. Slots missed while it was disabled are not run.
fn changed(mut schedule: Schedule, change: PatchSchedule, now: Timestamp) -> Result<Schedule> {
    let PatchSchedule { title, metadata, limits, environment, .. } = &change;
    let named = [title.is_some(), metadata.is_some(), limits.is_some(), environment.is_some()];
    let is_moved = change.cron.is_some() || change.time_zone.is_some();
    schedule.cron = change.cron.unwrap_or(schedule.cron);
    schedule.time_zone = change.time_zone.unwrap_or(schedule.time_zone);
    schedule.input = change.input.unwrap_or(schedule.input);
    schedule.overlap = change.overlap.unwrap_or(schedule.overlap);
    match &mut schedule.session_template {
        Some(session_template) => {
            session_template.title = change.title.unwrap_or_else(|| session_template.title.take());
            session_template.metadata =
                change.metadata.unwrap_or_else(|| std::mem::take(&mut session_template.metadata));
            if let Some(limits) = change.limits {
                session_template.limits = limits.over(session_template.limits);
            }
            session_template.environment =
                change.environment.unwrap_or_else(|| session_template.environment.take());
        }
        None => refuse_template(named)?,
    }
    let is_enabled = change.enabled.unwrap_or(schedule.enabled);
    let begins = is_enabled && (is_moved || change.enabled == Some(true));
    let cadence = cadence(&schedule.cron, &schedule.time_zone)?;
    let next = cadence.next_after(now).ok_or_else(|| refused(&InvalidCron::Never))?;
    if change.enabled == Some(true) {
        schedule.consecutive_failures = 0;
        schedule.paused_reason = None;
    }
    schedule.next_fire_at = if begins { Some(next) } else { schedule.next_fire_at.filter(|_| is_enabled) };
    schedule.enabled = is_enabled;
    schedule.updated_at = now;
    Ok(schedule)
}

fn cadence(cron: &str, time_zone: &str) -> Result<CronSchedule> {
    CronSchedule::parse(cron, time_zone).map_err(|error| refused(&error))
}

fn refused(error: &InvalidCron) -> ApiError {
    let field = match error {
        InvalidCron::Cron(_) | InvalidCron::Never => "cron",
        InvalidCron::TimeZone => "time_zone",
    };
    ApiError::invalid(field, format!("`{field}` {error}"))
}

/// Rejects fields of new sessions in a schedule that wakes a session. `named` marks the fields that were sent.
fn refuse_template(named: [bool; 4]) -> Result<()> {
    let fields = ["title", "metadata", "limits", "environment"].into_iter().zip(named);
    match fields.into_iter().find(|(_, is_named)| *is_named) {
        None => Ok(()),
        Some((field, _)) => Err(ApiError::invalid(
            field,
            format!("`{field}` applies to sessions that the schedule creates; this one wakes `session_id`"),
        )),
    }
}

fn view(schedule: Schedule) -> ScheduleView {
    let session_template = schedule.session_template;
    ScheduleView {
        id: schedule.id,
        agent_id: schedule.agent,
        cron: schedule.cron,
        time_zone: schedule.time_zone,
        input: schedule.input,
        overlap: schedule.overlap,
        enabled: schedule.enabled,
        session_id: schedule.session,
        title: session_template.as_ref().and_then(|session_template| session_template.title.clone()),
        metadata: session_template.as_ref().map(|session_template| session_template.metadata.clone()),
        limits: session_template.as_ref().map(|session_template| session_template.limits),
        environment: session_template.and_then(|session_template| session_template.environment),
        next_fire_at: schedule.next_fire_at,
        consecutive_failures: schedule.consecutive_failures,
        paused_reason: schedule.paused_reason,
        created_at: schedule.created_at,
        updated_at: schedule.updated_at,
    }
}

fn run_view(run: Run) -> RunView {
    RunView {
        id: run.id,
        state: run.state,
        slot: run.slot,
        manual: run.manual,
        session_id: run.session,
        turn_id: run.turn,
        error: run.error.map(|(code, message)| RunError { code, message }),
    }
}
