//! Inbound hooks of an agent: made, changed, removed by its owner.

pub mod inbound;

use axum::{extract::State, http::StatusCode, response::Response};
use serde_json::json;

use super::{
    App,
    auth::{Caller, ReadHooks, WriteHooks},
    body::{Body, OptionalBody},
    error::ApiError,
    openapi::Errors,
    path::{self, Path},
    sources,
    write::{Answer, Once, json as answer, no_content},
};
use crate::{
    base::limit::{HOOK_SECRET_BYTES_MIN, HOOKS_MAX, WEBHOOK_OVERLAP_SECONDS},
    domain::{
        AgentId, HookId,
        github::Happening,
        hook::{Checkout, Filter, Kind},
        schedule::Recipe,
        session::Limits,
        source,
    },
    journal::Unit,
    store::{
        self, Tx,
        hook::{Hook, context},
    },
    trigger,
    webhook::Secret,
    wire::{
        Page,
        hook::{CreateHook, HookView, PatchHook},
        webhook::RotateSecret,
    },
};

/// Create a hook: whoever has its secret can start sessions of the agent.
#[utoipa::path(post, path = "/agents/{agent_id}/hooks", tag = "hooks", operation_id = "createHook",
    params(("agent_id" = AgentId, Path)), request_body = CreateHook,
    responses((status = 201, body = HookView), Errors))]
pub async fn create(
    State(app): State<App>,
    caller: Caller<WriteHooks>,
    Path(agent): Path<String>,
    once: Once,
    Body { value: wanted, digest }: Body<CreateHook>,
) -> Result<Answer, ApiError> {
    let agent: AgentId = path::id(&agent)?;
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
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        // Locked, so that an agent that is being deleted gets no hook any more.
        unit.tx().lock_agent(agent).await?;
        if unit.tx().hooks(agent).await?.len() as i64 >= HOOKS_MAX {
            let message = format!("an agent has at most {HOOKS_MAX} hooks");
            return Err(ApiError::conflict("too_many_hooks", message));
        }
        let origin = app.0.journal.origin();
        check_source(unit.tx(), filter.as_ref()).await?;
        sources::check_choice(&app, wanted.environment.as_ref())?;
        if let Some(choice) = wanted.environment.clone() {
            trigger::environment(unit, choice, origin).await?;
        }
        let now = origin.now();
        let hook = Hook {
            id: origin.id(),
            agent,
            kind: wanted.kind,
            enabled: wanted.enabled,
            filter,
            recipe: Recipe {
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
        let sealed = seal(&app, unit.tx(), hook.id, &secret).await?;
        unit.tx().insert_hook(&hook, &sealed).await?;
        let details = json!({ "agent_id": agent, "kind": hook.kind });
        unit.tx().remember(&caller.act(origin, "hook.created", hook.id, details)).await?;
        let secret = shown.then(|| secret.expose().to_owned());
        Ok(Answer::new(StatusCode::CREATED, &HookView { secret, ..view(hook) }))
    })
    .await
}

/// List an agent's hooks, oldest first.
#[utoipa::path(get, path = "/agents/{agent_id}/hooks", tag = "hooks", operation_id = "listHooks",
    params(("agent_id" = AgentId, Path)), responses((status = 200, body = Page<HookView>), Errors))]
pub async fn list(
    State(app): State<App>,
    caller: Caller<ReadHooks>,
    Path(agent): Path<String>,
) -> Result<Response, ApiError> {
    let agent = path::id(&agent)?;
    let mut tx = app.0.store.begin(caller.org).await?;
    tx.agent(agent).await?;
    let data = tx.hooks(agent).await?.into_iter().map(view).collect();
    Ok(answer(&Page { data, next_cursor: None }))
}

/// Get a hook, without its secret.
#[utoipa::path(get, path = "/agents/{agent_id}/hooks/{hook_id}", tag = "hooks", operation_id = "getHook",
    params(("agent_id" = AgentId, Path), ("hook_id" = HookId, Path)),
    responses((status = 200, body = HookView), Errors))]
