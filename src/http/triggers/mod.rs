//! Inbound triggers of an agent: create, list, read, change, delete.

mod inbound;
mod invoke;
mod schedules;

use serde_json::json;

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    base::limit::{TRIGGER_SECRET_BYTES_MIN, TRIGGERS_MAX, WEBHOOK_OVERLAP_SECONDS},
    domain::{
        AgentId, TriggerId,
        github::GithubActivity,
        schedule::SessionTemplate,
        session::Limits,
        source,
        trigger::{Checkout, Filter, Kind},
    },
    http::{
        prelude::*,
        scope::{ReadTriggers, WriteTriggers},
        sessions::sources,
    },
    store::{
        self, Tx,
        trigger::{Trigger, context},
    },
    webhook::Secret,
    wire::trigger::{CreateTrigger, PatchTrigger, RotateTriggerSecret, TriggerView},
};

/// Routes of triggers, the invoke URL and schedules.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, patch, delete))
        .routes(routes!(rotate))
        .routes(routes!(inbound::receive))
        .routes(routes!(invoke::invoke))
        .routes(routes!(invoke::create, invoke::list))
        .routes(routes!(invoke::revoke))
        .routes(routes!(schedules::create, schedules::list))
        .routes(routes!(schedules::get, schedules::patch, schedules::delete))
        .routes(routes!(schedules::fire))
        .routes(routes!(schedules::runs))
}

/// Create a trigger
///
/// Whoever has its secret can start sessions of the agent.
#[utoipa::path(post, path = "/agents/{agent_id}/hooks", tag = "triggers", operation_id = "createTrigger",
    params(("agent_id" = AgentId, Path)), request_body = CreateTrigger,
    responses((status = 201, body = TriggerView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteTriggers>,
    Path(agent): Path<AgentId>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateTrigger>>,
) -> Result<Answer> {
    let filter = Filter {
        mention: wanted.mention.clone(),
        react: wanted.react.clone().unwrap_or_default(),
        authors: wanted.authors.unwrap_or_default(),
        source: wanted.source.clone().unwrap_or_else(|| Some(Checkout::default())),
    };
    let named =
        [wanted.mention.is_some(), wanted.react.is_some(), wanted.authors.is_some(), wanted.source.is_some()];
    let filter = checked(wanted.kind, filter, named)?;
    let brought = wanted.secret.as_deref().map(parsed).transpose()?;
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        // The lock prevents adding a trigger to an agent that is being deleted.
        unit.tx().lock_agent(agent).await?;
        if unit.tx().triggers(agent).await?.len() as i64 >= TRIGGERS_MAX {
            let message = format!("an agent has at most {TRIGGERS_MAX} triggers");
            return Err(ApiError::conflict("too_many_triggers", message));
        }
        let origin = caller.origin();
        check_source(unit.tx(), filter.as_ref()).await?;
        sources::check_stored_choice(&caller.app, unit, wanted.environment.as_ref()).await?;
        let now = origin.now();
        let trigger = Trigger {
            id: origin.id(),
            agent,
            kind: wanted.kind,
            enabled: wanted.enabled,
            filter,
            session_template: SessionTemplate {
                title: wanted.title,
                metadata: wanted.metadata,
                limits: wanted.limits.over(Limits::default()),
                environment: wanted.environment,
            },
            secret_before_until: None,
            created_at: now,
            updated_at: now,
        };
        let shown = brought.is_none();
        let secret = brought.unwrap_or_else(|| Secret::generate(origin));
        let sealed = seal(&caller.app, unit.tx(), trigger.id, &secret).await?;
        unit.tx().insert_trigger(&trigger, &sealed).await?;
        let details = json!({ "agent_id": agent, "kind": trigger.kind });
        caller.record_audit(unit.tx(), "trigger.created", trigger.id, details).await?;
        let secret = shown.then(|| secret.expose().to_owned());
        Ok(Answer::new(StatusCode::CREATED, &TriggerView { secret, ..view(trigger) }))
    })
    .await
}

/// List an agent's triggers
///
/// Newest first.
#[utoipa::path(get, path = "/agents/{agent_id}/hooks", tag = "triggers", operation_id = "listTriggers",
    params(("agent_id" = AgentId, Path)), responses((status = 200, body = Page<TriggerView>), Errors))]
