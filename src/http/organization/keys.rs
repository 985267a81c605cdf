//! API keys: create with scopes and an expiration, rotate with an overlap, revoke.
//!
//! A key is shown once. It can grant only scopes that it has: a read-only key cannot create a key that
//! writes.

use serde_json::json;

use crate::{
    base::{Id, Timestamp, key, limit::KEY_OVERLAP_SECONDS},
    domain::{KeyId, session::Source},
    http::{
        prelude::*,
        scope::{ReadKeys, WriteKeys, grants, scopes},
    },
    store::key::{Key, NewKey},
    wire::{
        ErrorType,
        key::{CreateKey, KeyView, RotateKey},
    },
};

/// Create an API key
///
/// Its scopes must be a subset of the caller's own scopes.
#[utoipa::path(post, path = "/keys", tag = "keys", operation_id = "createKey",
    request_body = CreateKey, responses((status = 201, body = KeyView), Errors))]
pub(super) async fn create(
    caller: Caller<WriteKeys>,
    Idempotent(once, Body(wanted)): Idempotent<Body<CreateKey>>,
) -> Result<Answer> {
    check_scopes(&caller, &wanted.scopes)?;
    let now = caller.origin().now();
    if wanted.expires_at.is_some_and(|at| at <= now) {
        return Err(ApiError::invalid("expires_at", "`expires_at` must be in the future"));
    }
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let made = KeySpec {
            name: &wanted.name,
            scopes: &wanted.scopes,
            source: wanted.source.into(),
            expires_at: wanted.expires_at,
        };
        let view = create_key(&caller.app, unit, made).await?;
        let details = json!({ "name": view.name, "scopes": view.scopes });
        caller.record_audit(unit.tx(), "key.created", view.id, details).await?;
        Ok(Answer::new(StatusCode::CREATED, &view))
    })
    .await
}

/// List API keys
///
/// Newest first, without their secrets.
#[utoipa::path(get, path = "/keys", tag = "keys", operation_id = "listKeys", params(PageQuery),
    responses((status = 200, body = Page<KeyView>), Errors))]
pub(super) async fn list(caller: Caller<ReadKeys>, Query(query): Query<PageQuery>) -> Result<Response> {
    let list = caller.list("keys", &()).at(query.limit, query.cursor.as_deref())?;
    let mut tx = caller.begin().await?;
    let keys = tx.keys(list.below, list.limit()).await?;
    Ok(respond(&list.page(keys, |key| key.id, view)))
}

/// Get an API key
///
/// The secret is not returned.
#[utoipa::path(get, path = "/keys/{key_id}", tag = "keys", operation_id = "getKey",
    params(("key_id" = KeyId, Path)), responses((status = 200, body = KeyView), Errors))]
pub(super) async fn get(caller: Caller<ReadKeys>, Path(key): Path<KeyId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    Ok(respond(&view(tx.key(key).await?)))
}

/// Rotate an API key
///
/// Creates a key with the same name, scopes and expiration. The old key stays valid during the overlap.
#[utoipa::path(post, path = "/keys/{key_id}/rotate", tag = "keys", operation_id = "rotateKey",
    params(("key_id" = KeyId, Path)), request_body = RotateKey,
    responses((status = 201, body = KeyView), Errors))]
pub(super) async fn rotate(
    caller: Caller<WriteKeys>,
    Path(id): Path<KeyId>,
    Idempotent(once, OptionalBody(wanted)): Idempotent<OptionalBody<RotateKey>>,
) -> Result<Answer> {
    let overlap = wanted.overlap_seconds.unwrap_or(KEY_OVERLAP_SECONDS.0);
    once.run(&caller.app, caller.org, async |unit: &mut Unit| {
        let old = unit.tx().lock_key(id).await?;
        if !old.is_live {
            return Err(ApiError::conflict(
                "key_ended",
                "the key has expired or was revoked; create a new one",
            ));
        }
        check_scopes(&caller, &old.scopes)?;
        let made =
            KeySpec { name: &old.name, scopes: &old.scopes, source: old.source, expires_at: old.expires_at };
        let view = create_key(&caller.app, unit, made).await?;
        unit.tx().expire_key(id, overlap).await?;
        let details = json!({ "replaced_by": view.id, "overlap_seconds": overlap });
        caller.record_audit(unit.tx(), "key.rotated", id, details).await?;
        Ok(Answer::new(StatusCode::CREATED, &view))
    })
    .await
}

/// Revoke an API key
///
/// Takes effect within five seconds.
#[utoipa::path(delete, path = "/keys/{key_id}", tag = "keys", operation_id = "revokeKey",
    params(("key_id" = KeyId, Path)), responses((status = 204), Errors))]
pub(super) async fn revoke(caller: Caller<WriteKeys>, Path(id): Path<KeyId>) -> Result<Response> {
    let mut tx = caller.begin().await?;
    let key = tx.lock_key(id).await?;
    if key.revoked_at.is_none() {
        tx.revoke_key(id).await?;
        caller.record_audit(&mut tx, "key.revoked", id, json!({ "name": key.name })).await?;
    }
    tx.commit().await?;
    caller.app.0.keys.invalidate(id);
    Ok(no_content())
}

/// Properties of a new key.
struct KeySpec<'a> {
    name: &'a str,
    scopes: &'a [String],
    source: Source,
    expires_at: Option<Timestamp>,
}

async fn create_key(app: &App, unit: &mut Unit, made: KeySpec<'_>) -> Result<KeyView> {
    let KeySpec { name, scopes, source, expires_at } = made;
    let origin = app.0.journal.origin();
    let (id, secret, org): (KeyId, _, _) = (origin.id(), key::generate(origin), unit.tx().org());
    let new = NewKey { org, key: id, secret: &secret, name, scopes, source, expires_at };
    unit.tx().insert_key(app.0.store.master(), &new).await?;
    let view = view(unit.tx().key(id).await?);
    Ok(KeyView { key: Some(secret), ..view })
}

/// Rejects unknown scopes, and scopes that the caller's key lacks.
fn check_scopes(caller: &Caller<WriteKeys>, wanted: &[String]) -> Result<()> {
    let known = scopes();
    for scope in wanted {
        let is_known = scope == "*"
            || known.contains(scope.as_str())
            || scope.strip_suffix('*').is_some_and(|group| {
                group.ends_with(':') && known.iter().any(|known| known.starts_with(group))
            });
        if !is_known {
            let message = format!(
                "unknown scope `{scope}`; valid scopes are *, {} and groups like sessions:*",
                known.into_iter().collect::<Vec<_>>().join(", ")
            );
            return Err(ApiError::invalid("scopes", message));
        }
        if !grants(&caller.scopes, scope) {
            let message = format!("this key lacks the scope `{scope}`, so it cannot grant it");
            return Err(ApiError::new(ErrorType::Forbidden, message));
        }
    }
    Ok(())
}

fn view(key: Key) -> KeyView {
    KeyView {
        id: Id::from_uuid(key.id.uuid()),
        name: key.name,
        hint: key.hint,
        scopes: key.scopes,
        source: key.source.into(),
        key: None,
        expires_at: key.expires_at,
        revoked_at: key.revoked_at,
        last_used_at: key.last_used_at,
        created_at: key.created_at,
    }
}