pub async fn get(
    State(app): State<App>,
    caller: Caller<ReadHooks>,
    Path((agent, hook)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    Ok(answer(&view(tx.hook(path::id(&agent)?, path::id(&hook)?).await?)))
}

/// Change a hook. Its kind stays; its secret is replaced by `rotate-secret`.
#[utoipa::path(patch, path = "/agents/{agent_id}/hooks/{hook_id}", tag = "hooks", operation_id = "updateHook",
    params(("agent_id" = AgentId, Path), ("hook_id" = HookId, Path)), request_body = PatchHook,
    responses((status = 200, body = HookView), Errors))]
pub async fn patch(
    State(app): State<App>,
    caller: Caller<WriteHooks>,
    Path((agent, hook)): Path<(String, String)>,
    Body { value: change, .. }: Body<PatchHook>,
) -> Result<Response, ApiError> {
    sources::check_choice(&app, change.environment.as_ref().and_then(Option::as_ref))?;
    let mut unit = app.0.journal.begin(caller.org).await?;
    if let Some(Some(choice)) = change.environment.clone() {
        trigger::environment(&mut unit, choice, app.0.journal.origin()).await?;
    }
    let tx = unit.tx();
    let mut hook = tx.lock_hook(path::id(&agent)?, path::id(&hook)?).await?;
    let named =
        [change.mention.is_some(), change.react.is_some(), change.authors.is_some(), change.source.is_some()];
    let mut filter = hook.filter.take().unwrap_or_default();
    filter.mention = change.mention.unwrap_or(filter.mention);
    filter.react = change.react.unwrap_or(filter.react);
    filter.authors = change.authors.unwrap_or(filter.authors);
    filter.source = change.source.unwrap_or_else(|| filter.source.take());
    hook.filter = checked(hook.kind, filter, named)?;
    check_source(tx, hook.filter.as_ref()).await?;
    let recipe = &mut hook.recipe;
    recipe.title = change.title.unwrap_or_else(|| recipe.title.take());
    recipe.metadata = change.metadata.unwrap_or_else(|| std::mem::take(&mut recipe.metadata));
    if let Some(limits) = change.limits {
        recipe.limits = limits.over(recipe.limits);
    }
    recipe.environment = change.environment.unwrap_or_else(|| recipe.environment.take());
    hook.enabled = change.enabled.unwrap_or(hook.enabled);
    hook.updated_at = app.0.journal.origin().now();
    tx.update_hook(&hook).await?;
    let details = json!({ "enabled": hook.enabled });
    tx.remember(&caller.act(app.0.journal.origin(), "hook.updated", hook.id, details)).await?;
    unit.commit().await?;
    Ok(answer(&view(hook)))
}

/// Delete a hook. The sessions that it started go on.
#[utoipa::path(delete, path = "/agents/{agent_id}/hooks/{hook_id}", tag = "hooks", operation_id = "deleteHook",
    params(("agent_id" = AgentId, Path), ("hook_id" = HookId, Path)), responses((status = 204), Errors))]
pub async fn delete(
    State(app): State<App>,
    caller: Caller<WriteHooks>,
    Path((agent, hook)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let mut tx = app.0.store.begin(caller.org).await?;
    tx.delete_hook(path::id(&agent)?, path::id(&hook)?).await?;
    tx.remember(&caller.act(app.0.journal.origin(), "hook.deleted", hook, json!({}))).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// Replace the secret of a hook; for a while signatures with either count.
#[utoipa::path(post, path = "/agents/{agent_id}/hooks/{hook_id}/rotate-secret", tag = "hooks",
    operation_id = "rotateHookSecret", params(("agent_id" = AgentId, Path), ("hook_id" = HookId, Path)),
    request_body = RotateSecret, responses((status = 200, body = HookView), Errors))]
