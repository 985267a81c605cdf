//! Agents and their immutable revisions.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    column::{from_json, json},
    parameter::named,
};
use crate::{
    base::{Id, Timestamp},
    domain::{
        AgentId, CredentialId, OrgId, RevisionId,
        conversation::ModelOptions,
        custom_tool::{AgentTool, CustomTool},
        environment::EnvironmentChoice,
        permission::Rule,
        session::Limits,
        source::Repository,
        spend::SpendCaps,
        turn_settings::TurnSettings,
    },
};

/// An agent with its active revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    pub id: AgentId,
    pub name: String,
    pub credential: Option<CredentialId>,
    pub limits: Limits,
    /// No turn starts while this is false.
    pub enabled: bool,
    pub spend_caps: SpendCaps,
    /// Repositories cloned into the sandboxes of its sessions.
    pub sources: Vec<Repository>,
    pub revision: Revision,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// An immutable configuration that sessions run.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    pub id: RevisionId,
    pub agent: AgentId,
    /// Counts from 1 within the agent.
    pub number: i32,
    pub prompt: String,
    pub model: String,
    pub model_options: ModelOptions,
    pub runtime: String,
    /// Names first, then the tools that callers run; `None` for all of the service.
    pub tools: Option<Vec<AgentTool>>,
    /// Rules for its calls.
    pub permissions: Vec<Rule>,
    pub settings: TurnSettings,
    /// Environment of its sessions that name none.
    pub environment: Option<EnvironmentChoice>,
    /// SHA-256 of all fields above except the ids, in hexadecimal.
    pub digest: String,
    pub created_at: Timestamp,
}

#[derive(FromRow)]
struct RevisionRow {
    revision_id: Uuid,
    agent_id: Uuid,
    number: i32,
    prompt: String,
    model: String,
    model_options: String,
    runtime: String,
    tools: Option<Vec<String>>,
    custom_tools: Option<String>,
    permissions: Option<String>,
    turn_settings: Option<String>,
    environment: Option<String>,
    digest: String,
    created_at: Timestamp,
}

#[derive(FromRow)]
struct AgentRow {
    id: Uuid,
    name: String,
    credential_id: Option<Uuid>,
    limits: String,
    enabled: bool,
    spend_caps: String,
    sources: String,
    agent_created_at: Timestamp,
    agent_updated_at: Timestamp,
    #[sqlx(flatten)]
    revision: RevisionRow,
}

/// Returns the names among the tools of an agent, for their column.
fn names_of(tools: Option<&[AgentTool]>) -> Option<Vec<&str>> {
    let names = tools?.iter().filter(|tool| tool.custom().is_none());
    Some(names.map(AgentTool::name).collect())
}

/// Returns the tools that callers run, for their column.
fn custom_of(tools: Option<&[AgentTool]>) -> Option<String> {
    let custom: Vec<_> = tools.into_iter().flatten().filter_map(AgentTool::custom).collect();
    (!custom.is_empty()).then(|| json(&custom))
}

impl RevisionRow {
    fn revision(self) -> Result<Revision> {
        let custom: Vec<Box<CustomTool>> =
            self.custom_tools.as_deref().map(from_json).transpose()?.unwrap_or_default();
        let custom = custom.into_iter().map(AgentTool::Custom);
        let all = |names: Vec<String>| names.into_iter().map(AgentTool::Builtin).chain(custom).collect();
        Ok(Revision {
            id: Id::from_uuid(self.revision_id),
            agent: Id::from_uuid(self.agent_id),
            number: self.number,
            prompt: self.prompt,
            model: self.model,
            model_options: from_json(&self.model_options)?,
            runtime: self.runtime,
            tools: self.tools.map(all),
            permissions: self.permissions.as_deref().map(from_json).transpose()?.unwrap_or_default(),
            settings: self.turn_settings.as_deref().map(from_json).transpose()?.unwrap_or_default(),
            environment: self.environment.as_deref().map(from_json).transpose()?,
            digest: self.digest,
            created_at: self.created_at,
        })
    }
}

impl AgentRow {
    fn agent(self) -> Result<Agent> {
        Ok(Agent {
            id: Id::from_uuid(self.id),
            name: self.name,
            credential: self.credential_id.map(Id::from_uuid),
            limits: from_json(&self.limits)?,
            enabled: self.enabled,
            spend_caps: from_json(&self.spend_caps)?,
            sources: from_json(&self.sources)?,
            revision: self.revision.revision()?,
            created_at: self.agent_created_at,
            updated_at: self.agent_updated_at,
        })
    }
}

/// The pinned agent of a row of `session`, as JSON.
macro_rules! snapshot {
    ($session:literal) => {
        concat!(
            "(select p.content from agent_snapshot p where p.org_id = ",
            $session,
            ".org_id and p.snapshot_id = ",
            $session,
            ".snapshot_id)"
        )
    };
}
pub(in crate::store) use snapshot;

