//! Credentials: store, list, rotate, delete, set the default.

use std::collections::BTreeMap;

use serde_json::json;

use crate::{
    base::{ExposeSecret, key},
    domain::{
        CredentialId, OrgId, mcp,
        oauth::{OAuthClient, OAuthSecrets},
        provider_header::{default_key_header, header_name, provider_headers},
        secret::is_secret_value,
        source,
    },
    http::{
        prelude::*,
        scope::{ReadCredentials, Scope, WriteCredentials},
    },
    model::ModelName,
    store::{
        Tx,
        credential::{self, Credential, OAuthState, SealedCredential},
        oauth,
    },
    wire::credential::{
        CreateCredential, CredentialView, DefaultCredential, OAuthInput, OAuthView, RotateCredential,
    },
};

/// Store a provider key
#[utoipa::path(post, path = "/credentials", tag = "credentials", operation_id = "createCredential",
    request_body = CreateCredential, responses((status = 201, body = CredentialView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteCredentials>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateCredential>>,
) -> Result<Answer> {
    let (key_header, headers) = checked_headers(&wanted)?;
    let secret = secret_of(wanted.key.as_deref(), wanted.oauth.as_ref())?.to_owned();
    check_oauth(&caller.app, &wanted.provider, wanted.oauth.as_ref())?;
    if wanted.provider == source::PROVIDER {
        check_repositories(&wanted)?;
    } else if wanted.provider == mcp::PROVIDER {
        check_server(&caller.app, wanted.base_url.as_deref(), wanted.key.as_deref())?;
    } else if let Some(base_url) = &wanted.base_url {
        crate::net::parse(base_url)
            .and_then(|url| caller.app.0.models.check(&url))
            .map_err(|refused| ApiError::invalid("base_url", refused.to_string()))?;
    } else if !["anthropic", "openai"].contains(&wanted.provider.as_str()) {
        let message =
            "a provider other than anthropic and openai needs the `base_url` of its OpenAI-compatible API";
        return Err(ApiError::invalid("base_url", message));
    }
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let credential = Credential {
            id: caller.origin().id(),
            provider: wanted.provider,
            name: wanted.name,
            last4: key::hint(&secret),
            base_url: wanted.base_url,
            key_header,
            header_names: headers.keys().cloned().collect(),
            oauth: None,
            is_default: wanted.is_default,
            created_at: caller.origin().now(),
        };
        let key = wanted.key.as_deref().unwrap_or_default();
        store(&caller.app, unit.tx(), &credential, key, &headers).await?;
        let credential = match wanted.oauth {
            None => credential,
            Some(oauth) => {
                set_oauth(&caller.app, unit.tx(), credential.id, oauth).await?;
                unit.tx().credential(credential.id).await?
            }
        };
        record_created(&caller, unit.tx(), &credential).await?;
        Ok(Answer::new(StatusCode::CREATED, &view(credential)))
    })
    .await
}

/// Returns the header of the key, if it is another one than usual, and the further headers.
fn checked_headers(wanted: &CreateCredential) -> Result<(Option<String>, BTreeMap<String, String>)> {
    let named = wanted.key_header.as_deref().map(header_name).transpose();
    let named = named.map_err(|reason| ApiError::invalid("key_header", reason))?;
    if wanted.provider == source::PROVIDER && (named.is_some() || !wanted.headers.is_empty()) {
        return Err(ApiError::invalid("headers", "a credential for repositories has no headers"));
    }
    let headers = headers_beside(wanted.headers.clone(), named.as_deref(), &wanted.provider)?;
    Ok((named, headers))
}

/// Returns the headers beside that of the key, with their names in lower case.
fn headers_beside(
    headers: BTreeMap<String, String>,
    key_header: Option<&str>,
    provider: &str,
) -> Result<BTreeMap<String, String>> {
    let key_header = key_header.unwrap_or_else(|| default_key_header(provider));
    provider_headers(headers, key_header)
        .map_err(|(name, reason)| ApiError::invalid(format!("headers.{name}"), reason))
}

