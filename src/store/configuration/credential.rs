//! Provider credentials. The API accepts keys and never returns them; they are stored sealed.

use std::collections::BTreeMap;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Error, Result, Store, Tx, column::from_json, parameter::named};
use crate::{
    base::{Id, SecretString, Timestamp},
    domain::{CredentialId, OrgId, oauth::OAuthClient},
};

/// The public part of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub id: CredentialId,
    pub provider: String,
    pub name: Option<String>,
    pub last4: String,
    pub base_url: Option<String>,
    /// The header that has the key; `None` for that of the provider's API.
    pub key_header: Option<String>,
    /// Names of the headers that are sent with each call.
    pub header_names: Vec<String>,
    /// The client that gets its access tokens; `None` for a credential with a key of its own.
    pub oauth: Option<OAuthState>,
    pub is_default: bool,
    pub created_at: Timestamp,
}

/// Public state of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuthState {
    pub client: OAuthClient,
    /// End of the access token, if there is one that has an end.
    pub expires_at: Option<Timestamp>,
    pub is_refused: bool,
}

/// The secret part of a credential, sealed.
#[derive(Debug)]
pub struct SealedCredential {
    pub key: Vec<u8>,
    /// `None` without headers.
    pub headers: Option<Vec<u8>>,
}

/// The decrypted credential that a worker needs to call the provider.
#[derive(Debug)]
pub struct OpenCredential {
    pub provider: String,
    pub base_url: Option<String>,
    pub key: SecretString,
    pub key_header: Option<String>,
    /// Headers of each call, and their values.
    pub headers: Vec<(String, SecretString)>,
    /// Whether the key is the access token of an OAuth client.
    pub has_oauth: bool,
}

#[derive(FromRow)]
struct Row {
    credential_id: Uuid,
    provider: String,
    name: Option<String>,
    last4: String,
    base_url: Option<String>,
    key_header: Option<String>,
    header_names: Vec<String>,
    oauth: Option<String>,
    token_expires_at: Option<Timestamp>,
    is_refused: bool,
    is_default: bool,
    created_at: Timestamp,
}

#[derive(FromRow)]
struct SealedRow {
    provider: String,
    base_url: Option<String>,
    sealed_key: Vec<u8>,
    key_header: Option<String>,
    sealed_headers: Option<Vec<u8>>,
    has_oauth: bool,
}

impl TryFrom<Row> for Credential {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let oauth = row.oauth.as_deref().map(from_json).transpose()?.map(|client| OAuthState {
            client,
            expires_at: row.token_expires_at,
            is_refused: row.is_refused,
        });
        Ok(Self {
            oauth,
            id: Id::from_uuid(row.credential_id),
            provider: row.provider,
            name: row.name,
            last4: row.last4,
            base_url: row.base_url,
            key_header: row.key_header,
            header_names: row.header_names,
            is_default: row.is_default,
            created_at: row.created_at,
        })
    }
}

macro_rules! credentials {
    ($rest:literal) => {
        concat!(
            "select credential_id, provider, name, last4, base_url, key_header, header_names, oauth::text,
                    nullif(token_expires_at, 'epoch') as token_expires_at, refused_at is not null as is_refused,
                    is_default, created_at
             from credential
             where org_id = $1 and deleted_at is null ",
            $rest
        )
    };
}

/// Associated data that binds a sealed key to its row.
pub(crate) fn key_context(org: OrgId, credential: CredentialId) -> String {
    format!("credential/{org}/{credential}")
}

/// Associated data that binds sealed headers to their row.
pub(crate) fn headers_context(org: OrgId, credential: CredentialId) -> String {
    format!("credential_headers/{org}/{credential}")
}

impl Tx {
    /// Stores a credential with its sealed part.
    pub async fn insert_credential(
        &mut self,
        credential: &Credential,
        sealed: &SealedCredential,
    ) -> Result<()> {
        if credential.is_default {
            self.clear_default(&credential.provider).await?;
        }
        named!(
            query(
                "insert into credential (org_id, credential_id, provider, name, sealed_key, last4, base_url,
                                         key_header, header_names, sealed_headers, is_default, created_at,
                                         updated_at)
                 values ($org_id, $credential_id, $provider, $name, $sealed_key, $last4, $base_url, $key_header,
                         $header_names, $sealed_headers, $is_default, $created_at, $created_at)"
            ),
            {
                org_id: self.org.uuid(),
                credential_id: credential.id.uuid(),
                provider: &credential.provider,
                name: &credential.name,
                sealed_key: &sealed.key,
                last4: &credential.last4,
                base_url: &credential.base_url,
                key_header: &credential.key_header,
                header_names: &credential.header_names,
                sealed_headers: &sealed.headers,
                is_default: credential.is_default,
                created_at: credential.created_at,
            }
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Reads one credential.
    pub async fn credential(&mut self, credential: CredentialId) -> Result<Credential> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(credentials!("and credential_id = $2"))
            .bind(org)
            .bind(credential.uuid())
            .fetch_one(self.connection())
            .await?;
        row.try_into()
    }

    /// Reads one credential by its id or name.
    pub async fn find_credential(&mut self, named: &str) -> Result<Credential> {
        match named.parse() {
            Ok(id) => self.credential(id).await,
            Err(_) => self.credential_by_name(named).await?.ok_or(Error::NotFound),
        }
    }

