//! Request and response bodies of stopping, canceling, archiving and compacting a session, and reattaching to one.

use garde::Validate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::session::SessionView;
use crate::base::limit::{COMPACTION_INSTRUCTIONS_BYTES_MAX, NAME_BYTES_MAX};

/// Reason for stopping a session.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StopSession {
    /// Recorded in the log and in the session's `stopped` field.
    #[garde(inner(length(bytes, max = NAME_BYTES_MAX)), inner(custom(storable)))]
    pub reason: Option<String>,
    /// Whether all sessions below are stopped too.
    #[garde(skip)]
    pub children: bool,
}

/// Sessions to cancel or archive beside the one of the request.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WithChildren {
    /// Whether all sessions below are canceled or archived too.
    #[garde(skip)]
    pub children: bool,
}

/// Summary to make of a session's history.
#[derive(Debug, Default, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CompactSession {
    /// Content that the summary has to have; replaces the instructions of `compaction`.
    #[garde(inner(length(bytes, max = COMPACTION_INSTRUCTIONS_BYTES_MAX)), inner(custom(storable)))]
    pub instructions: Option<String>,
}

/// Client whose session to find.
#[derive(Debug, Deserialize, Validate, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reattach {
    /// The `client_id` that the session was created with.
    #[garde(length(bytes, min = 1, max = NAME_BYTES_MAX), custom(storable))]
    pub client_id: String,
}

/// The client's session, or null if there is none.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Reattached {
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