/// Rejects a repository credential whose `base_url` is missing or invalid, or whose key cannot be sent in
/// a header.
fn check_repositories(wanted: &CreateCredential) -> Result<()> {
    if wanted.base_url.as_deref().and_then(source::base).is_none() {
        let message = "a credential for repositories needs a `base_url`, as in https://github.com/acme; it is \
                       sent only to repositories below that URL";
        return Err(ApiError::invalid("base_url", message));
    }
    if !wanted.key.as_deref().is_some_and(is_secret_value) {
        let message = "a token, or user:password, must have 8 to 4096 printable ASCII characters";
        return Err(ApiError::invalid("key", message));
    }
    Ok(())
}

/// Returns the secret of a credential, whose last characters are shown.
fn secret_of<'a>(key: Option<&'a str>, oauth: Option<&'a OAuthInput>) -> Result<&'a str> {
    match (key, oauth) {
        (Some(key), None) => Ok(key),
        (None, Some(oauth)) => {
            let secret = oauth.refresh_token.as_deref().or(oauth.client_secret.as_deref());
            secret.ok_or_else(|| {
                ApiError::invalid("oauth", "`oauth` needs a `refresh_token`, or a `client_secret`, or both")
            })
        }
        (Some(_), Some(_)) => Err(ApiError::invalid("oauth", "send `key` or `oauth`, not both")),
        (None, None) => Err(ApiError::invalid("key", "`key` is needed, or `oauth` for an MCP server")),
    }
}

/// Rejects an OAuth client of another provider, and a token endpoint that is not allowed.
fn check_oauth(app: &App, provider: &str, oauth: Option<&OAuthInput>) -> Result<()> {
    let Some(oauth) = oauth else { return Ok(()) };
    if provider != mcp::PROVIDER {
        let message = format!("`oauth` is only for the provider `{}`", mcp::PROVIDER);
        return Err(ApiError::invalid("oauth", message));
    }
    crate::net::parse(&oauth.token_url)
        .and_then(|url| app.0.mcp_servers.check(&url))
        .map_err(|refused| ApiError::invalid("oauth.token_url", refused.to_string()))
}

/// Stores the OAuth client of a credential.
async fn set_oauth(app: &App, tx: &mut Tx, id: CredentialId, oauth: OAuthInput) -> Result<()> {
    let OAuthInput { token_url, client_id, client_secret, refresh_token, scope, resource } = oauth;
    let secrets = json!(OAuthSecrets { client_secret, refresh_token }).to_string();
    let org: OrgId = tx.org();
    let data_key = tx.data_key(app.0.store.master()).await?;
    let context = oauth::oauth_context(org, id);
    let sealed = data_key.seal(secrets.as_bytes(), &context, app.0.journal.origin());
    let client = OAuthClient { token_url, client_id, scope, resource };
    Ok(tx.set_oauth_client(id, &client, &sealed).await?)
}

/// Rejects a credential of an MCP server whose `base_url` is missing or not allowed, and a token that cannot be sent in a
/// header.
fn check_server(app: &App, base_url: Option<&str>, key: Option<&str>) -> Result<()> {
    let Some(base_url) = base_url else {
        let message = "a credential for an MCP server needs a `base_url`; it is sent only to servers with the same \
                       scheme, host and port";
        return Err(ApiError::invalid("base_url", message));
    };
    crate::net::parse(base_url)
        .and_then(|url| app.0.mcp_servers.check(&url))
        .map_err(|refused| ApiError::invalid("base_url", refused.to_string()))?;
    if key.is_some_and(|key| !is_secret_value(key)) {
        return Err(ApiError::invalid("key", "a token must have 8 to 4096 printable ASCII characters"));
    }
    Ok(())
}

/// List credentials
///
/// Newest first.
#[utoipa::path(get, path = "/credentials", tag = "credentials", operation_id = "listCredentials",
    params(PageQuery), responses((status = 200, body = Page<CredentialView>), Errors))]
pub(super) async fn list(
    caller: Caller<ReadCredentials>,
    Query(query): Query<PageQuery>,
) -> Result<Response> {
    let list = caller.list("credentials", &()).at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    let credentials = tx.credentials(list.below, list.limit()).await?;
    Ok(respond(&list.page(credentials, |credential| credential.id, view)))
}

