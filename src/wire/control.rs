//! A caller's hand on a session, on the wire.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::session::SessionView;
use crate::base::limit::NAME_BYTES_MAX;

/// Why a session is stopped.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StopSession {
    /// For the log and for `stopped`.
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)), inner(custom(storable)))]
    pub reason: Option<String>,
}

/// Whose session is looked for.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reattach {
    /// As the session was created with it.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX), custom(storable))]
    pub client_id: String,
}

/// The session of a client, if there is one.
#[derive(Debug, Serialize, ToSchema)]
pub struct Reattached {
    #[schema(required)]
    pub session: Option<SessionView>,
    pub reattached: bool,
}

fn storable(text: &str, _context: &()) -> garde::Result {
    match text.contains('\0') {
        true => Err(garde::Error::new("contains U+0000")),
        false => Ok(()),
    }
}
