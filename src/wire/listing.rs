//! Frames of the live list of sessions.

use serde::Serialize;

use super::session::SessionView;
use crate::domain::SessionId;

/// One thing that a reader of the list is told. Each holds whatever was said before: a
/// reader replaces what it has of the session.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub enum ListedFrame {
    /// A session is in the list, as it is now.
    #[serde(rename = "session.listed")]
    Listed { session: Box<SessionView> },
    /// A session is not in the list: any more, or at all.
    #[serde(rename = "session.unlisted")]
    Unlisted { id: SessionId, reason: Unlisted },
    /// All that was there when the stream began has been said; what follows is new.
    #[serde(rename = "list.current")]
    Current,
}

/// Why a session is not in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlisted {
    /// It was deleted.
    Deleted,
    /// The list's filters do not let it through.
    Filtered,
}

impl ListedFrame {
    /// The frame as one line of JSON.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("our own types serialise")
    }
}