pub async fn rotate(
    State(app): State<App>,
    caller: Caller<WriteHooks>,
    Path((agent, hook)): Path<(String, String)>,
    once: Once,
    OptionalBody(Body { value: wanted, digest }): OptionalBody<RotateSecret>,
) -> Result<Answer, ApiError> {
    let (agent, hook): (AgentId, HookId) = (path::id(&agent)?, path::id(&hook)?);
    let brought = wanted.secret.as_deref().map(parsed).transpose()?;
    let overlap = wanted.overlap_seconds.unwrap_or(WEBHOOK_OVERLAP_SECONDS.0);
    once.run(&app, caller.org, digest, async |unit: &mut Unit| {
        unit.tx().lock_hook(agent, hook).await?;
        let shown = brought.is_none();
        let secret = brought.unwrap_or_else(|| Secret::generate(app.0.journal.origin()));
        let sealed = seal(&app, unit.tx(), hook, &secret).await?;
        unit.tx().rotate_hook_secret(hook, &sealed, overlap).await?;
        let act = caller.act(app.0.journal.origin(), "hook.secret_rotated", hook, json!({}));
        unit.tx().remember(&act).await?;
        let secret = shown.then(|| secret.expose().to_owned());
        let view = HookView { secret, ..view(unit.tx().hook(agent, hook).await?) };
        Ok(Answer::new(StatusCode::OK, &view))
    })
    .await
}

/// The filter of a hook of this kind; `named` says which fields of it the caller sent.
fn checked(kind: Kind, filter: Filter, named: [bool; 4]) -> Result<Option<Filter>, ApiError> {
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
            Err(ApiError::invalid(field, format!("`{field}` is for hooks of the kind `github`")))
        }
    }
}

/// Refuses a checkout that no repository could have, or with a credential that is none.
async fn check_source(tx: &mut Tx, filter: Option<&Filter>) -> Result<(), ApiError> {
    let Some(checkout) = filter.and_then(|filter| filter.source.as_ref()) else { return Ok(()) };
    let some = Happening { clone_url: "https://github.com/owner/name".to_owned(), ..Happening::default() };
    if let Err((field, words)) = checkout.source(&some).pinned() {
        return Err(ApiError::invalid(format!("source.{field}"), format!("`{field}` {words}")));
    }
    let Some(id) = checkout.credential else { return Ok(()) };
    match tx.credential(id).await {
        Ok(credential) if credential.provider == source::PROVIDER => Ok(()),
        Ok(_) | Err(store::Error::NotFound) => {
            let message = "there is no such credential of the provider `git`";
            Err(ApiError::invalid("source.credential", message))
        }
        Err(error) => Err(error.into()),
    }
}

fn parsed(text: &str) -> Result<Secret, ApiError> {
    if text.len() < HOOK_SECRET_BYTES_MIN {
        let message = format!("`secret` has {HOOK_SECRET_BYTES_MIN} bytes or more");
        return Err(ApiError::invalid("secret", message));
    }
    Secret::parse(text).map_err(|error| ApiError::invalid("secret", error.to_string()))
}

async fn seal(app: &App, tx: &mut Tx, id: HookId, secret: &Secret) -> Result<Vec<u8>, ApiError> {
    let org = tx.org();
    let data_key = tx.data_key(app.0.store.master()).await?;
    Ok(data_key.seal(secret.expose().as_bytes(), &context(org, id), app.0.journal.origin()))
}

fn view(hook: Hook) -> HookView {
    let filter = hook.filter;
    HookView {
        id: hook.id,
        agent_id: hook.agent,
        kind: hook.kind,
        path: format!("/v3/hooks/{}", hook.id),
        enabled: hook.enabled,
        mention: filter.as_ref().and_then(|filter| filter.mention.clone()),
        react: filter.as_ref().map(|filter| filter.react.clone()),
        authors: filter.as_ref().map(|filter| filter.authors),
        source: filter.and_then(|filter| filter.source),
        title: hook.recipe.title,
        metadata: hook.recipe.metadata,
        limits: hook.recipe.limits,
        environment: hook.recipe.environment,
        has_secret: true,
        secret: None,
        secret_before_until: hook.secret_before_until,
        created_at: hook.created_at,
        updated_at: hook.updated_at,
    }
}
