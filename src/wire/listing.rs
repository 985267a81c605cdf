//! Frames of the live session list.

use serde::Serialize;
use utoipa::ToSchema;

use super::session::SessionView;
use crate::domain::SessionId;

/// One frame of the live session list. Each frame is self-contained: a reader replaces its copy of the
/// session.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub enum ListedFrame {
    /// The session is in the list; contains its current state.
    #[serde(rename = "session.listed")]
    Listed { session: Box<SessionView> },
    /// The session is not in the list: it no longer matches, or never matched, the filter.
    #[serde(rename = "session.unlisted")]
    Unlisted { id: SessionId, reason: Unlisted },
    /// The initial snapshot is complete; the frames that follow are changes.
    #[serde(rename = "list.current")]
    Current,
}

/// Reason why a session is not in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unlisted {
    /// The session was deleted.
    Deleted,
    /// The session does not match the list's filters.
    Filtered,
}

impl ListedFrame {
    /// Serializes the frame as one line of JSON.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("frame types serialize to JSON")
    }
}
