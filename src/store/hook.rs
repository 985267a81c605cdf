//! Inbound hooks of agents. A secret goes in and never comes out over the API.

use sqlx::FromRow;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::{
    Error, Result, Store, Tx,
    column::{from_json, from_word, json, word},
};
use crate::{
    base::{Id, SecretString, Timestamp, seal::DataKey},
    domain::{
        AgentId, HookId, OrgId,
        hook::{Filter, Kind},
        schedule::Recipe,
    },
};

/// A hook, without its secret.
#[derive(Clone, Debug, PartialEq)]
pub struct Hook {
    pub id: HookId,
    pub agent: AgentId,
    pub kind: Kind,
    pub enabled: bool,
    /// Which events of GitHub start a session.
    pub filter: Option<Filter>,
    pub recipe: Recipe,
    /// Until when signatures with the replaced secret count too.
    pub secret_before_until: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A hook that somebody knocks at, with all that tells whether they may.
pub struct OpenHook {
    pub org: OrgId,
    pub hook: Hook,
    /// The secrets that count now.
    pub secrets: Vec<SecretString>,
    /// It is enabled, and its organization may work.
    pub is_live: bool,
}

#[derive(FromRow)]
struct Row {
    hook_id: Uuid,
    agent_id: Uuid,
    kind: String,
    enabled: bool,
    filter: Option<String>,
    recipe: String,
    secret_before_until: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

#[derive(FromRow)]
struct SealedRow {
    org_id: Uuid,
    data_key: Vec<u8>,
    is_open: bool,
    sealed_secret: Vec<u8>,
    sealed_secret_before: Option<Vec<u8>>,
    #[sqlx(flatten)]
    row: Row,
}

impl Row {
    fn hook(self) -> Result<Hook> {
        Ok(Hook {
            id: Id::from_uuid(self.hook_id),
            agent: Id::from_uuid(self.agent_id),
            kind: from_word(&self.kind)?,
            enabled: self.enabled,
            filter: self.filter.as_deref().map(from_json).transpose()?,
            recipe: from_json(&self.recipe)?,
            secret_before_until: self.secret_before_until,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

macro_rules! hooks {
    ($rest:literal) => {
        concat!(
            "select hook_id, agent_id, kind, enabled, filter::text, recipe::text,
                    case when secret_before_until > now() then secret_before_until end as secret_before_until,
                    created_at, updated_at
             from hook
             where org_id = $1 and agent_id = $2 ",
            $rest
        )
    };
}

/// The associated data that binds a sealed secret to its row.
pub fn context(org: OrgId, hook: HookId) -> String {
    format!("hook/{org}/{hook}")
}

impl Tx {
    /// Stores a hook with its sealed secret.
    pub async fn insert_hook(&mut self, hook: &Hook, sealed_secret: &[u8]) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "insert into hook (org_id, hook_id, agent_id, kind, enabled, filter, recipe, sealed_secret, created_at,
                               updated_at)
             values ($1, $2, $3, $4, $5, $6::json, $7::json, $8, $9, $9)",
        )
        .bind(org)
        .bind(hook.id.uuid())
        .bind(hook.agent.uuid())
        .bind(word(&hook.kind))
        .bind(hook.enabled)
        .bind(hook.filter.as_ref().map(json))
        .bind(json(&hook.recipe))
        .bind(sealed_secret)
        .bind(hook.created_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Hooks of an agent, oldest first; at most `HOOKS_MAX` exist. By the index
    /// `hook_of_agent`.
    pub async fn hooks(&mut self, agent: AgentId) -> Result<Vec<Hook>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(hooks!("order by hook_id"))
            .bind(org)
            .bind(agent.uuid())
            .fetch_all(self.connection())
            .await?;
        rows.into_iter().map(Row::hook).collect()
    }

    /// One hook of an agent.
    pub async fn hook(&mut self, agent: AgentId, hook: HookId) -> Result<Hook> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(hooks!("and hook_id = $3"))
            .bind(org)
            .bind(agent.uuid())
            .bind(hook.uuid())
            .fetch_one(self.connection())
            .await?;
        row.hook()
    }

    /// One hook of an agent, locked until the transaction ends.
    pub async fn lock_hook(&mut self, agent: AgentId, hook: HookId) -> Result<Hook> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(hooks!("and hook_id = $3 for update"))
            .bind(org)
            .bind(agent.uuid())
            .bind(hook.uuid())
            .fetch_one(self.connection())
            .await?;
        row.hook()
    }