pub(super) async fn list(caller: Caller<ReadTriggers>, Path(agent): Path<AgentId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.agent(agent).await?;
    let data = tx.triggers(agent).await?.into_iter().map(view).collect();
    Ok(respond(&Page { data, next_cursor: None }))
}

/// Get a trigger
///
/// The secret is not returned.
#[utoipa::path(get, path = "/agents/{agent_id}/hooks/{trigger_id}", tag = "triggers", operation_id = "getTrigger",
    params(("agent_id" = AgentId, Path), ("trigger_id" = TriggerId, Path)),
    responses((status = 200, body = TriggerView), Errors))]
pub(super) async fn get(
    caller: Caller<ReadTriggers>,
    Path((agent, trigger)): Path<(AgentId, TriggerId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(tx.trigger(agent, trigger).await?)))
}

/// Change a trigger
///
/// The kind cannot be changed. Use `rotate-secret` to replace the secret.
#[utoipa::path(patch, path = "/agents/{agent_id}/hooks/{trigger_id}", tag = "triggers", operation_id = "updateTrigger",
    params(("agent_id" = AgentId, Path), ("trigger_id" = TriggerId, Path)), request_body = PatchTrigger,
    responses((status = 200, body = TriggerView), Errors))]
pub(super) async fn patch(
    caller: Caller<WriteTriggers>,
    Path((agent, trigger)): Path<(AgentId, TriggerId)>,
    Body(change): Body<PatchTrigger>,
) -> Result<Response> {
    let mut unit = caller.unit().await?;
    let environment = change.environment.as_ref().and_then(Option::as_ref);
    sources::check_stored_choice(&caller.app, &mut unit, environment).await?;
    let tx = unit.tx();
    let mut trigger = tx.lock_trigger(agent, trigger).await?;
    let named =
        [change.mention.is_some(), change.react.is_some(), change.authors.is_some(), change.source.is_some()];
    let mut filter = trigger.filter.take().unwrap_or_default();
    filter.mention = change.mention.unwrap_or(filter.mention);
    filter.react = change.react.unwrap_or(filter.react);
    filter.authors = change.authors.unwrap_or(filter.authors);
    filter.source = change.source.unwrap_or_else(|| filter.source.take());
    trigger.filter = checked(trigger.kind, filter, named)?;
    check_source(tx, trigger.filter.as_ref()).await?;
    let session_template = &mut trigger.session_template;
    session_template.title = change.title.unwrap_or_else(|| session_template.title.take());
    session_template.metadata =
        change.metadata.unwrap_or_else(|| std::mem::take(&mut session_template.metadata));
    if let Some(limits) = change.limits {
        session_template.limits = limits.over(session_template.limits);
    }
    session_template.environment = change.environment.unwrap_or_else(|| session_template.environment.take());
    trigger.enabled = change.enabled.unwrap_or(trigger.enabled);
    trigger.updated_at = caller.origin().now();
    tx.update_trigger(&trigger).await?;
    let details = json!({ "enabled": trigger.enabled });
    caller.record_audit(tx, "trigger.updated", trigger.id, details).await?;
    unit.commit().await?;
    Ok(respond(&view(trigger)))
}

/// Delete a trigger
///
/// Sessions that it started continue.
#[utoipa::path(delete, path = "/agents/{agent_id}/hooks/{trigger_id}", tag = "triggers", operation_id = "deleteTrigger",
    params(("agent_id" = AgentId, Path), ("trigger_id" = TriggerId, Path)), responses((status = 204), Errors))]
pub(super) async fn delete(
    caller: Caller<WriteTriggers>,
    Path((agent, trigger)): Path<(AgentId, TriggerId)>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.delete_trigger(agent, trigger).await?;
    caller.record_audit(&mut tx, "trigger.deleted", trigger, json!({})).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// Rotate the secret of a trigger
///
/// During the overlap, signatures made with either secret are accepted.
#[utoipa::path(post, path = "/agents/{agent_id}/hooks/{trigger_id}/rotate-secret", tag = "triggers",
    operation_id = "rotateTriggerSecret", params(("agent_id" = AgentId, Path), ("trigger_id" = TriggerId, Path)),
    request_body = RotateTriggerSecret, responses((status = 200, body = TriggerView), Errors))]
