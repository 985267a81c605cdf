//! Idempotent writes: a repeated request has one effect and gets the same response.

use axum::{
    extract::{FromRequest, Request},
    http::{HeaderValue, StatusCode},
};

use super::{
    App,
    answer::Answer,
    body::{self, Nothing, OptionalBody},
    error::{ApiError, Result},
};
use crate::{
    base::{limit::IDEMPOTENCY_KEY_BYTES_MAX, seal::sha256, text::hex},
    domain::{KeyId, OrgId},
    journal::Unit,
    store::idempotency::{Slot, SlotState},
};

/// Sender of a request, to whom alone its stored response is given. The extractor of the caller adds it to the
/// extensions of the request.
#[derive(Clone)]
pub(super) enum Sender {
    /// An API key, and whether it has every scope.
    Key(KeyId, bool),
    /// A client token. Its keys are not those of its organization.
    Token([u8; 32]),
}

/// Begins keys that are no `Idempotency-Key` of an API key.
const SPACES: [&str; 4] = ["key/", "token/", "invoke/", "hook/"];

impl Sender {
    /// Returns the client token with this secret.
    pub(super) fn token(secret: &str) -> Self {
        Self::Token(sha256(secret.as_bytes()))
    }

    /// Returns an `Idempotency-Key` in the space of the sender.
    fn own(&self, key: String) -> String {
        match self {
            Self::Token(hash) => format!("token/{}/{key}", hex(&hash[..16])),
            Self::Key(..) if SPACES.iter().any(|space| key.starts_with(space)) => format!("key/{key}"),
            Self::Key(..) => key,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Token(hash) => hex(hash),
            Self::Key(id, _) => id.to_string(),
        }
    }
}

/// The `Idempotency-Key` of a request, its target and its body. As an extractor: of a request without fields.
pub(super) struct IdempotentRequest {
    /// Keys of the request, usually zero or one. A match of any of them identifies a repeated request.
    keys: Vec<String>,
    target: String,
    /// SHA-256 of the body.
    digest: [u8; 32],
    /// Absent for the operator, an invoke token and a trigger, which have spaces of their own.
    sender: Option<Sender>,
}

/// An idempotent request, and its body as the extractor `B` reads it.
pub(super) struct Idempotent<B>(pub IdempotentRequest, pub B);

impl<B: FromRequest<App, Rejection = ApiError>> FromRequest<App> for Idempotent<B> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let (parts, body) = request.into_parts();
        let sender = parts.extensions.get::<Sender>().cloned();
        let key = parts.headers.get("idempotency-key").map(key_of).transpose()?;
        let key = key.map(|key| sender.as_ref().map_or(key.clone(), |sender| sender.own(key)));
        let target = format!("{} {}", parts.method, parts.uri.path());
        // The extensions have the limit of the body.
        let bytes = body::bytes(Request::from_parts(parts.clone(), body), app).await?;
        let once =
            IdempotentRequest { sender, ..IdempotentRequest::of(key.into_iter().collect(), target, &bytes) };
        Ok(Self(once, B::from_request(Request::from_parts(parts, bytes.into()), app).await?))
    }
}

impl FromRequest<App> for IdempotentRequest {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let Idempotent(once, _) = Idempotent::<OptionalBody<Nothing>>::from_request(request, app).await?;
        Ok(once)
    }
}

impl IdempotentRequest {
    /// Creates a request identified by `keys`.
    pub(super) fn of(keys: Vec<String>, target: String, body: &[u8]) -> Self {
        Self { keys, target, digest: sha256(body), sender: None }
    }

    /// Returns the SHA-256 of the body.
    pub(super) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Separates the keys of this request from equal keys outside of `space`.
    pub(super) fn below(mut self, space: &str) -> Self {
        for key in &mut self.keys {
            *key = format!("{space}/{key}");
        }
        self
    }

    /// Adds what distinguishes the target beside its path.
    pub(super) fn for_target(mut self, more: &str) -> Self {
        self.target = format!("{} {more}", self.target);
        self
    }

    /// Returns the first key, if any.
    pub(super) fn key(&self) -> Option<&str> {
        self.keys.first().map(String::as_str)
    }

    /// Returns the slots that store the response.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        let of_request = [self.target.as_bytes(), b"\n", &self.digest].concat();
        let earlier = sha256(&of_request);
        let name = self.sender.as_ref().map(Sender::name);
        let fingerprint = name.map_or(earlier, |name| sha256(&[&of_request, name.as_bytes()].concat()));
        // Responses of earlier versions, for a day: they do not say whose they are, so only a key with every scope
        // gets them.
        let earlier = matches!(self.sender, Some(Sender::Key(_, true))).then_some(earlier);
        let slot =
            move |key: &String| Slot { scope: "header".to_owned(), key: key.clone(), fingerprint, earlier };
        self.keys.iter().map(slot)
    }

    /// Runs `work` in one unit of work, at most once per `Idempotency-Key`.
    ///
    /// # Errors
    /// 422 if the key was used for another request, 409 while an identical request runs.
    pub(super) async fn run(
        &self,
        app: &App,
        org: OrgId,
        work: impl AsyncFnOnce(&mut Unit) -> Result<Answer>,
    ) -> Result<Answer> {
        let mut unit = app.0.journal.begin(org).await?;
        if let Some(answer) = self.claim(&mut unit).await? {
            return Ok(answer);
        }
        let answer = work(&mut unit).await?;
        unit.keep(|| answer.stored()).await?;
        unit.commit().await?;
        Ok(answer)
    }

    /// Returns the response of an equal request that was answered before, so that nothing has to be stored for this one.
    ///
    /// # Errors
    /// As [`IdempotentRequest::run`].
    pub(super) async fn replay(&self, app: &App, org: OrgId) -> Result<Option<Answer>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        // Without a commit, nothing is claimed.
        self.claim(&mut app.0.journal.begin(org).await?).await
    }

    /// Claims the slots of the keys, or returns the stored response.
    async fn claim(&self, unit: &mut Unit) -> Result<Option<Answer>> {
        for slot in self.slots() {
            match unit.claim_slot(slot).await? {
                None => {}
                Some(SlotState::Replay { status, body }) => {
                    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
                    // 201 means that this request created the resource.
                    let is_created = status == StatusCode::CREATED;
                    return Ok(Some(Answer {
                        status: if is_created { StatusCode::OK } else { status },
                        body: serde_json::from_slice(&body).unwrap_or_default(),
                        shown_once: None,
                        replayed: true,
                    }));
                }
                Some(SlotState::Mismatch | SlotState::Fresh(_)) => return Err(mismatch()),
            }
        }
        Ok(None)
    }

    /// Deletes the stored response, because the request was rejected after all.
    pub(super) async fn delete_stored(&self, app: &App, org: OrgId) -> Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let mut tx = app.0.store.begin(org).await?;
        for key in &self.keys {
            tx.delete_response("header", key).await?;
        }
        Ok(tx.commit().await?)
    }
}

fn mismatch() -> ApiError {
    ApiError {
        param: Some("Idempotency-Key".to_owned()),
        ..ApiError::unprocessable(
            "idempotency_mismatch",
            "this Idempotency-Key was used for another request, or by another caller; use a new one",
        )
    }
}

/// Parses an `Idempotency-Key` header.
pub(super) fn key_of(value: &HeaderValue) -> Result<String> {
    let text = value.to_str().ok().filter(|text| (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&text.len()));
    text.map(str::to_owned).ok_or_else(|| {
        let message =
            format!("`Idempotency-Key` must be 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters");
        ApiError::invalid("Idempotency-Key", message)
    })
}
