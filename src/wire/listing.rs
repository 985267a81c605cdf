//! Frames of the live session list.

use serde::Serialize;
use utoipa::ToSchema;

use super::session::SessionView;
use crate::domain::SessionId;

/// One frame of the live session list. Each frame is self-contained: a reader replaces its copy of the
/// session.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum ListedFrame {
    /// The session is in the list; contains its current state.
    #[serde(rename = "session.listed")]
    Listed { session: Box<SessionView> },
    /// The session is not in the list: it no longer matches, or never matched, the filter.
    #[serde(rename = "session.unlisted")]
    Unlisted { id: SessionId, reason: Unlisted },
    /// The snapshot, or the changes missed before a resume, are complete; the frames that follow are new changes.
    #[serde(rename = "list.current")]
    Current,
}

/// Reason why a session is not in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unlisted {
    /// The session was deleted.
    Deleted,
    /// The session does not match the list's filters.
    Filtered,
}

impl ListedFrame {
    /// Serializes the frame as one line of JSON.
    pub(crate) fn line(&self) -> String {
        serde_json::to_string(self).expect("frame types serialize to JSON")
    }
}
