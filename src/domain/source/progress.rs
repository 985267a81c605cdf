//! Clone progress of a session's sources, computed from its log alone.
//!
//! Called by the worker, which clones missing sources, and by the API. Files in the sandbox may
//! have been changed there; the log is authoritative.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::PinnedSource;
use crate::{
    base::Timestamp,
    domain::{Event, SandboxId, event::Body},
};

/// Clone status of a session's sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// In the order of the session's sources.
    pub sources: Vec<SourceStatus>,
    /// Time at which the environment's `post_clone` ran after all sources were cloned.
    pub prepared_at: Option<Timestamp>,
}

/// Clone status of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    pub state: State,
    /// The commit that was checked out; `None` for a repository without commits.
    pub sha: Option<String>,
    /// The sandbox and the id of the running clone.
    pub clone: Option<(SandboxId, String)>,
    /// Reason of the failure: a stable code, a message, and whether it is retried.
    pub failure: Option<(String, String, bool)>,
    cloned_at: Option<Timestamp>,
}

/// State of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SourceState)]
pub enum State {
    /// No sandbox needed it yet, or its files were lost with a sandbox.
    #[default]
    Pending,
    /// It is being cloned.
    Materializing,
    /// Its files are in the workspace.
    Resolved,
    /// It cannot be cloned as configured.
    Failed,
    /// The clone failed temporarily; the next use retries.
    Unavailable,
    /// The host requires another credential, or has no such repository.
    AuthRequired,
}

/// Types of the events that [`SourceLog`] reads.
pub(crate) const PROGRESS: [&str; 5] =
    ["source.cloning", "source.cloned", "source.failed", "source.prepared", "sandbox.files_lost"];

/// Clones of sources in a log, by the names of the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceLog {
    statuses: BTreeMap<String, SourceStatus>,
    prepared_at: Option<Timestamp>,
}

impl SourceLog {
    /// Returns the progress of the sources of a session.
    pub(crate) fn progress(&self, sources: &[PinnedSource]) -> Progress {
        let status = |source: &PinnedSource| self.statuses.get(&source.name).cloned().unwrap_or_default();
        Progress { sources: sources.iter().map(status).collect(), prepared_at: self.prepared_at }
    }

    /// Processes the next event; one that is not about sources or lost files changes nothing.
    pub(crate) fn take(&mut self, event: &Event) {
        let (name, status) = match &event.draft.body {
            Body::SandboxFilesLost { since, .. } => {
                // The checkpoint contains everything that was cloned before `since`.
                let is_kept = |at: Timestamp| since.is_some_and(|since| at <= since);
                self.prepared_at = self.prepared_at.filter(|at| is_kept(*at));
                self.statuses.retain(|_, status| status.cloned_at.is_none_or(is_kept));
                return;
            }
            Body::SourcePrepared { .. } => {
                self.prepared_at = Some(event.ts);
                return;
            }
            Body::SourceCloning { name, sandbox_id, clone_id } => {
                let clone = Some((*sandbox_id, clone_id.clone()));
                (name, SourceStatus { state: State::Materializing, clone, ..SourceStatus::default() })
            }
            Body::SourceCloned { name, sha, .. } => {
                let (state, cloned_at) = (State::Resolved, Some(event.ts));
                (name, SourceStatus { state, sha: sha.clone(), cloned_at, ..SourceStatus::default() })
            }
            Body::SourceFailed { name, code, message, retryable, .. } => {
                let state = match code.as_str() {
                    "source.auth_required" => State::AuthRequired,
                    _ if *retryable => State::Unavailable,
                    _ => State::Failed,
                };
                let failure = Some((code.clone(), message.clone(), *retryable));
                (name, SourceStatus { state, failure, ..SourceStatus::default() })
            }
            _ => return,
        };
        self.statuses.insert(name.clone(), status);
    }
}
