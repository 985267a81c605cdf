//! Schedules of an agent and their runs.

use axum::{extract::State, http::StatusCode, response::Response};
use serde_json::json;

use crate::{
    base::{Timestamp, limit::SCHEDULES_MAX},
    domain::{
        AgentId, ScheduleId,
        schedule::{CronSchedule, InvalidCron, SessionTemplate},
        session::Limits,
    },
    http::{
        App,
        auth::{Caller, ReadSchedules, WriteSchedules},
        body::{Body, Nothing, OptionalBody},
        error::ApiError,
        idempotency::{Answer, IdempotentRequest, json as answer, no_content},
        openapi::Errors,
        page::{List, PageQuery, Query, rows},
        path::{self, Path},
        sessions::sources,
    },
    journal::Unit,
    store::{self, run::Run, schedule::Schedule},
    trigger::{self, Fired, Refused},
    wire::{
        Page,
        schedule::{CreateSchedule, PatchSchedule, RunError, RunView, ScheduleView},
    },
};

/// Create a schedule
#[utoipa::path(post, path = "/agents/{agent_id}/schedules", tag = "schedules", operation_id = "createSchedule",
    params(("agent_id" = AgentId, Path)), request_body = CreateSchedule,
    responses((status = 201, body = ScheduleView), Errors))]
pub async fn create(
    State(app): State<App>,
    caller: Caller<WriteSchedules>,
    Path(agent): Path<String>,
    once: IdempotentRequest,
    Body { value: wanted, digest }: Body<CreateSchedule>,
) -> Result<Answer, ApiError> {
    let agent: AgentId = path::id(&agent)?;
    let cadence = cadence(&wanted.cron, &wanted.time_zone)?;
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        // The lock prevents adding a schedule to an agent that is being deleted.
        unit.tx().lock_agent(agent).await?;
        if unit.tx().count_schedules(agent).await? >= SCHEDULES_MAX {
            let message = format!("an agent has at most {SCHEDULES_MAX} schedules");
            return Err(ApiError::conflict("too_many_schedules", message));
        }
        let now = unit.tx().now().await?;
        let schedule = build_schedule(&app, unit, agent, wanted, &cadence, now).await?;
        unit.tx().insert_schedule(&schedule).await?;
        let details = json!({ "agent_id": agent, "cron": schedule.cron, "time_zone": schedule.time_zone });
        let act = caller.act(app.0.journal.origin(), "schedule.created", schedule.id, details);
        unit.tx().record_audit(&act).await?;
        Ok(Answer::new(StatusCode::CREATED, &view(schedule)))
    })
    .await
}

/// List an agent's schedules
///
/// Newest first.
#[utoipa::path(get, path = "/agents/{agent_id}/schedules", tag = "schedules", operation_id = "listSchedules",
    params(("agent_id" = AgentId, Path), PageQuery), responses((status = 200, body = Page<ScheduleView>), Errors))]
pub async fn list(
    State(app): State<App>,
    caller: Caller<ReadSchedules>,
    Path(agent): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<Response, ApiError> {
    let (rows, agent): (_, AgentId) = (rows(query.limit)?, path::id(&agent)?);
    let list = List::new(&app, caller.org, "schedules", &agent);
    let below = list.position(query.cursor.as_deref())?;
    let mut tx = app.0.store.begin(caller.org).await?;
    tx.agent(agent).await?;
    let schedules = tx.schedules(agent, below, rows as i64 + 1).await?;
    Ok(answer(&list.page(schedules, rows, |schedule| schedule.id, view)))
}

/// Get a schedule
#[utoipa::path(get, path = "/agents/{agent_id}/schedules/{schedule_id}", tag = "schedules",
    operation_id = "getSchedule", params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path)),
    responses((status = 200, body = ScheduleView), Errors))]
pub async fn get(
    State(app): State<App>,
    caller: Caller<ReadSchedules>,
    Path((agent, schedule)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    Ok(answer(&view(tx.schedule(path::id(&agent)?, path::id(&schedule)?).await?)))
}

/// Change a schedule
///
/// Earlier runs are unchanged.
#[utoipa::path(patch, path = "/agents/{agent_id}/schedules/{schedule_id}", tag = "schedules",
    operation_id = "updateSchedule", params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path)),
    request_body = PatchSchedule, responses((status = 200, body = ScheduleView), Errors))]
pub async fn patch(
    State(app): State<App>,
    caller: Caller<WriteSchedules>,
    Path((agent, schedule)): Path<(String, String)>,
    Body { value: change, .. }: Body<PatchSchedule>,
) -> Result<Response, ApiError> {
    sources::check_choice(&app, change.environment.as_ref().and_then(Option::as_ref))?;
    let mut unit = app.0.journal.begin(caller.org).await?;
    if let Some(Some(choice)) = change.environment.clone() {
        trigger::environment(&mut unit, choice, app.0.journal.origin()).await?;
    }
    let tx = unit.tx();
    let schedule = tx.lock_schedule(path::id(&agent)?, path::id(&schedule)?).await?;
    let schedule = changed(schedule, change, tx.now().await?)?;
    tx.update_schedule(&schedule).await?;
    let details =
        json!({ "cron": schedule.cron, "time_zone": schedule.time_zone, "enabled": schedule.enabled });
    tx.record_audit(&caller.act(app.0.journal.origin(), "schedule.updated", schedule.id, details)).await?;
    unit.commit().await?;
    Ok(answer(&view(schedule)))
}

