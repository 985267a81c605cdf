//! Skills: upload, list, read, delete.

use axum::body::Body as HttpBody;
use metrics::counter;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::files::Uploader;
use crate::{
    domain::{
        SkillId,
        custom_tool::AgentTool,
        skill::{self, SkillChoice},
    },
    http::{
        body::Raw,
        download::attachment,
        prelude::*,
        scope::{ReadSkills, WriteSkills},
    },
    store::{self, skill::Skill},
    trigger::Refused,
    wire::skill::SkillView,
};

/// Routes of skills.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(upload, list)).routes(routes!(get, delete)).routes(routes!(content))
}

/// Filters of the list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SkillsQuery {
    /// Only the versions of the skill with this name.
    pub name: Option<String>,
    /// Rows per page: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// Upload a version of a skill
///
/// The body is a tar archive of the folder, at most 30 MiB and 500 files, without links. `SKILL.md` at its root begins with a
/// YAML header that has `name` and `description`. The version gets the next number of its name. Returns the newest version if
/// it has the same files.
#[utoipa::path(post, path = "/skills", tag = "skills", operation_id = "uploadSkill",
    request_body(content = String, content_type = "application/x-tar"),
    responses((status = 201, body = SkillView), (status = 200, body = SkillView, description = "The newest version has the same files, or the request repeats an `Idempotency-Key`."), Errors))]
pub(super) async fn upload(
    uploader: Uploader<WriteSkills>,
    Idempotent(once, Raw(content)): Idempotent<Raw>,
) -> Result<Answer> {
    let caller = &uploader.caller;
    if let Some(answer) = once.replay(&caller.app, caller.org).await? {
        return Ok(answer);
    }
    let skills = &caller.app.0.skills;
    let archive = skills.read(caller.org, content).await?;
    let newest = caller.begin().await?.newest_skill(&archive.name).await?;
    if let Some(same) = newest.filter(|newest| newest.sha256 == archive.sha256) {
        let answer = async |_: &mut Unit| Ok(Answer::new(StatusCode::OK, &view(same.clone())));
        return once.run(&caller.app, caller.org, answer).await;
    }
    let id = skills.store(caller.org, archive).await?;
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let (skill, is_new) = unit.tx().publish_skill(id).await?;
        if is_new {
            counter!("sojourn_skill_uploads_total").increment(1);
            let details = json!({ "name": skill.name, "version": skill.version, "sha256": skill.sha256 });
            caller.record_audit(unit.tx(), "skill.created", skill.id, details).await?;
        }
        let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
        Ok(Answer::new(status, &view(skill)))
    })
    .await
}

/// List versions of skills
///
/// Newest first.
#[utoipa::path(get, path = "/skills", tag = "skills", operation_id = "listSkills",
    params(SkillsQuery), responses((status = 200, body = Page<SkillView>), Errors))]
pub(super) async fn list(caller: Caller<ReadSkills>, Query(query): Query<SkillsQuery>) -> Result<Response> {
    let list = caller.list("skills", &query.name).at(query.limit, query.cursor.as_deref())?;
    let skills = caller.begin().await?.skills(query.name.as_deref(), list.below, list.limit()).await?;
    Ok(respond(&list.page(skills, |skill| skill.id, view)))
}

/// Get a version of a skill
#[utoipa::path(get, path = "/skills/{skill_id}", tag = "skills", operation_id = "getSkill",
    params(("skill_id" = SkillId, Path)), responses((status = 200, body = SkillView), Errors))]
pub(super) async fn get(caller: Caller<ReadSkills>, Path(skill): Path<SkillId>) -> Result<Response> {
    Ok(respond(&view(caller.begin().await?.skill(skill).await?)))
}

/// Read the files of a version of a skill
///
/// A tar archive; its paths begin with the name of the skill.
#[utoipa::path(get, path = "/skills/{skill_id}/content", tag = "skills", operation_id = "readSkill",
    params(("skill_id" = SkillId, Path)),
    responses((status = 200, content((String = "application/x-tar"))), Errors))]
pub(super) async fn content(caller: Caller<ReadSkills>, Path(skill): Path<SkillId>) -> Result<Response> {
    let skill = caller.begin().await?.skill(skill).await?;
    let archive = caller.app.0.skills.stream(caller.org, skill.id).await?;
    Ok(attachment("application/x-tar", skill.bytes, HttpBody::from_stream(archive)))
}

/// Delete a version of a skill
///
/// 409 while a session uses it, or the active revision of an agent needs it. Its number is not used again.
#[utoipa::path(delete, path = "/skills/{skill_id}", tag = "skills", operation_id = "deleteSkill",
    params(("skill_id" = SkillId, Path)), responses((status = 204), Errors))]
pub(super) async fn delete(caller: Caller<WriteSkills>, Path(id): Path<SkillId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let skill = tx.lock_skill(id).await?;
    if let Some(agent) = tx.agent_with_skill(&skill).await? {
        return Err(in_use(format!("the agent `{agent}` needs this version; change the agent first")));
    }
    match tx.delete_skill(id).await {
        Err(store::Error::Conflict(constraint)) if constraint == "session_skill_exists" => {
            return Err(in_use("a session uses this version; delete the session first".to_owned()));
        }
        deleted => deleted?,
    }
    let details = json!({ "name": skill.name, "version": skill.version });
    caller.record_audit(&mut tx, "skill.deleted", id, details).await?;
    tx.commit().await?;
    Ok(no_content())
}

fn in_use(message: String) -> ApiError {
    ApiError::conflict("in_use", message)
}

/// Checks a list of skills but for their existence, which needs the database; the error names the place.
pub(super) fn check_choices(skills: Option<&[SkillChoice]>) -> Result<()> {
    match skill::problem(skills.unwrap_or_default()) {
        None => Ok(()),
        Some((index, field, words)) => Err(ApiError::invalid(format!("skills[{index}].{field}"), words)),
    }
}

/// Checks that an agent can read its skills, and that they exist.
pub(super) async fn check_agent(
    unit: &mut Unit,
    skills: Option<&[SkillChoice]>,
    tools: Option<&[AgentTool]>,
) -> Result<()> {
    let Some(skills) = skills.filter(|skills| !skills.is_empty()) else { return Ok(()) };
    if !skill::are_readable(tools) {
        return Err(Refused::UnreadableSkills.into());
    }
    match unit.tx().pin_skills(skills).await? {
        Ok(_) => Ok(()),
        Err(index) => Err(Refused::UnknownSkill(index).into()),
    }
}

fn view(skill: Skill) -> SkillView {
    let Skill { id, name, version, description, sha256, bytes, files, created_at } = skill;
    SkillView { id, name, version, description, sha256, bytes, files, created_at }
}
