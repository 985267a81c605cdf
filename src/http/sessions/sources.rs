//! Repositories of a session: validation on creation, and their clone status.

use std::path::Path as FilePath;

use crate::{
    domain::{
        SessionId,
        environment::{Environment, EnvironmentChoice},
        rootfs::RootFs,
        source::{self, Repository, RepositoryLocation},
    },
    http::{Images, RootFsUnavailable, prelude::*, scope::ReadSessions},
    trigger,
    wire::source::SourceView,
};

/// List the repositories of a session
///
/// Sorted in the order in which they are cloned, with their status. Their number is limited, so the list has
/// one page.
#[utoipa::path(get, path = "/sessions/{session_id}/sources", tag = "sessions", operation_id = "listSources",
    params(("session_id" = SessionId, Path)), responses((status = 200, body = Page<SourceView>), Errors))]
pub(crate) async fn list(caller: Caller<ReadSessions>, Path(id): Path<SessionId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let sources = tx.session(id).await?.created.sources;
    drop(tx);
    let progress = caller.app.0.journal.sources(caller.org, id, &sources).await?;
    let views = sources.into_iter().zip(progress.sources);
    let data: Vec<_> = views.map(|(source, status)| SourceView::new(source, status)).collect();
    Ok(respond(&Page { data, next_cursor: None }))
}

/// Rejects repositories that this deployment does not allow, and unknown credentials.
pub(crate) async fn check(app: &App, unit: &mut Unit, sources: &[Repository]) -> Result<()> {
    check_local(app, "sources", sources)?;
    trigger::sources(unit, sources).await?;
    Ok(())
}

/// Runs the same checks for an environment.
pub(crate) async fn check_environment(app: &App, unit: &mut Unit, environment: &Environment) -> Result<()> {
    check_image(app, "config", environment)?;
    check_size(app, "config", environment)?;
    check_local(app, "config.sources", &environment.sources)?;
    trigger::sources(unit, &environment.sources).await?;
    Ok(())
}

/// Checks an inline environment against this deployment. A stored environment was checked when it was
/// written.
pub(crate) fn check_choice(app: &App, choice: Option<&EnvironmentChoice>) -> Result<()> {
    match choice {
        Some(EnvironmentChoice::Inline(environment)) => {
            check_image(app, "environment", environment)?;
            check_size(app, "environment", environment)?;
            check_local(app, "environment.sources", &environment.sources)
        }
        Some(EnvironmentChoice::Named(_)) | None => Ok(()),
    }
}

/// Runs the same check for a choice that is stored for later sessions, and rejects an environment that does not exist. If
/// it is deleted later, these sessions cannot be created.
pub(crate) async fn check_stored_choice(
    app: &App,
    unit: &mut Unit,
    choice: Option<&EnvironmentChoice>,
) -> Result<()> {
    check_choice(app, choice)?;
    if let Some(choice) = choice.cloned() {
        trigger::environment(unit, choice, app.0.journal.origin()).await?;
    }
    Ok(())
}

/// Rejects unregistered images, and packages that cannot be installed in this deployment.
fn check_image(app: &App, within: &str, environment: &Environment) -> Result<()> {
    let Images { default, refuse } = &app.0.images;
    let refused = match refuse(&RootFs::of(Some(environment), default)) {
        None => return Ok(()),
        Some(RootFsUnavailable::UnknownImage) => ApiError {
            code: Some("unknown_image".into()),
            ..ApiError::invalid(format!("{within}.image"), "no image with this name is registered")
        },
        Some(RootFsUnavailable::Packages(words)) => ApiError {
            code: Some("packages_unavailable".into()),
            ..ApiError::invalid(format!("{within}.packages"), words)
        },
    };
    Err(refused)
}

/// Rejects a size above what the operator allows one sandbox.
fn check_size(app: &App, within: &str, environment: &Environment) -> Result<()> {
    let (wanted, max) = (environment.size(), app.0.sandbox_max);
    let mib = |bytes: u64| format!("{}Mi", bytes >> 20);
    let Environment { cpus, memory, pids, disk, .. } = environment;
    // What is absent is the default, or the maximum where that is lower.
    let fields = [
        (
            "cpus",
            cpus.is_some() && wanted.cpu_millis > max.cpu_millis,
            (f64::from(max.cpu_millis) / 1e3).to_string(),
        ),
        ("memory", memory.is_some() && wanted.memory_bytes > max.memory_bytes, mib(max.memory_bytes)),
        ("pids", pids.is_some() && wanted.pids > max.pids, max.pids.to_string()),
        ("disk", disk.is_some() && wanted.disk_bytes > max.disk_bytes, mib(max.disk_bytes)),
    ];
    match fields.into_iter().find(|(_, is_above, _)| *is_above) {
        None => Ok(()),
        Some((field, _, most)) => {
            let message = format!("must be at most {most}, which the operator allows one sandbox");
            Err(ApiError::invalid(format!("{within}.{field}"), message))
        }
    }
}

/// Rejects local paths outside of the directories that the operator allows.
pub(crate) fn check_local(app: &App, field: &str, sources: &[Repository]) -> Result<()> {
    for (at, repository) in sources.iter().enumerate() {
        let Some(Ok(RepositoryLocation::Local(local))) = repository.url.as_deref().map(source::place) else {
            continue;
        };
        if let Err(refused) = app.0.local_sources.resolve(FilePath::new(&local)) {
            let param = format!("{field}[{at}].url");
            return Err(ApiError {
                code: Some("source_not_allowed".into()),
                ..ApiError::invalid(param, format!("the path {refused}"))
            });
        }
    }
    Ok(())
}