/// Get a credential
///
/// The key is not returned.
#[utoipa::path(get, path = "/credentials/{credential_id}", tag = "credentials", operation_id = "getCredential",
    params(("credential_id" = CredentialId, Path)), responses((status = 200, body = CredentialView), Errors))]
pub(super) async fn get(
    caller: Caller<ReadCredentials>,
    Path(credential): Path<CredentialId>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(tx.credential(credential).await?)))
}

/// Rotate the key of a credential
///
/// Running sessions use the new key from their next model call.
#[utoipa::path(patch, path = "/credentials/{credential_id}", tag = "credentials", operation_id = "rotateCredential",
    params(("credential_id" = CredentialId, Path)), request_body = RotateCredential,
    responses((status = 200, body = CredentialView), Errors))]
pub(super) async fn rotate(
    caller: Caller<WriteCredentials>,
    Path(id): Path<CredentialId>,
    Body(wanted): Body<RotateCredential>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let known = tx.credential(id).await?;
    let headers = match wanted.headers {
        None => None,
        Some(headers) if known.provider == source::PROVIDER && !headers.is_empty() => {
            return Err(ApiError::invalid("headers", "a credential for repositories has no headers"));
        }
        Some(headers) => Some(headers_beside(headers, known.key_header.as_deref(), &known.provider)?),
    };
    let names = headers.as_ref().map(|headers| headers.keys().cloned().collect::<Vec<_>>());
    let secret = secret_of(wanted.key.as_deref(), wanted.oauth.as_ref())?;
    if known.provider == mcp::PROVIDER {
        check_server(&caller.app, known.base_url.as_deref(), wanted.key.as_deref())?;
    }
    if known.oauth.is_some() != wanted.oauth.is_some() {
        let (field, words) = match known.oauth {
            Some(_) => ("oauth", "this credential has an OAuth client; send `oauth`"),
            None => ("key", "this credential has a key; send `key`"),
        };
        return Err(ApiError::invalid(field, words));
    }
    check_oauth(&caller.app, &known.provider, wanted.oauth.as_ref())?;
    let key = wanted.key.as_deref().unwrap_or_default();
    let sealed = seal(&caller.app, &mut tx, id, key, &headers.unwrap_or_default()).await?;
    tx.rotate_credential(id, &key::hint(secret), &sealed, names.as_deref()).await?;
    if let Some(oauth) = wanted.oauth {
        set_oauth(&caller.app, &mut tx, id, oauth).await?;
    }
    let credential = tx.credential(id).await?;
    let details = json!({ "last4": credential.last4, "headers": credential.header_names });
    caller.record_audit(&mut tx, "credential.rotated", id, details).await?;
    tx.commit().await?;
    Ok(respond(&view(credential)))
}

/// Delete a credential
///
/// Sessions that pinned it can no longer call their model.
#[utoipa::path(delete, path = "/credentials/{credential_id}", tag = "credentials", operation_id = "deleteCredential",
    params(("credential_id" = CredentialId, Path)), responses((status = 204), Errors))]
pub(super) async fn delete(
    caller: Caller<WriteCredentials>,
    Path(id): Path<CredentialId>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    tx.delete_credential(id).await?;
    caller.record_audit(&mut tx, "credential.deleted", id, json!({})).await?;
    tx.commit().await?;
    Ok(no_content())
}

/// Make a credential the default of its provider
#[utoipa::path(put, path = "/credentials/default", tag = "credentials", operation_id = "setDefaultCredential",
    request_body = DefaultCredential, responses((status = 200, body = CredentialView), Errors))]
pub(super) async fn set_default(
    caller: Caller<WriteCredentials>,
    Body(wanted): Body<DefaultCredential>,
) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let mut credential = tx.find_credential(&wanted.credential).await?;
    if wanted.provider.is_some_and(|provider| provider != credential.provider) {
        let message = format!("this credential is for `{}`", credential.provider);
        return Err(ApiError::invalid("provider", message));
    }
    tx.make_default(&credential).await?;
    let details = json!({ "provider": credential.provider });
    caller.record_audit(&mut tx, "credential.made_default", credential.id, details).await?;
    tx.commit().await?;
    credential.is_default = true;
    Ok(respond(&view(credential)))
}

