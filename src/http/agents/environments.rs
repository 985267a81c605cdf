//! Environments: create, list, read, change, delete, build.

use std::collections::BTreeMap;

use serde_json::json;

use crate::{
    domain::{
        EnvironmentId,
        environment::Environment,
        rootfs::{Build, RootFs},
        secret::{SecretBinding, is_secret_value},
    },
    http::{
        prelude::*,
        scope::{ReadEnvironments, WriteEnvironments},
        sessions::sources,
    },
    store::{
        self, Tx,
        environment::{Named, context},
    },
    wire::environment::{CreateEnvironment, EnvironmentView, PatchEnvironment, SecretInput},
};

/// States of root file system builds, by key.
type Builds = BTreeMap<String, Build>;
/// Values of secrets, by name.
type Values = BTreeMap<String, String>;

/// Create an environment
#[utoipa::path(post, path = "/environments", tag = "environments", operation_id = "createEnvironment",
    request_body = CreateEnvironment, responses((status = 201, body = EnvironmentView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteEnvironments>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateEnvironment>>,
) -> Result<Answer> {
    let values = values_of(&wanted.secrets, &Kept { values: &Values::new(), bindings: &[] })?;
    let secrets: Vec<_> = wanted.secrets.iter().map(SecretInput::binding).collect();
    refuse(wanted.config.secrets_problem(&secrets))?;
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        sources::check_environment(&caller.app, unit, &wanted.config).await?;
        let (id, now) = (caller.origin().id(), caller.origin().now());
        let named =
            Named { id, name: wanted.name, config: wanted.config, secrets, created_at: now, updated_at: now };
        let sealed = seal(&caller.app, unit.tx(), id, &values).await?;
        unit.tx().insert_environment(&named, &sealed).await.map_err(name_taken)?;
        caller.record_audit(unit.tx(), "environment.created", id, audit_details(&named)).await?;
        request_build(&caller.app, unit.tx(), &named.config, false).await?;
        Ok(Answer::new(StatusCode::CREATED, &view_with_build(&caller.app, unit.tx(), named).await?))
    })
    .await
}

/// List environments
///
/// Newest first, without build logs.
#[utoipa::path(get, path = "/environments", tag = "environments", operation_id = "listEnvironments",
    params(PageQuery), responses((status = 200, body = Page<EnvironmentView>), Errors))]
pub(super) async fn list(
    caller: Caller<ReadEnvironments>,
    Query(query): Query<PageQuery>,
) -> Result<Response> {
    let list = caller.list("environments", &()).at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    let environments = tx.environments(list.below, list.limit()).await?;
    let keys: Vec<_> = environments.iter().filter_map(|named| key(&caller.app, &named.config)).collect();
    let builds: Builds = tx.rootfs_builds(&keys).await?.into_iter().collect();
    let view = |named: Named| {
        // Build logs are only returned when a single environment is read.
        let build = key(&caller.app, &named.config).and_then(|key| builds.get(&key).cloned());
        view(named, build.map(|build| Build { log: String::new(), ..build }))
    };
    Ok(respond(&list.page(environments, |environment| environment.id, view)))
}

/// Get an environment
///
/// The values of its secrets are not returned.
#[utoipa::path(get, path = "/environments/{environment_id}", tag = "environments", operation_id = "getEnvironment",
    params(("environment_id" = EnvironmentId, Path)), responses((status = 200, body = EnvironmentView), Errors))]
pub(super) async fn get(
    caller: Caller<ReadEnvironments>,
    Path(environment): Path<EnvironmentId>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let named = tx.environment(environment).await?;
    Ok(respond(&view_with_build(&caller.app, &mut tx, named).await?))
}

/// Change an environment
///
/// Existing sessions keep their pinned configuration; new values of secrets reach them with their next
/// turn.
#[utoipa::path(patch, path = "/environments/{environment_id}", tag = "environments",
    operation_id = "updateEnvironment", params(("environment_id" = EnvironmentId, Path)),
    request_body = PatchEnvironment, responses((status = 200, body = EnvironmentView), Errors))]
pub(super) async fn patch(
    caller: Caller<WriteEnvironments>,
    Path(id): Path<EnvironmentId>,
    Body(change): Body<PatchEnvironment>,
) -> Result<Response> {
    let mut unit = caller.unit().await?;
    if let Some(config) = &change.config {
        sources::check_environment(&caller.app, &mut unit, config).await?;
    }
    let tx = unit.tx();
    let (mut named, mut sealed) = tx.lock_environment(id).await?;
    if let Some(name) = change.name {
        named.name = name;
    }
    if let Some(config) = change.config {
        named.config = config;
    }
    if let Some(secrets) = &change.secrets {
        let values = open(&caller.app, tx, id, &sealed).await?;
        let values = values_of(secrets, &Kept { values: &values, bindings: &named.secrets })?;
        sealed = seal(&caller.app, tx, id, &values).await?;
        named.secrets = secrets.iter().map(SecretInput::binding).collect();
    }
    refuse(named.config.secrets_problem(&named.secrets))?;
    named.updated_at = caller.origin().now();
    tx.update_environment(&named, &sealed).await.map_err(name_taken)?;
    caller.record_audit(tx, "environment.updated", id, audit_details(&named)).await?;
    request_build(&caller.app, tx, &named.config, false).await?;
    let view_with_build = view_with_build(&caller.app, tx, named).await?;
    unit.commit().await?;
    Ok(respond(&view_with_build))
}

