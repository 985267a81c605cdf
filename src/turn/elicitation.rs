//! Elicitations of a session: the state of a server that asks a person is sealed for the log until the call goes on.

use base64::{Engine as _, prelude::BASE64_STANDARD};

use tokio::sync::OnceCell;

use crate::{
    base::{Origin, seal::DataKey},
    domain::{
        OrgId, SessionId,
        elicitation::{Elicitation, Response},
    },
    mcp::{Asked, Continuation},
    store::Store,
    tool::{Call, Fault},
};

/// Seals and opens the continuations of a session's calls.
pub(super) struct Elicitations {
    store: Store,
    origin: Origin,
    org: OrgId,
    session: SessionId,
    expires_seconds: u64,
    key: OnceCell<DataKey>,
}

impl Elicitations {
    /// `expires_seconds`: time in which a person must respond.
    pub(super) fn new(
        (store, origin): (&Store, &Origin),
        (org, session): (OrgId, SessionId),
        expires_seconds: u64,
    ) -> Self {
        let key = OnceCell::new();
        Self { store: store.clone(), origin: origin.clone(), org, session, expires_seconds, key }
    }

    /// The key of the organization, read once.
    ///
    /// # Errors
    /// `LogUnavailable`.
    pub(super) async fn key(&self) -> Result<&DataKey, Fault> {
        let key = self.key.get_or_try_init(|| self.store.data_key(self.org)).await;
        key.map_err(|error| Fault::LogUnavailable(error.to_string()))
    }

    /// Returns what the server of a call asks, for its action.
    ///
    /// # Errors
    /// `LogUnavailable`.
    pub(super) async fn seal(&self, call: &Call, server: &str, asked: Asked) -> Result<Elicitation, Fault> {
        let Asked { message, questions, continuation } = asked;
        let plain =
            serde_json::to_vec(&continuation).map_err(|error| Fault::LogUnavailable(error.to_string()))?;
        let sealed = self.key().await?.seal(&plain, &self.context(call.id()), &self.origin);
        let continuation = BASE64_STANDARD.encode(sealed);
        let (server, expires_seconds) = (server.to_owned(), self.expires_seconds);
        Ok(Elicitation { server, message, questions, continuation, expires_seconds })
    }

    /// Returns the state with which a call goes on, and the response of a person; `None` for the first request of a call. The
    /// inner `Err`: it cannot be read.
    ///
    /// # Errors
    /// `LogUnavailable`.
    pub(super) async fn open(
        &self,
        call: &Call,
    ) -> Result<Result<Option<(Continuation, Response)>, Unreadable>, Fault> {
        let Some(elicited) = &call.elicited else { return Ok(Ok(None)) };
        let key = self.key().await?;
        let read = || {
            let sealed = BASE64_STANDARD.decode(&elicited.continuation).ok()?;
            let plain = key.open(&sealed, &self.context(call.id())).ok()?;
            serde_json::from_slice(&plain).ok()
        };
        Ok(match read() {
            Some(continuation) => Ok(Some((continuation, elicited.response.clone()))),
            None => Err(Unreadable),
        })
    }

    fn context(&self, call_id: &str) -> String {
        format!("elicitation/{}/{}/{call_id}", self.org.uuid(), self.session.uuid())
    }
}

/// The sealed state cannot be opened with the key of the organization.
pub(super) struct Unreadable;