/// Rejects `key` together with `credential`.
pub(super) fn check_choice(has_key: bool, has_credential: bool) -> Result<()> {
    if has_key && has_credential {
        return Err(ApiError::invalid("credential", "send `key` or `credential`, not both"));
    }
    Ok(())
}

/// Stores an agent's own key as a credential of its model's provider.
pub(super) async fn store_for_model(
    app: &App,
    unit: &mut Unit,
    model: &str,
    secret: &str,
) -> Result<Credential> {
    let name: ModelName = app.check_model(model)?;
    let credential = Credential {
        id: app.0.journal.origin().id(),
        provider: name.provider,
        name: None,
        last4: key::hint(secret),
        base_url: None,
        key_header: None,
        header_names: Vec::new(),
        oauth: None,
        is_default: false,
        created_at: app.0.journal.origin().now(),
    };
    store(app, unit.tx(), &credential, secret, &BTreeMap::new()).await?;
    Ok(credential)
}

/// Records a stored key in the audit log, without the key itself.
pub(super) async fn record_created<S: Scope>(
    caller: &Caller<S>,
    tx: &mut Tx,
    credential: &Credential,
) -> Result<()> {
    let Credential { id, provider, name, last4, header_names, .. } = credential;
    let details = json!({ "provider": provider, "name": name, "last4": last4, "headers": header_names });
    Ok(caller.record_audit(tx, "credential.created", id, details).await?)
}

/// Returns the credential named by the caller, if it exists in the organization.
pub(super) async fn existing(unit: &mut Unit, named: Option<&str>) -> Result<Option<CredentialId>> {
    let Some(named) = named else { return Ok(None) };
    match unit.tx().find_credential(named).await {
        Ok(credential) => Ok(Some(credential.id)),
        Err(crate::store::Error::NotFound) => Err(ApiError::invalid(
            "credential",
            "no credential has this id, or not exactly one has this name",
        )),
        Err(error) => Err(error.into()),
    }
}

/// Whether a repeated create sends the key that the agent already has.
pub(super) async fn is_same_key(
    app: &App,
    unit: &mut Unit,
    credential: Option<CredentialId>,
    secret: Option<&str>,
) -> Result<bool> {
    let (Some(secret), org) = (secret, unit.tx().org()) else { return Ok(true) };
    let Some(credential) = credential else { return Ok(false) };
    match app.0.store.open_credential(org, credential).await {
        Ok(open) => Ok(open.key.expose_secret() == secret),
        Err(crate::store::Error::NotFound) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn store(
    app: &App,
    tx: &mut Tx,
    credential: &Credential,
    secret: &str,
    headers: &BTreeMap<String, String>,
) -> Result<()> {
    let sealed = seal(app, tx, credential.id, secret, headers).await?;
    Ok(tx.insert_credential(credential, &sealed).await?)
}

async fn seal(
    app: &App,
    tx: &mut Tx,
    id: CredentialId,
    secret: &str,
    headers: &BTreeMap<String, String>,
) -> Result<SealedCredential> {
    let org: OrgId = tx.org();
    let data_key = tx.data_key(app.0.store.master()).await?;
    let seal = |plain: &[u8], context: &str| data_key.seal(plain, context, app.0.journal.origin());
    let plain = (!headers.is_empty()).then(|| json!(headers).to_string());
    Ok(SealedCredential {
        key: seal(secret.as_bytes(), &credential::key_context(org, id)),
        headers: plain.map(|plain| seal(plain.as_bytes(), &credential::headers_context(org, id))),
    })
}

fn view(credential: Credential) -> CredentialView {
    CredentialView {
        id: credential.id,
        provider: credential.provider,
        name: credential.name,
        last4: credential.last4,
        is_default: credential.is_default,
        base_url: credential.base_url,
        key_header: credential.key_header,
        headers: credential.header_names,
        oauth: credential.oauth.map(|OAuthState { client, expires_at, is_refused }| OAuthView {
            client,
            expires_at,
            needs_auth: is_refused,
        }),
        created_at: credential.created_at,
    }
}