/// Build an environment's image and packages
///
/// Also retries a failed build.
#[utoipa::path(post, path = "/environments/{environment_id}/build", tag = "environments",
    operation_id = "buildEnvironment", params(("environment_id" = EnvironmentId, Path)),
    responses((status = 202, body = EnvironmentView), Errors))]
pub(super) async fn build(
    caller: Caller<WriteEnvironments>,
    Path(id): Path<EnvironmentId>,
    once: IdempotentRequest,
) -> Result<Answer> {
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let named = unit.tx().environment(id).await?;
        request_build(&caller.app, unit.tx(), &named.config, true).await?;
        Ok(Answer::new(StatusCode::ACCEPTED, &view_with_build(&caller.app, unit.tx(), named).await?))
    })
    .await
}

/// Delete an environment
///
/// Sessions that pinned secrets of it can no longer run.
#[utoipa::path(delete, path = "/environments/{environment_id}", tag = "environments",
    operation_id = "deleteEnvironment", params(("environment_id" = EnvironmentId, Path)),
    responses((status = 204), Errors))]
pub(super) async fn delete(
    caller: Caller<WriteEnvironments>,
    Path(id): Path<EnvironmentId>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.delete_environment(id).await?;
    caller.record_audit(&mut tx, "environment.deleted", id, json!({})).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// Details of an environment for the audit log: network policy and secret names with hosts, never secret
/// values.
fn audit_details(named: &Named) -> serde_json::Value {
    json!({ "name": named.name, "network": named.config.network, "secrets": named.secrets })
}

/// The stored secrets of an environment.
struct Kept<'a> {
    values: &'a Values,
    bindings: &'a [SecretBinding],
}

impl Kept<'_> {
    /// Returns the stored value of a secret, if it goes nowhere else than before: who does not know it must not
    /// have it sent to another host, or to a place that the host shows.
    fn value(&self, secret: &SecretInput) -> Option<&String> {
        let before = self.bindings.iter().find(|before| before.name == secret.name)?;
        let is_within = |now: &[String], before: &[String]| now.iter().all(|one| before.contains(one));
        let is_same = is_within(&secret.hosts, &before.hosts)
            && is_within(&secret.headers, &before.headers)
            && is_within(&secret.query_parameters, &before.query_parameters);
        self.values.get(&secret.name).filter(|_| is_same)
    }
}

/// Returns the value of each secret: the one that was sent, else the stored one.
fn values_of(secrets: &[SecretInput], kept: &Kept<'_>) -> Result<Values> {
    let value = |(at, secret): (usize, &SecretInput)| {
        let value = secret.value.as_ref().or_else(|| kept.value(secret));
        match value.filter(|value| is_secret_value(value)) {
            Some(value) => Ok((secret.name.clone(), value.clone())),
            None => {
                let message = "a secret needs a value of 8 to 4096 printable ASCII characters; a stored one is kept only \
                    for hosts, headers and parameters that it had before";
                Err(ApiError::invalid(format!("secrets[{at}].value"), message))
            }
        }
    };
    secrets.iter().enumerate().map(value).collect()
}

fn refuse(problem: Option<(String, String)>) -> Result<()> {
    problem.map_or(Ok(()), |(field, words)| Err(ApiError::invalid(&field, words)))
}

fn name_taken(error: store::Error) -> ApiError {
    match error {
        store::Error::Conflict(name) if name == "environment_name" => ApiError {
            param: Some("name".to_owned()),
            ..ApiError::conflict("name_taken", "an environment with this name exists; PATCH it instead")
        },
        error => error.into(),
    }
}

async fn seal(app: &App, tx: &mut Tx, id: EnvironmentId, values: &Values) -> Result<Vec<u8>> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let context = context(tx.org(), id);
    let plain = serde_json::to_vec(values).expect("a map of strings serializes to JSON");
    let data_key = tx.data_key(app.0.store.master()).await?;
    Ok(data_key.seal(&plain, &context, app.0.journal.origin()))
}

async fn open(app: &App, tx: &mut Tx, id: EnvironmentId, sealed: &[u8]) -> Result<Values> {
    if sealed.is_empty() {
        return Ok(Values::new());
    }
    let context = context(tx.org(), id);
    let data_key = tx.data_key(app.0.store.master()).await?;
    let corrupt = |error: &dyn std::fmt::Display| ApiError::from(store::Error::Corrupt(error.to_string()));
    let plain = data_key.open(sealed, &context).map_err(|error| corrupt(&error))?;
    serde_json::from_slice(&plain).map_err(|error| corrupt(&error))
}

/// Requests a build of the environment's root file system.
async fn request_build(app: &App, tx: &mut Tx, config: &Environment, again: bool) -> Result<()> {
    let rootfs = RootFs::of(Some(config), &app.0.images.default);
    if !rootfs.is_host() {
        tx.request_rootfs(&rootfs, again).await?;
    }
    Ok(())
}

/// Returns the key of the environment's root file system, if it needs a build.
fn key(app: &App, config: &Environment) -> Option<String> {
    let rootfs = RootFs::of(Some(config), &app.0.images.default);
    (!rootfs.is_host()).then(|| rootfs.key())
}

async fn view_with_build(app: &App, tx: &mut Tx, named: Named) -> Result<EnvironmentView> {
    let build = match key(app, &named.config) {
        None => None,
        Some(key) => tx.rootfs_builds(&[key]).await?.pop().map(|(_, build)| build),
    };
    Ok(view(named, build))
}

fn view(named: Named, build: Option<Build>) -> EnvironmentView {
    EnvironmentView {
        build,
        id: named.id,
        name: named.name,
        config: named.config,
        secrets: named.secrets,
        created_at: named.created_at,
        updated_at: named.updated_at,
    }
}
