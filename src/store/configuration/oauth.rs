//! Access tokens of OAuth clients: read, refreshed by one process at a time, replaced.

use sqlx::FromRow;

use super::credential::key_context;
use crate::store::{
    Error, Result, Store, Tx,
    column::{from_json, json},
    parameter::named,
};
use crate::{
    base::{
        ExposeSecret, Origin, SecretString, Timestamp,
        limit::{OAUTH_EXPIRY_MARGIN, OAUTH_REFRESH_LEASE},
        seal::DataKey,
    },
    domain::{
        CredentialId, Notice, OrgId,
        oauth::{AccessToken, OAuthClient, OAuthSecrets},
    },
};

/// The client of a credential, and its access token.
pub struct OAuthToken {
    pub client: OAuthClient,
    pub secrets: OAuthSecrets,
    /// Empty before the first one.
    pub access: SecretString,
    /// Whether the token may be used: there is one, and it does not expire soon.
    pub is_valid: bool,
    /// Raised with each token.
    pub generation: i64,
    /// Whether the token endpoint refused the client or its refresh token.
    pub is_refused: bool,
    key: DataKey,
}

/// The right of one process to refresh a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefreshLease {
    generation: i64,
    until: Timestamp,
}

#[derive(FromRow)]
struct Row {
    oauth: String,
    sealed_oauth: Vec<u8>,
    sealed_key: Vec<u8>,
    is_valid: bool,
    generation: i64,
    is_refused: bool,
}

/// Associated data that binds the sealed secrets of a client to their row.
pub(crate) fn oauth_context(org: OrgId, credential: CredentialId) -> String {
    format!("credential_oauth/{org}/{credential}")
}

impl Store {
    /// Reads the OAuth client of a credential, and its access token.
    ///
    /// # Errors
    /// `NotFound` when it was deleted, or has no OAuth client.
    pub async fn oauth_token(&self, org: OrgId, credential: CredentialId) -> Result<OAuthToken> {
        let row: Row = sqlx::query_as(
            "select oauth::text, sealed_oauth, sealed_key, generation, refused_at is not null as is_refused,
                    generation > 0 and coalesce(token_expires_at > now() + make_interval(secs => $3), true) as is_valid
             from credential
             where org_id = $1 and credential_id = $2 and deleted_at is null and oauth is not null",
        )
        .bind(org.uuid())
        .bind(credential.uuid())
        .bind(OAUTH_EXPIRY_MARGIN.as_secs_f64())
        .fetch_one(&self.system)
        .await?;
        let key = self.data_key(org).await?;
        let corrupt = |error: String| Error::Corrupt(error);
        let open = |sealed: &[u8], context: &str| {
            key.open(sealed, context).map_err(|error| corrupt(error.to_string()))
        };
        let secrets = open(&row.sealed_oauth, &oauth_context(org, credential))?;
        let access = open(&row.sealed_key, &key_context(org, credential))?;
        let access = String::from_utf8(access.to_vec()).map_err(|error| corrupt(error.to_string()))?;
        Ok(OAuthToken {
            client: from_json(&row.oauth)?,
            secrets: serde_json::from_slice(&secrets).map_err(|error| corrupt(error.to_string()))?,
            access: access.into(),
            is_valid: row.is_valid,
            generation: row.generation,
            is_refused: row.is_refused,
            key,
        })
    }

    /// Takes the right to refresh a token of this generation, unless another process has it. Its holder ends it with
    /// [`Store::store_token`] or [`Store::end_refresh`].
    pub async fn begin_refresh(
        &self,
        org: OrgId,
        credential: CredentialId,
        generation: i64,
    ) -> Result<Option<RefreshLease>> {
        let mut tx = self.begin(org).await?;
        let taken: Option<(Timestamp,)> = sqlx::query_as(
            "update credential set refreshing_until = now() + make_interval(secs => $4)
             where org_id = $1 and credential_id = $2 and generation = $3 and deleted_at is null
               and refused_at is null and coalesce(refreshing_until < now(), true)
             returning refreshing_until",
        )
        .bind(org.uuid())
        .bind(credential.uuid())
        .bind(generation)
        .bind(OAUTH_REFRESH_LEASE.as_secs_f64())
        .fetch_optional(tx.connection())
        .await?;
        tx.commit().await?;
        Ok(taken.map(|(until,)| RefreshLease { generation, until }))
    }