macro_rules! agents {
    ($rest:literal) => {
        concat!(
            "select a.agent_id as id, a.name, a.credential_id, a.limits::text, a.enabled, a.spend_caps::text, a.sources::text,
                    a.created_at as agent_created_at, a.updated_at as agent_updated_at, r.revision_id, r.agent_id, r.number, r.prompt, r.model,
                    r.model_options::text, r.runtime, r.tools, r.custom_tools::text, r.permissions::text,
                    r.turn_settings::text, r.environment::text, r.digest, r.created_at
             from agent a
             join revision r on r.org_id = a.org_id and r.revision_id = a.active_revision_id
             where a.org_id = $1 and a.deleted_at is null ",
            $rest
        )
    };
}

macro_rules! revisions {
    ($rest:literal) => {
        concat!(
            "select revision_id, agent_id, number, prompt, model, model_options::text, runtime, tools, custom_tools::text,
                    permissions::text, turn_settings::text, environment::text, digest, created_at
             from revision
             where org_id = $1 ",
            $rest
        )
    };
}

impl Tx {
    /// Reads an agent by its id.
    pub async fn agent(&mut self, agent: AgentId) -> Result<Agent> {
        let org = self.org.uuid();
        let row: AgentRow = sqlx::query_as(agents!("and a.agent_id = $2"))
            .bind(org)
            .bind(agent.uuid())
            .fetch_one(self.connection())
            .await?;
        row.agent()
    }

    /// Reads an agent by its name, by the unique index `agent_name`.
    pub async fn agent_by_name(&mut self, name: &str) -> Result<Option<Agent>> {
        let org = self.org.uuid();
        let row: Option<AgentRow> = sqlx::query_as(agents!("and a.name = $2"))
            .bind(org)
            .bind(name)
            .fetch_optional(self.connection())
            .await?;
        row.map(AgentRow::agent).transpose()
    }