    /// Writes what may change of a locked hook.
    pub async fn update_hook(&mut self, hook: &Hook) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update hook
             set enabled = $3, filter = $4::json, recipe = $5::json, updated_at = $6
             where org_id = $1 and hook_id = $2",
        )
        .bind(org)
        .bind(hook.id.uuid())
        .bind(hook.enabled)
        .bind(hook.filter.as_ref().map(json))
        .bind(json(&hook.recipe))
        .bind(hook.updated_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Replaces the secret of a locked hook; the one before counts for `overlap` seconds
    /// more, and the one before that no more.
    pub async fn rotate_hook_secret(&mut self, hook: HookId, sealed: &[u8], overlap: i64) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update hook
             set sealed_secret = $3, sealed_secret_before = sealed_secret,
                 secret_before_until = now() + $4 * interval '1 second', updated_at = now()
             where org_id = $1 and hook_id = $2",
        )
        .bind(org)
        .bind(hook.uuid())
        .bind(sealed)
        .bind(overlap)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Deletes a hook; the sessions that it started go on.
    pub async fn delete_hook(&mut self, agent: AgentId, hook: HookId) -> Result<()> {
        let org = self.org.uuid();
        let done = sqlx::query("delete from hook where org_id = $1 and agent_id = $2 and hook_id = $3")
            .bind(org)
            .bind(agent.uuid())
            .bind(hook.uuid())
            .execute(self.connection())
            .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}

impl Store {
    /// The hook that a stranger names, with its secrets; by the index `hook_by_id`.
    ///
    /// The one lookup of its kind that cannot name its organization: it is what finds the
    /// organization. One statement whatever there is, so that its time tells nothing.
    pub async fn find_hook(&self, hook: HookId) -> Result<Option<OpenHook>> {
        let found: Option<SealedRow> = sqlx::query_as(
            "select h.org_id, t.data_key, t.suspended_at is null and t.deleted_at is null as is_open,
                    h.hook_id, h.agent_id, h.kind, h.enabled, h.filter::text, h.recipe::text, h.sealed_secret,
                    case when h.secret_before_until > now() then h.sealed_secret_before end as sealed_secret_before,
                    h.secret_before_until, h.created_at, h.updated_at
             from hook h
             join org t using (org_id)
             where h.hook_id = $1",
        )
        .bind(hook.uuid())
        .fetch_optional(&self.system)
        .await?;
        let Some(SealedRow { org_id, data_key, is_open, sealed_secret, sealed_secret_before, row }) = found
        else {
            return Ok(None);
        };
        let org: OrgId = Id::from_uuid(org_id);
        let corrupt = |error: &dyn std::fmt::Display| Error::Corrupt(format!("{hook}: {error}"));
        let key: DataKey =
            self.master.unwrap(&data_key, &org.to_string()).map_err(|error| corrupt(&error))?;
        let open = |sealed: &Vec<u8>| {
            let plain: Zeroizing<Vec<u8>> =
                key.open(sealed, &context(org, hook)).map_err(|error| corrupt(&error))?;
            let text = std::str::from_utf8(&plain).map_err(|error| corrupt(&error))?;
            Ok(SecretString::from(text.to_owned()))
        };
        let secrets = std::iter::once(&sealed_secret).chain(&sealed_secret_before).map(open);
        let secrets = secrets.collect::<Result<_>>()?;
        let hook = row.hook()?;
        Ok(Some(OpenHook { org, is_live: hook.enabled && is_open, hook, secrets }))
    }
}
