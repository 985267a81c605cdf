//! Environments of sandboxes. The API accepts values of secrets and never returns them.

use std::collections::BTreeMap;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    column::{from_json, json},
};
use crate::{
    base::{Id, SecretString, Timestamp},
    domain::{EnvironmentId, OrgId, environment::Environment, secret::SecretBinding},
};

/// An environment without the values of its secrets.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    pub id: EnvironmentId,
    pub name: String,
    pub config: Environment,
    pub secrets: Vec<SecretBinding>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(FromRow)]
struct Row {
    environment_id: Uuid,
    name: String,
    config: String,
    secrets: String,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl Row {
    fn named(self) -> Result<Named> {
        Ok(Named {
            id: Id::from_uuid(self.environment_id),
            name: self.name,
            config: from_json(&self.config)?,
            secrets: from_json(&self.secrets)?,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

macro_rules! environments {
    ($rest:literal) => {
        concat!(
            "select environment_id, name, config::text, secrets::text, created_at, updated_at
             from environment
             where org_id = $1 and deleted_at is null ",
            $rest
        )
    };
}

/// Associated data that binds sealed values to their row.
pub(crate) fn context(org: OrgId, environment: EnvironmentId) -> String {
    format!("environment/{org}/{environment}")
}

impl Tx {
    /// Stores an environment with its sealed values.
    ///
    /// # Errors
    /// `Conflict("environment_name")` when the name is taken.
    pub async fn insert_environment(&mut self, named: &Named, sealed: &[u8]) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "insert into environment (org_id, environment_id, name, config, secrets, sealed_secrets, created_at,
                                      updated_at)
             values ($1, $2, $3, $4::json, $5::json, $6, $7, $7)",
        )
        .bind(org)
        .bind(named.id.uuid())
        .bind(&named.name)
        .bind(json(&named.config))
        .bind(json(&named.secrets))
        .bind(sealed)
        .bind(named.created_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Reads one environment.
    pub async fn environment(&mut self, environment: EnvironmentId) -> Result<Named> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(environments!("and environment_id = $2"))
            .bind(org)
            .bind(environment.uuid())
            .fetch_one(self.connection())
            .await?;
        row.named()
    }

    /// Reads one environment with its sealed values and locks it.
    ///
    /// The lock lasts until the transaction ends.
    pub async fn lock_environment(&mut self, environment: EnvironmentId) -> Result<(Named, Vec<u8>)> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(environments!("and environment_id = $2 for update"))
            .bind(org)
            .bind(environment.uuid())
            .fetch_one(self.connection())
            .await?;
        let sealed: Vec<u8> = sqlx::query_scalar(
            "select sealed_secrets from environment where org_id = $1 and environment_id = $2",
        )
        .bind(org)
        .bind(environment.uuid())
        .fetch_one(self.connection())
        .await?;
        Ok((row.named()?, sealed))
    }

    /// Reads an environment by its name, by the unique index `environment_name`.
    pub async fn environment_by_name(&mut self, name: &str) -> Result<Option<Named>> {
        let org = self.org.uuid();
        let row: Option<Row> = sqlx::query_as(environments!("and name = $2"))
            .bind(org)
            .bind(name)
            .fetch_optional(self.connection())
            .await?;
        row.map(Row::named).transpose()
    }

    /// Returns a page of environments, newest first.
    pub async fn environments(&mut self, below: Option<EnvironmentId>, limit: i64) -> Result<Vec<Named>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(environments!(
            "and ($2::uuid is null or environment_id < $2) order by environment_id desc limit $3"
        ))
        .bind(org)
        .bind(below.map(Id::uuid))
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(Row::named).collect()
    }

    /// Writes a locked environment back.
    pub async fn update_environment(&mut self, named: &Named, sealed: &[u8]) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update environment
             set name = $3, config = $4::json, secrets = $5::json, sealed_secrets = $6, updated_at = $7
             where org_id = $1 and environment_id = $2",
        )
        .bind(org)
        .bind(named.id.uuid())
        .bind(&named.name)
        .bind(json(&named.config))
        .bind(json(&named.secrets))
        .bind(sealed)
        .bind(named.updated_at)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Deletes an environment: overwrites its values and retains the row for its id.
    pub async fn delete_environment(&mut self, environment: EnvironmentId) -> Result<()> {
        let org = self.org.uuid();
        let done = sqlx::query(
            "update environment
             set deleted_at = now(), sealed_secrets = ''
             where org_id = $1 and environment_id = $2 and deleted_at is null",
        )
        .bind(org)
        .bind(environment.uuid())
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}

impl Store {
    /// Decrypts the values of an environment's secrets, for the start of a sandbox.
    ///
    /// # Errors
    /// `NotFound` when it was deleted since the session pinned it.
    pub async fn open_environment(
        &self,
        org: OrgId,
        environment: EnvironmentId,
    ) -> Result<BTreeMap<String, SecretString>> {
        let sealed: Vec<u8> = sqlx::query_scalar(
            "select sealed_secrets
             from environment
             where org_id = $1 and environment_id = $2 and deleted_at is null",
        )
        .bind(org.uuid())
        .bind(environment.uuid())
        .fetch_one(&self.system)
        .await?;
        if sealed.is_empty() {
            return Ok(BTreeMap::new());
        }
        let key = self.data_key(org).await?;
        let plain = key
            .open(&sealed, &context(org, environment))
            .map_err(|error| Error::Corrupt(error.to_string()))?;
        let values: BTreeMap<String, String> =
            serde_json::from_slice(&plain).map_err(|error| Error::Corrupt(error.to_string()))?;
        Ok(values.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}