    /// Locks an agent name until the transaction ends, then reads the agent.
    ///
    /// Of equal concurrent requests, one creates the agent and the others find it.
    pub async fn claim_agent_name(&mut self, name: &str) -> Result<Option<Agent>> {
        // A missing row cannot be locked, so an advisory lock is used. A wait beyond `lock_timeout`
        // is `Busy`.
        sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))")
            .bind(format!("agent/{}/{name}", self.org))
            .execute(self.connection())
            .await?;
        self.agent_by_name(name).await
    }

    /// Returns a page of agents, newest first.
    pub async fn agents(&mut self, below: Option<AgentId>, limit: i64) -> Result<Vec<Agent>> {
        let org = self.org.uuid();
        let rows: Vec<AgentRow> = sqlx::query_as(agents!(
            "and ($2::uuid is null or a.agent_id < $2) order by a.agent_id desc limit $3"
        ))
        .bind(org)
        .bind(below.map(Id::uuid))
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(AgentRow::agent).collect()
    }

    /// Stores a new agent with its first revision.
    ///
    /// # Errors
    /// `Conflict("agent_name")` when the name is taken.
    pub async fn insert_agent(&mut self, agent: &Agent) -> Result<()> {
        named!(
            query(
                "insert into agent (org_id, agent_id, name, active_revision_id, credential_id, limits, created_at,
                                    updated_at, enabled, spend_caps, sources)
                 values ($org_id, $agent_id, $name, $revision_id, $credential_id, $limits::json, $created_at,
                         $created_at, $enabled, $spend_caps::json, $sources::json)"
            ),
            {
                org_id: self.org.uuid(),
                agent_id: agent.id.uuid(),
                name: &agent.name,
                revision_id: agent.revision.id.uuid(),
                credential_id: agent.credential.map(Id::uuid),
                limits: json(&agent.limits),
                created_at: agent.created_at,
                enabled: agent.enabled,
                spend_caps: json(&agent.spend_caps),
                sources: json(&agent.sources),
            }
        )
        .execute(self.connection())
        .await?;
        self.insert_revision(&agent.revision).await
    }

    /// Stores another revision.
    pub async fn insert_revision(&mut self, revision: &Revision) -> Result<()> {
        named!(
            query(
                "insert into revision (org_id, revision_id, agent_id, number, prompt, model, model_options, runtime,
                                       tools, custom_tools, permissions, turn_settings, environment, digest,
                                       created_at)
                 values ($org_id, $revision_id, $agent_id, $number, $prompt, $model, $model_options::json, $runtime,
                         $tools, $custom_tools::json, $permissions::json, $turn_settings::json, $environment::json, $digest,
                         $created_at)"
            ),
            {
                org_id: self.org.uuid(),
                revision_id: revision.id.uuid(),
                agent_id: revision.agent.uuid(),
                number: revision.number,
                prompt: &revision.prompt,
                model: &revision.model,
                model_options: json(&revision.model_options),
                runtime: &revision.runtime,
                tools: names_of(revision.tools.as_deref()),
                custom_tools: custom_of(revision.tools.as_deref()),
                permissions: (!revision.permissions.is_empty()).then(|| json(&revision.permissions)),
                turn_settings: (!revision.settings.is_default()).then(|| json(&revision.settings)),
                environment: revision.environment.as_ref().map(json),
                digest: &revision.digest,
                created_at: revision.created_at,
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Updates the mutable columns of an agent; locks its row until the commit.
    pub async fn update_agent(&mut self, agent: &Agent) -> Result<()> {
        let done = named!(
            query(
                "update agent
                 set active_revision_id = $revision_id, credential_id = $credential_id, limits = $limits::json,
                     updated_at = $updated_at, enabled = $enabled, spend_caps = $spend_caps::json,
                     sources = $sources::json
                 where org_id = $org_id and agent_id = $agent_id and deleted_at is null"
            ),
            {
                org_id: self.org.uuid(),
                agent_id: agent.id.uuid(),
                revision_id: agent.revision.id.uuid(),
                credential_id: agent.credential.map(Id::uuid),
                limits: json(&agent.limits),
                updated_at: agent.updated_at,
                enabled: agent.enabled,
                spend_caps: json(&agent.spend_caps),
                sources: json(&agent.sources),
            }
        )
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Locks an agent's row, so that revision numbers are assigned one at a time.
    pub async fn lock_agent(&mut self, agent: AgentId) -> Result<Agent> {
        let org = self.org.uuid();
        sqlx::query("select from agent where org_id = $1 and agent_id = $2 for update")
            .bind(org)
            .bind(agent.uuid())
            .execute(self.connection())
            .await?;
        self.agent(agent).await
    }

    /// Marks an agent as deleted and deletes its schedules, triggers and invoke tokens.
    ///
    /// Its sessions keep their pinned agent, and its name is free again.
    pub async fn delete_agent(&mut self, agent: AgentId) -> Result<()> {
        let org = self.org.uuid();
        let done = sqlx::query(
            "update agent set deleted_at = now() where org_id = $1 and agent_id = $2 and deleted_at is null",
        )
        .bind(org)
        .bind(agent.uuid())
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 {
            return Err(Error::NotFound);
        }
        // After the agent: a transaction that adds one of these locks the agent's row, so none is
        // missed.
        for deletion in [
            "delete from schedule where org_id = $1 and agent_id = $2",
            "delete from trigger where org_id = $1 and agent_id = $2",
            "delete from invoke_token where org_id = $1 and agent_id = $2",
        ] {
            sqlx::query(deletion).bind(org).bind(agent.uuid()).execute(self.connection()).await?;
        }
        Ok(())
    }

    /// Returns a page of an agent's revisions, newest first, by `revision_agent_number`.
    pub async fn revisions(
        &mut self,
        agent: AgentId,
        below: Option<i32>,
        limit: i64,
    ) -> Result<Vec<Revision>> {
        let org = self.org.uuid();
        let rows: Vec<RevisionRow> = sqlx::query_as(revisions!(
            "and agent_id = $2 and ($3::integer is null or number < $3) order by number desc limit $4"
        ))
        .bind(org)
        .bind(agent.uuid())
        .bind(below)
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(RevisionRow::revision).collect()
    }

    /// Reads one revision of an agent by its number.
    pub async fn revision_by_number(&mut self, agent: AgentId, number: i32) -> Result<Revision> {
        let org = self.org.uuid();
        let row: RevisionRow = sqlx::query_as(revisions!("and agent_id = $2 and number = $3"))
            .bind(org)
            .bind(agent.uuid())
            .bind(number)
            .fetch_one(self.connection())
            .await?;
        row.revision()
    }

    /// Reads one revision by its id.
    pub async fn revision(&mut self, revision: RevisionId) -> Result<Revision> {
        let org = self.org.uuid();
        let row: RevisionRow = sqlx::query_as(revisions!("and revision_id = $2"))
            .bind(org)
            .bind(revision.uuid())
            .fetch_one(self.connection())
            .await?;
        row.revision()
    }
}

impl Store {
    /// Reads one revision, for the worker that runs it.
    ///
    /// Also returns revisions of a deleted agent: a session keeps its pinned revision.
    pub async fn load_revision(&self, org: OrgId, revision: RevisionId) -> Result<Revision> {
        let row: RevisionRow = sqlx::query_as(revisions!("and revision_id = $2"))
            .bind(org.uuid())
            .bind(revision.uuid())
            .fetch_one(&self.system)
            .await?;
        row.revision()
    }
}
