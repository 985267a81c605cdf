//! How far a session's sources are, read from its log alone.
//!
//! Called by the worker, which clones what is missing, and by the API. Whatever is in the
//! sandbox may have been changed there; what the log says was not.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::PinnedSource;
use crate::{
    base::Timestamp,
    domain::{Event, SandboxId, event::Body},
};

/// What became of the sources of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// In the order of the session's sources.
    pub sources: Vec<SourceStatus>,
    /// The environment's `post_clone` ran after all of them, at that time.
    pub prepared_at: Option<Timestamp>,
}

/// How far one source is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    pub state: State,
    /// The commit that was checked out; none in a repository without any.
    pub sha: Option<String>,
    /// The command that clones it, and its sandbox.
    pub clone: Option<(SandboxId, String)>,
    /// Why it failed: a stable word, words for people, and whether it is tried again.
    pub failure: Option<(String, String, bool)>,
    cloned_at: Option<Timestamp>,
}

/// Where a source is between its pin and its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SourceState)]
pub enum State {
    /// No sandbox needed it yet, or its files are gone with one.
    #[default]
    Pending,
    /// It is being cloned.
    Materializing,
    /// Its files are in the workspace.
    Resolved,
    /// It cannot be cloned as it is.
    Failed,
    /// It could not be cloned now; the next need tries again.
    Unavailable,
    /// The host wants another credential, or has no such repository.
    AuthRequired,
}

/// Reads the log as far as it tells of sources and of lost files.
pub fn source_progress<'a>(sources: &[PinnedSource], log: impl IntoIterator<Item = &'a Event>) -> Progress {
    let mut progress = Progress { sources: vec![SourceStatus::default(); sources.len()], prepared_at: None };
    for event in log {
        progress.take(sources, event);
    }
    progress
}

impl Progress {
    /// Whether everything is in its place.
    pub fn is_complete(&self) -> bool {
        self.sources.iter().all(|status| status.state == State::Resolved)
    }

    fn take(&mut self, sources: &[PinnedSource], event: &Event) {
        if let Body::SandboxFilesLost { since, .. } = &event.draft.body {
            // What the checkpoint was made after is in it.
            let is_kept = |at: Timestamp| since.is_some_and(|since| at <= since);
            self.prepared_at = self.prepared_at.filter(|at| is_kept(*at));
            for status in &mut self.sources {
                if status.cloned_at.is_some_and(|at| !is_kept(at)) {
                    *status = SourceStatus::default();
                }
            }
            return;
        }
        if let Body::SourcePrepared { .. } = &event.draft.body {
            self.prepared_at = Some(event.ts);
            return;
        }
        let named = |name: &String| sources.iter().position(|source| source.name == *name);
        match &event.draft.body {
            Body::SourceCloning { name, sandbox_id, clone_id } => {
                let Some(at) = named(name) else { return };
                let clone = Some((*sandbox_id, clone_id.clone()));
                self.sources[at] =
                    SourceStatus { state: State::Materializing, clone, ..SourceStatus::default() };
            }
            Body::SourceCloned { name, sha, .. } => {
                let Some(at) = named(name) else { return };
                let (state, cloned_at) = (State::Resolved, Some(event.ts));
                self.sources[at] =
                    SourceStatus { state, sha: sha.clone(), cloned_at, ..SourceStatus::default() };
            }
            Body::SourceFailed { name, code, message, retryable, .. } => {
                let Some(at) = named(name) else { return };
                let state = match code.as_str() {
                    "source.auth_required" => State::AuthRequired,
                    _ if *retryable => State::Unavailable,
                    _ => State::Failed,
                };
                let failure = Some((code.clone(), message.clone(), *retryable));
                self.sources[at] = SourceStatus { state, failure, ..SourceStatus::default() };
            }
            _ => {}
        }
    }
}
