//! Writes that may be sent twice: one effect, one answer.

use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

use super::{App, error::ApiError};
use crate::{
    base::{limit::IDEMPOTENCY_KEY_BYTES_MAX, seal::sha256},
    domain::OrgId,
    journal::Unit,
    store::idempotency::{Begun, Slot},
};

/// The `Idempotency-Key` of a request and what it was sent to.
pub struct IdempotentRequest {
    /// Each alone tells that it was sent before; mostly there is one or none.
    keys: Vec<String>,
    target: String,
}

/// What to answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
    /// Fields that are shown once: merged into the answer, never stored.
    pub shown_once: Option<(&'static str, Value)>,
    /// Whether it was stored by an earlier request.
    pub replayed: bool,
}

impl Answer {
    /// An answer that may be stored.
    pub fn new(status: StatusCode, body: &impl Serialize) -> Self {
        let body = serde_json::to_value(body).expect("our own types serialise");
        Self { status, body, shown_once: None, replayed: false }
    }

    /// Has it written for the keys of its request, at the latest by the commit.
    pub fn keep(&self, unit: &mut Unit) {
        unit.keep(self.status.as_u16(), || serde_json::to_vec(&self.body).expect("JSON serialises"));
    }
}

impl IntoResponse for Answer {
    fn into_response(mut self) -> Response {
        if let (Some((name, value)), Value::Object(body)) = (self.shown_once, &mut self.body) {
            body.insert(name.to_owned(), value);
        }
        let mut response = (self.status, axum::Json(self.body)).into_response();
        if self.replayed {
            response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
        }
        response
    }
}

impl FromRequestParts<App> for IdempotentRequest {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let keys = parts.headers.get("idempotency-key").map(key_of).transpose()?.into_iter().collect();
        Ok(Self { keys, target: format!("{} {}", parts.method, parts.uri.path()) })
    }
}

impl IdempotentRequest {
    /// A request that was known by other names than an `Idempotency-Key`.
    pub fn of(keys: Vec<String>, target: String) -> Self {
        Self { keys, target }
    }

    /// The key that a caller named, if any.
    pub fn key(&self) -> Option<&str> {
        self.keys.first().map(String::as_str)
    }

    /// Where its answers are kept, for a body of this digest.
    pub fn slots(&self, digest: [u8; 32]) -> impl Iterator<Item = Slot> {
        let fingerprint = sha256(&[self.target.as_bytes(), b"\n", &digest].concat());
        let slot = move |key: &String| Slot { scope: "header".to_owned(), key: key.clone(), fingerprint };
        self.keys.iter().map(slot)
    }

    /// Does `work` in one unit of work, at most once for each `Idempotency-Key`.
    ///
    /// # Errors
    /// 422 when the key was used for another request, 409 while an equal one runs.
    pub async fn run(
        &self,
        app: &App,
        org: OrgId,
        digest: [u8; 32],
        work: impl AsyncFnOnce(&mut Unit) -> Result<Answer, ApiError>,
    ) -> Result<Answer, ApiError> {
        let mut unit = app.0.journal.begin(org).await?;
        for slot in self.slots(digest) {
            match unit.begin_once(slot).await? {
                None => {}
                Some(Begun::Replay { status, body }) => {
                    return Ok(Answer {
                        status: StatusCode::from_u16(status).unwrap_or(StatusCode::OK),
                        body: serde_json::from_slice(&body).unwrap_or_default(),
                        shown_once: None,
                        replayed: true,
                    });
                }
                Some(Begun::Mismatch | Begun::Fresh(_)) => return Err(mismatch()),
            }
        }
        let answer = work(&mut unit).await?;
        answer.keep(&mut unit);
        unit.commit().await?;
        Ok(answer)
    }
}

impl IdempotentRequest {
    /// Forgets what was answered, because in the end it was refused.
    pub async fn forget(&self, app: &App, org: OrgId) -> Result<(), ApiError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let mut tx = app.0.store.begin(org).await?;
        for key in &self.keys {
            tx.forget_answer("header", key).await?;
        }
        Ok(tx.commit().await?)
    }
}

fn mismatch() -> ApiError {
    ApiError {
        param: Some("Idempotency-Key".to_owned()),
        ..ApiError::unprocessable(
            "idempotency_mismatch",
            "this Idempotency-Key was used for another request; use a new one",
        )
    }
}

/// The text of an `Idempotency-Key`, if it can be one.
pub fn key_of(value: &HeaderValue) -> Result<String, ApiError> {
    let text = value.to_str().ok().filter(|text| (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&text.len()));
    text.map(str::to_owned).ok_or_else(|| {
        let message =
            format!("`Idempotency-Key` must be 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters");
        ApiError::invalid("Idempotency-Key", message)
    })
}

/// 204 with nothing in it.
pub fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// JSON that no cache may keep.
pub fn json(body: &impl Serialize) -> Response {
    let mut response = axum::Json(body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
