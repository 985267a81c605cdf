//! Triggers of agents. The API accepts a secret and never returns it.

use sqlx::FromRow;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::store::{
    Error, Result, Store, Tx,
    column::{from_json, from_word, json, word},
    parameter::named,
};
use crate::{
    base::{Id, SecretString, Timestamp, seal::DataKey},
    domain::{
        AgentId, OrgId, TriggerId,
        schedule::SessionTemplate,
        trigger::{Filter, Kind},
    },
};

/// A trigger, without its secret.
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    pub id: TriggerId,
    pub agent: AgentId,
    pub kind: Kind,
    pub enabled: bool,
    /// The GitHub events that start a session.
    pub filter: Option<Filter>,
    pub session_template: SessionTemplate,
    /// Until this time signatures with the replaced secret are valid too.
    pub secret_before_until: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A trigger with the data to authenticate a request to it.
pub struct OpenTrigger {
    pub org: OrgId,
    pub trigger: Trigger,
    /// The secrets that are valid now.
    pub secrets: Vec<SecretString>,
    /// It is enabled, and its organization is active.
    pub is_live: bool,
}

#[derive(FromRow)]
struct Row {
    trigger_id: Uuid,
    agent_id: Uuid,
    kind: String,
    enabled: bool,
    filter: Option<String>,
    session_template: String,
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
    fn trigger(self) -> Result<Trigger> {
        Ok(Trigger {
            id: Id::from_uuid(self.trigger_id),
            agent: Id::from_uuid(self.agent_id),
            kind: from_word(&self.kind)?,
            enabled: self.enabled,
            filter: self.filter.as_deref().map(from_json).transpose()?,
            session_template: from_json(&self.session_template)?,
            secret_before_until: self.secret_before_until,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

macro_rules! triggers {
    ($rest:literal) => {
        concat!(
            "select trigger_id, agent_id, kind, enabled, filter::text, session_template::text,
                    case when secret_before_until > now() then secret_before_until end as secret_before_until,
                    created_at, updated_at
             from trigger
             where org_id = $1 and agent_id = $2 ",
            $rest
        )
    };
}

/// Associated data that binds a sealed secret to its row.
pub(crate) fn context(org: OrgId, trigger: TriggerId) -> String {
    format!("hook/{org}/{trigger}")
}

impl Tx {
    /// Stores a trigger with its sealed secret.
    pub async fn insert_trigger(&mut self, trigger: &Trigger, sealed_secret: &[u8]) -> Result<()> {
        named!(
            query(
                "insert into trigger (org_id, trigger_id, agent_id, kind, enabled, filter, session_template,
                                      sealed_secret, created_at, updated_at)
                 values ($org_id, $trigger_id, $agent_id, $kind, $enabled, $filter::json, $session_template::json,
                         $sealed_secret, $created_at, $created_at)"
            ),
            {
                org_id: self.org.uuid(),
                trigger_id: trigger.id.uuid(),
                agent_id: trigger.agent.uuid(),
                kind: word(&trigger.kind),
                enabled: trigger.enabled,
                filter: trigger.filter.as_ref().map(json),
                session_template: json(&trigger.session_template),
                sealed_secret: sealed_secret,
                created_at: trigger.created_at,
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Returns the triggers of an agent, newest first, by the index `trigger_of_agent`.
    ///
    /// At most `TRIGGERS_MAX` exist.
    pub async fn triggers(&mut self, agent: AgentId) -> Result<Vec<Trigger>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(triggers!("order by trigger_id desc"))
            .bind(org)
            .bind(agent.uuid())
            .fetch_all(self.connection())
            .await?;
        rows.into_iter().map(Row::trigger).collect()
    }

    /// Reads one trigger of an agent.
    pub async fn trigger(&mut self, agent: AgentId, trigger: TriggerId) -> Result<Trigger> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(triggers!("and trigger_id = $3"))
            .bind(org)
            .bind(agent.uuid())
            .bind(trigger.uuid())
            .fetch_one(self.connection())
            .await?;
        row.trigger()
    }

    /// Reads one trigger of an agent and locks it until the transaction ends.
    pub async fn lock_trigger(&mut self, agent: AgentId, trigger: TriggerId) -> Result<Trigger> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(triggers!("and trigger_id = $3 for update"))
            .bind(org)
            .bind(agent.uuid())
            .bind(trigger.uuid())
            .fetch_one(self.connection())
            .await?;
        row.trigger()
    }

    /// Updates the mutable columns of a locked trigger.
    pub async fn update_trigger(&mut self, trigger: &Trigger) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update trigger
             set enabled = $3, filter = $4::json, session_template = $5::json, updated_at = $6
             where org_id = $1 and trigger_id = $2",
        )
        .bind(org)
        .bind(trigger.id.uuid())
        .bind(trigger.enabled)
        .bind(trigger.filter.as_ref().map(json))
        .bind(json(&trigger.session_template))
        .bind(trigger.updated_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Replaces the secret of a locked trigger.
    ///
    /// The previous secret stays valid for `overlap` seconds; the one before that becomes invalid
    /// at once.
    pub async fn rotate_trigger_secret(
        &mut self,
        trigger: TriggerId,
        sealed: &[u8],
        overlap: i64,
    ) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update trigger
             set sealed_secret = $3, sealed_secret_before = sealed_secret,
                 secret_before_until = now() + $4 * interval '1 second', updated_at = now()
             where org_id = $1 and trigger_id = $2",
        )
        .bind(org)
        .bind(trigger.uuid())
        .bind(sealed)
        .bind(overlap)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Deletes a trigger; the sessions that it started continue.
    pub async fn delete_trigger(&mut self, agent: AgentId, trigger: TriggerId) -> Result<()> {
        let org = self.org.uuid();
        let done = sqlx::query("delete from trigger where org_id = $1 and agent_id = $2 and trigger_id = $3")
            .bind(org)
            .bind(agent.uuid())
            .bind(trigger.uuid())
            .execute(self.connection())
            .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}

impl Store {
    /// Reads the trigger of an unauthenticated request, with its secrets; by the index
    /// `trigger_by_id`.
    ///
    /// This is the only lookup of its kind without an organization, because it finds the
    /// organization. It is one statement in every case, so its duration reveals nothing.
    pub async fn find_trigger(&self, trigger: TriggerId) -> Result<Option<OpenTrigger>> {
        let found: Option<SealedRow> = sqlx::query_as(
            "select h.org_id, t.data_key, t.suspended_at is null and t.deleted_at is null as is_open,
                    h.trigger_id, h.agent_id, h.kind, h.enabled, h.filter::text, h.session_template::text, h.sealed_secret,
                    case when h.secret_before_until > now() then h.sealed_secret_before end as sealed_secret_before,
                    h.secret_before_until, h.created_at, h.updated_at
             from trigger h
             join org t using (org_id)
             where h.trigger_id = $1",
        )
        .bind(trigger.uuid())
        .fetch_optional(&self.system)
        .await?;
        let Some(SealedRow { org_id, data_key, is_open, sealed_secret, sealed_secret_before, row }) = found
        else {
            return Ok(None);
        };
        let org: OrgId = Id::from_uuid(org_id);
        let corrupt = |error: &dyn std::fmt::Display| Error::Corrupt(format!("{trigger}: {error}"));
        let key: DataKey =
            self.master.unwrap(&data_key, &org.to_string()).map_err(|error| corrupt(&error))?;
        let open = |sealed: &Vec<u8>| {
            let plain: Zeroizing<Vec<u8>> =
                key.open(sealed, &context(org, trigger)).map_err(|error| corrupt(&error))?;
            let text = std::str::from_utf8(&plain).map_err(|error| corrupt(&error))?;
            Ok(SecretString::from(text.to_owned()))
        };
        let secrets = std::iter::once(&sealed_secret).chain(&sealed_secret_before).map(open);
        let secrets = secrets.collect::<Result<_>>()?;
        let trigger = row.trigger()?;
        Ok(Some(OpenTrigger { org, is_live: trigger.enabled && is_open, trigger, secrets }))
    }
}