    /// Stores the token that follows `before`; does nothing if there is another one by now. Also after the end of the lease:
    /// what the token endpoint gave must not get lost.
    pub async fn store_token(
        &self,
        org: OrgId,
        credential: CredentialId,
        (before, new): (&OAuthToken, &AccessToken),
        origin: &Origin,
    ) -> Result<()> {
        let (key, mut secrets) = (&before.key, before.secrets.clone());
        if let Some(refresh_token) = &new.refresh_token {
            secrets.refresh_token = Some(refresh_token.clone());
        }
        let sealed_key =
            key.seal(new.token.expose_secret().as_bytes(), &key_context(org, credential), origin);
        let sealed_oauth = key.seal(json(&secrets).as_bytes(), &oauth_context(org, credential), origin);
        let expires_in = new.expires_in.map(|seconds| seconds.min(u64::from(u32::MAX)) as f64);
        let mut tx = self.begin(org).await?;
        named!(
            query(
                "update credential
                 set sealed_key = $sealed_key, sealed_oauth = $sealed_oauth, generation = generation + 1,
                     token_expires_at = now() + make_interval(secs => $expires_in), refreshing_until = null,
                     refused_at = null
                 where org_id = $org_id and credential_id = $credential_id and generation = $generation
                   and deleted_at is null"
            ),
            {
                sealed_key: &sealed_key,
                sealed_oauth: &sealed_oauth,
                expires_in: expires_in,
                org_id: org.uuid(),
                credential_id: credential.uuid(),
                generation: before.generation,
            }
        )
        .execute(tx.connection())
        .await?;
        tx.commit().await
    }

    /// Ends a refresh that got no token, so that the next one may try. `refused` is told to the organization's webhooks: the
    /// token endpoint refused the client, and nobody tries it again. Does nothing if there is another token by now, or
    /// another process refreshes it.
    pub async fn end_refresh(
        &self,
        org: OrgId,
        credential: CredentialId,
        lease: RefreshLease,
        refused: Option<&Notice>,
    ) -> Result<()> {
        let mut tx = self.begin(org).await?;
        let ended = sqlx::query(
            "update credential set refreshing_until = null, refused_at = case when $5 then now() end
             where org_id = $1 and credential_id = $2 and generation = $3 and deleted_at is null
               and refreshing_until = $4",
        )
        .bind(org.uuid())
        .bind(credential.uuid())
        .bind(lease.generation)
        .bind(lease.until)
        .bind(refused.is_some())
        .execute(tx.connection())
        .await?;
        if ended.rows_affected() == 1 {
            tx.tell(refused.map(std::slice::from_ref).unwrap_or_default()).await?;
        }
        tx.commit().await
    }
}

impl Tx {
    /// Makes a credential one of an OAuth client, or replaces its client: the next use gets a token.
    pub async fn set_oauth_client(
        &mut self,
        credential: CredentialId,
        client: &OAuthClient,
        sealed_oauth: &[u8],
    ) -> Result<()> {
        let org = self.org.uuid();
        let done = sqlx::query(
            "update credential
             set oauth = $3::json, sealed_oauth = $4, generation = generation + 1, token_expires_at = 'epoch',
                 refreshing_until = null, refused_at = null, updated_at = now()
             where org_id = $1 and credential_id = $2 and deleted_at is null",
        )
        .bind(org)
        .bind(credential.uuid())
        .bind(json(client))
        .bind(sealed_oauth)
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }
}
