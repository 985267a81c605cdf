//! Invoke tokens of agents, looked up by their peppered hash.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    column::{from_json, json},
};
use crate::{
    base::{Id, Timestamp, limit::KEY_USE_INTERVAL},
    domain::{AgentId, InvokeTokenId, OrgId, schedule::SessionTemplate},
};

/// The public part of an invoke token, without its secret.
#[derive(Clone, Debug, PartialEq)]
pub struct InvokeToken {
    pub id: InvokeTokenId,
    pub agent: AgentId,
    pub name: String,
    /// Its last characters.
    pub hint: String,
    pub session_template: SessionTemplate,
    /// Accurate to `KEY_USE_INTERVAL`.
    pub last_used_at: Option<Timestamp>,
    pub created_at: Timestamp,
}

/// An invoke token that is valid now, with its organization.
#[derive(Debug)]
pub struct LiveInvokeToken {
    pub org: OrgId,
    pub token: InvokeToken,
    /// Its organization is suspended.
    pub is_suspended: bool,
}

#[derive(FromRow)]
struct Row {
    invoke_token_id: Uuid,
    agent_id: Uuid,
    name: String,
    hint: String,
    session_template: String,
    last_used_at: Option<Timestamp>,
    created_at: Timestamp,
}

#[derive(FromRow)]
struct LiveRow {
    org_id: Uuid,
    is_suspended: bool,
    #[sqlx(flatten)]
    row: Row,
}

impl TryFrom<Row> for InvokeToken {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        Ok(Self {
            id: Id::from_uuid(row.invoke_token_id),
            agent: Id::from_uuid(row.agent_id),
            name: row.name,
            hint: row.hint,
            session_template: from_json(&row.session_template)?,
            last_used_at: row.last_used_at,
            created_at: row.created_at,
        })
    }
}

impl Tx {
    /// Stores an invoke token with the hash of its secret.
    pub async fn insert_invoke_token(&mut self, token: &InvokeToken, hash: &[u8]) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "insert into invoke_token (org_id, invoke_token_id, agent_id, hash, name, hint, session_template,
                                       created_at)
             values ($1, $2, $3, $4, $5, $6, $7::json, $8)",
        )
        .bind(org)
        .bind(token.id.uuid())
        .bind(token.agent.uuid())
        .bind(hash)
        .bind(&token.name)
        .bind(&token.hint)
        .bind(json(&token.session_template))
        .bind(token.created_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Returns the invoke tokens of an agent, newest first, by the index `invoke_token_of_agent`.
    ///
    /// At most `INVOKE_TOKENS_MAX` exist.
    pub async fn invoke_tokens(&mut self, agent: AgentId) -> Result<Vec<InvokeToken>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(
            "select invoke_token_id, agent_id, name, hint, session_template::text, last_used_at, created_at
             from invoke_token
             where org_id = $1 and agent_id = $2
             order by invoke_token_id desc",
        )
        .bind(org)
        .bind(agent.uuid())
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(InvokeToken::try_from).collect()
    }

    /// Deletes an invoke token and returns its name.
    pub async fn delete_invoke_token(&mut self, agent: AgentId, token: InvokeTokenId) -> Result<String> {
        let org = self.org.uuid();
        let name = sqlx::query_scalar(
            "delete from invoke_token
             where org_id = $1 and agent_id = $2 and invoke_token_id = $3
             returning name",
        )
        .bind(org)
        .bind(agent.uuid())
        .bind(token.uuid())
        .fetch_one(self.connection())
        .await?;
        Ok(name)
    }
}

impl Store {
    /// Returns the live invoke token of a bearer secret; `None` when unknown or revoked.
    ///
    /// Found by the unique index `invoke_token_hash`, and never cached: a revocation takes effect
    /// with its commit. Its last use is recorded at most once per `KEY_USE_INTERVAL`.
    pub async fn find_invoke_token(&self, secret: &str) -> Result<Option<LiveInvokeToken>> {
        let row: Option<LiveRow> = sqlx::query_as(
            "with found as (
                select k.*, o.suspended_at is not null as is_suspended
                from invoke_token k
                join org o using (org_id)
                where k.hash = $1
             ), used as (
                update invoke_token k
                set last_used_at = now()
                from found f
                where k.org_id = f.org_id
                  and k.invoke_token_id = f.invoke_token_id
                  and (f.last_used_at is null or f.last_used_at < now() - $2 * interval '1 second')
             )
             select org_id, is_suspended, invoke_token_id, agent_id, name, hint, session_template::text,
                    last_used_at, created_at
             from found",
        )
        .bind(self.master.fingerprint(secret).as_slice())
        .bind(KEY_USE_INTERVAL.as_secs_f64())
        .fetch_optional(&self.system)
        .await?;
        let live = |LiveRow { org_id, is_suspended, row }| {
            Ok(LiveInvokeToken { org: Id::from_uuid(org_id), token: row.try_into()?, is_suspended })
        };
        row.map(live).transpose()
    }
}