    /// Reads a credential by its name, by the index `credential_name`. Returns `None` if several have
    /// it: the choice of a key is never a guess.
    pub async fn credential_by_name(&mut self, name: &str) -> Result<Option<Credential>> {
        // No name contains U+0000, which a text parameter cannot carry.
        if name.contains('\0') {
            return Ok(None);
        }
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(credentials!("and name = $2 limit 2"))
            .bind(org)
            .bind(name)
            .fetch_all(self.connection())
            .await?;
        let only = <[Row; 1]>::try_from(rows).ok();
        only.map(|[row]| row.try_into()).transpose()
    }

    /// Returns a page of credentials, newest first.
    pub async fn credentials(&mut self, below: Option<CredentialId>, limit: i64) -> Result<Vec<Credential>> {
        let org = self.org.uuid();
        let rows: Vec<Row> = sqlx::query_as(credentials!(
            "and ($2::uuid is null or credential_id < $2) order by credential_id desc limit $3"
        ))
        .bind(org)
        .bind(below.map(Id::uuid))
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(TryInto::try_into).collect()
    }

    /// Returns the default credential for a provider, by `credential_default`.
    pub async fn default_credential(&mut self, provider: &str) -> Result<Option<CredentialId>> {
        let org = self.org.uuid();
        let row: Option<Row> = sqlx::query_as(credentials!("and provider = $2 and is_default"))
            .bind(org)
            .bind(provider)
            .fetch_optional(self.connection())
            .await?;
        Ok(row.map(|row| Id::from_uuid(row.credential_id)))
    }

    /// Replaces the key of a credential, and its headers if `header_names` are given; running sessions use them from
    /// their next call on.
    pub async fn rotate_credential(
        &mut self,
        credential: CredentialId,
        last4: &str,
        sealed: &SealedCredential,
        header_names: Option<&[String]>,
    ) -> Result<()> {
        let done = named!(
            query(
                "update credential
                 set sealed_key = $sealed_key, last4 = $last4,
                     header_names = coalesce($header_names, header_names),
                     sealed_headers = case
                         when $header_names::text[] is null then sealed_headers
                         else $sealed_headers
                     end,
                     updated_at = now()
                 where org_id = $org_id and credential_id = $credential_id and deleted_at is null"
            ),
            {
                sealed_key: &sealed.key,
                last4: last4,
                header_names: header_names,
                sealed_headers: &sealed.headers,
                org_id: self.org.uuid(),
                credential_id: credential.uuid(),
            }
        )
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Makes a credential the default for its provider.
    pub async fn make_default(&mut self, credential: &Credential) -> Result<()> {
        self.clear_default(&credential.provider).await?;
        let org = self.org.uuid();
        sqlx::query("update credential set is_default = true where org_id = $1 and credential_id = $2")
            .bind(org)
            .bind(credential.id.uuid())
            .execute(self.connection())
            .await?;
        Ok(())
    }

    /// Deletes a credential: overwrites the sealed key and retains the row for its id.
    pub async fn delete_credential(&mut self, credential: CredentialId) -> Result<()> {
        let org = self.org.uuid();
        let done = sqlx::query(
            "update credential
             set deleted_at = now(), is_default = false, sealed_key = '', header_names = '{}', sealed_headers = null,
                 oauth = null, sealed_oauth = null
             where org_id = $1 and credential_id = $2 and deleted_at is null",
        )
        .bind(org)
        .bind(credential.uuid())
        .execute(self.connection())
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    async fn clear_default(&mut self, provider: &str) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update credential set is_default = false where org_id = $1 and provider = $2 and is_default",
        )
        .bind(org)
        .bind(provider)
        .execute(self.connection())
        .await?;
        Ok(())
    }
}

impl Store {
    /// Decrypts the organization's default credential for a provider; `None` without one. By the index
    /// `credential_default`.
    ///
    /// # Errors
    /// As for [`Store::open_credential`].
    pub async fn open_default_credential(
        &self,
        org: OrgId,
        provider: &str,
    ) -> Result<Option<OpenCredential>> {
        let id: Option<(Uuid,)> = sqlx::query_as(
            "select credential_id
             from credential
             where org_id = $1 and provider = $2 and is_default and deleted_at is null",
        )
        .bind(org.uuid())
        .bind(provider)
        .fetch_optional(&self.system)
        .await?;
        match id {
            Some((id,)) => self.open_credential(org, Id::from_uuid(id)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Decrypts a credential for a model call.
    ///
    /// # Errors
    /// `NotFound` when it was deleted since the session pinned it.
    pub async fn open_credential(&self, org: OrgId, credential: CredentialId) -> Result<OpenCredential> {
        let row: SealedRow = sqlx::query_as(
            "select provider, base_url, sealed_key, key_header, sealed_headers, oauth is not null as has_oauth
             from credential
             where org_id = $1 and credential_id = $2 and deleted_at is null",
        )
        .bind(org.uuid())
        .bind(credential.uuid())
        .fetch_one(&self.system)
        .await?;
        let key = self.data_key(org).await?;
        let open = |sealed: &[u8], context: &str| {
            key.open(sealed, context).map_err(|error| Error::Corrupt(error.to_string()))
        };
        let plain = open(&row.sealed_key, &key_context(org, credential))?;
        let text = String::from_utf8(plain.to_vec()).map_err(|error| Error::Corrupt(error.to_string()))?;
        let headers: BTreeMap<String, String> = match &row.sealed_headers {
            None => BTreeMap::new(),
            Some(sealed) => serde_json::from_slice(&open(sealed, &headers_context(org, credential))?)
                .map_err(|error| Error::Corrupt(error.to_string()))?,
        };
        Ok(OpenCredential {
            provider: row.provider,
            base_url: row.base_url,
            key: text.into(),
            key_header: row.key_header,
            headers: headers.into_iter().map(|(name, value)| (name, value.into())).collect(),
            has_oauth: row.has_oauth,
        })
    }
}