/// Delete a schedule with its runs
///
/// Sessions that it started continue.
#[utoipa::path(delete, path = "/agents/{agent_id}/schedules/{schedule_id}", tag = "schedules",
    operation_id = "deleteSchedule", params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path)),
    responses((status = 204), Errors))]
pub async fn delete(
    State(app): State<App>,
    caller: Caller<WriteSchedules>,
    Path((agent, schedule)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    tx.delete_schedule(path::id(&agent)?, path::id(&schedule)?).await?;
    tx.record_audit(&caller.act(app.0.journal.origin(), "schedule.deleted", schedule, json!({}))).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// Start a run now
///
/// Also possible while the schedule is disabled.
#[utoipa::path(post, path = "/agents/{agent_id}/schedules/{schedule_id}/fire", tag = "schedules",
    operation_id = "fireSchedule", params(("agent_id" = AgentId, Path), ("schedule_id" = ScheduleId, Path)),
    responses((status = 202, body = RunView), Errors))]
pub async fn fire(
    State(app): State<App>,
    caller: Caller<WriteSchedules>,
    Path((agent, schedule)): Path<(String, String)>,
    once: IdempotentRequest,
    OptionalBody(Body { digest, .. }): OptionalBody<Nothing>,
) -> Result<Answer, ApiError> {
    let (agent, schedule) = (path::id(&agent)?, path::id(&schedule)?);
    let stamp = caller.stamp(app.0.journal.origin());
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        let schedule = unit.tx().lock_schedule(agent, schedule).await?;
        let by_hand = Fired::Manual(unit.tx().now().await?);
        let run = trigger::fire(unit, &schedule, by_hand, app.0.scripted, &stamp).await?;
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
pub async fn runs(
    State(app): State<App>,
    caller: Caller<ReadSchedules>,
    Path((agent, schedule)): Path<(String, String)>,
    Query(query): Query<PageQuery>,
) -> Result<Response, ApiError> {
    let rows = rows(query.limit)?;
    let (agent, schedule): (AgentId, ScheduleId) = (path::id(&agent)?, path::id(&schedule)?);
    let list = List::new(&app, caller.org, "runs", &schedule);
    let below = list.position(query.cursor.as_deref())?;
    let mut tx = app.0.store.begin(caller.org).await?;
    tx.schedule(agent, schedule).await?;
    let runs = tx.runs(schedule, below, rows as i64 + 1).await?;
    Ok(answer(&list.page(runs, rows, |run| run.id, run_view)))
}

/// Builds the requested schedule after checking that it can ever fire.
async fn build_schedule(
    app: &App,
    unit: &mut Unit,
    agent: AgentId,
    wanted: CreateSchedule,
    cadence: &CronSchedule,
    now: Timestamp,
) -> Result<Schedule, ApiError> {
    let next = cadence.next_after(now).ok_or_else(|| refused(&InvalidCron::Never))?;
    sources::check_choice(app, wanted.environment.as_ref())?;
    let makes = [
        (wanted.title.is_some(), "title"),
        (wanted.metadata.is_some(), "metadata"),
        (wanted.limits.is_some(), "limits"),
        (wanted.environment.is_some(), "environment"),
    ];
    let session_template = match wanted.session_id {
        Some(session) => {
            if let Some((_, field)) = makes.into_iter().find(|(is_there, _)| *is_there) {
                return Err(only_of_new_sessions(field));
            }
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
    if let Some(choice) =
        session_template.as_ref().and_then(|session_template| session_template.environment.clone())
    {
        // If the environment is deleted later, runs fail.
        trigger::environment(unit, choice, app.0.journal.origin()).await?;
    }
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
fn changed(mut schedule: Schedule, change: PatchSchedule, now: Timestamp) -> Result<Schedule, ApiError> {
    let is_moved = change.cron.is_some() || change.time_zone.is_some();
    schedule.cron = change.cron.unwrap_or(schedule.cron);
    schedule.time_zone = change.time_zone.unwrap_or(schedule.time_zone);
    schedule.input = change.input.unwrap_or(schedule.input);
    schedule.overlap = change.overlap.unwrap_or(schedule.overlap);
    let makes = [
        (change.title.is_some(), "title"),
        (change.metadata.is_some(), "metadata"),
        (change.limits.is_some(), "limits"),
        (change.environment.is_some(), "environment"),
    ];
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
        None => {
            if let Some((_, field)) = makes.into_iter().find(|(is_there, _)| *is_there) {
                return Err(only_of_new_sessions(field));
            }
        }
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

fn cadence(cron: &str, time_zone: &str) -> Result<CronSchedule, ApiError> {
    CronSchedule::parse(cron, time_zone).map_err(|error| refused(&error))
}

fn refused(error: &InvalidCron) -> ApiError {
    let field = match error {
        InvalidCron::Cron(_) | InvalidCron::Never => "cron",
        InvalidCron::TimeZone => "time_zone",
    };
    ApiError::invalid(field, format!("`{field}` {error}"))
}

fn only_of_new_sessions(field: &'static str) -> ApiError {
    ApiError::invalid(
        field,
        format!("`{field}` applies to sessions that the schedule creates; this one wakes `session_id`"),
    )
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