pub(super) async fn rotate(
    caller: Caller<WriteTriggers>,
    Path((agent, trigger)): Path<(AgentId, TriggerId)>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<RotateTriggerSecret>>,
) -> Result<Answer> {
    let brought = wanted.secret.as_deref().map(parsed).transpose()?;
    let overlap = wanted.overlap_seconds.unwrap_or(WEBHOOK_OVERLAP_SECONDS.0);
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        unit.tx().lock_trigger(agent, trigger).await?;
        let shown = brought.is_none();
        let secret = brought.unwrap_or_else(|| Secret::generate(caller.origin()));
        let sealed = seal(&caller.app, unit.tx(), trigger, &secret).await?;
        unit.tx().rotate_trigger_secret(trigger, &sealed, overlap).await?;
        caller.record_audit(unit.tx(), "trigger.secret_rotated", trigger, json!({})).await?;
        let secret = shown.then(|| secret.expose().to_owned());
        let view = TriggerView { secret, ..view(unit.tx().trigger(agent, trigger).await?) };
        Ok(Answer::new(StatusCode::OK, &view))
    })
    .await
}

/// Validates the filter for the kind of trigger. `named` marks the fields that the caller sent.
fn checked(kind: Kind, filter: Filter, named: [bool; 4]) -> Result<Option<Filter>> {
    if kind == Kind::Github {
        return match filter.problem() {
            None => Ok(Some(filter)),
            Some((field, words)) => Err(ApiError::invalid(field, format!("`{field}` {words}"))),
        };
    }
    let fields = ["mention", "react", "authors", "source"].into_iter().zip(named);
    match fields.into_iter().find(|(_, is_named)| *is_named) {
        None => Ok(None),
        Some((field, _)) => {
            Err(ApiError::invalid(field, format!("`{field}` is only allowed for triggers of kind `github`")))
        }
    }
}

/// Rejects an invalid checkout, and a credential that does not exist or is not for `git`.
async fn check_source(tx: &mut Tx, filter: Option<&Filter>) -> Result<()> {
    let Some(checkout) = filter.and_then(|filter| filter.source.as_ref()) else { return Ok(()) };
    let some =
        GithubActivity { clone_url: "https://github.com/owner/name".to_owned(), ..GithubActivity::default() };
    if let Err((field, words)) = checkout.source(&some).pinned() {
        return Err(ApiError::invalid(format!("source.{field}"), format!("`{field}` {words}")));
    }
    let Some(named) = &checkout.credential else { return Ok(()) };
    match tx.find_credential(named).await {
        Ok(credential) if credential.provider == source::PROVIDER => Ok(()),
        Ok(_) | Err(store::Error::NotFound) => {
            let message = "no credential with this id or name exists for the provider `git`";
            Err(ApiError::invalid("source.credential", message))
        }
        Err(error) => Err(error.into()),
    }
}

fn parsed(text: &str) -> Result<Secret> {
    if text.len() < TRIGGER_SECRET_BYTES_MIN {
        let message = format!("`secret` must have {TRIGGER_SECRET_BYTES_MIN} bytes or more");
        return Err(ApiError::invalid("secret", message));
    }
    Secret::parse(text).map_err(|error| ApiError::invalid("secret", error.to_string()))
}

async fn seal(app: &App, tx: &mut Tx, id: TriggerId, secret: &Secret) -> Result<Vec<u8>> {
    let org = tx.org();
    let data_key = tx.data_key(app.0.store.master()).await?;
    Ok(data_key.seal(secret.expose().as_bytes(), &context(org, id), app.0.journal.origin()))
}

fn view(trigger: Trigger) -> TriggerView {
    let filter = trigger.filter;
    TriggerView {
        id: trigger.id,
        agent_id: trigger.agent,
        kind: trigger.kind,
        path: format!("/v3/hooks/{}", trigger.id),
        enabled: trigger.enabled,
        mention: filter.as_ref().and_then(|filter| filter.mention.clone()),
        react: filter.as_ref().map(|filter| filter.react.clone()),
        authors: filter.as_ref().map(|filter| filter.authors),
        source: filter.and_then(|filter| filter.source),
        title: trigger.session_template.title,
        metadata: trigger.session_template.metadata,
        limits: trigger.session_template.limits,
        environment: trigger.session_template.environment,
        has_secret: true,
        secret: None,
        secret_before_until: trigger.secret_before_until,
        created_at: trigger.created_at,
        updated_at: trigger.updated_at,
    }
}
