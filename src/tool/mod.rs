//! Tools of an agent: schemas, replay classes, dispatch into the sandbox.
//!
//! Called by the worker with the calls that a model requested; calls the port `Sandbox`, and runs
//! nothing on the node itself. Errors that the model can fix are returned to the model; all others
//! are a [`ToolFault`]. No call of an unsafe tool runs twice.

mod ask;
mod bash;
mod catalogue;
mod edit;
mod exec;
mod glob;
mod grep;
mod output;
mod read;
mod schedule_wake;
mod schema;
mod start_session;
mod web_fetch;
mod write;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    base::Timestamp,
    domain::{SessionId, scheduled_wake::When},
    sandbox::{self, Sandbox, SandboxFence},
};

pub use catalogue::{Catalogue, names};
pub use schedule_wake::shown;
pub use start_session::Child;

/// Base directory of relative paths.
pub const WORKSPACE: &str = "/workspace";

/// The environment of a tool: the session's sandbox, fenced by a lease.
#[derive(Clone)]
pub struct SandboxHandle {
    pub sandbox: Arc<dyn Sandbox>,
    pub fence: SandboxFence,
    /// Environment variables in addition to those of the sandbox.
    pub env: Vec<(String, String)>,
    /// Absolute path; working directory of commands. `/workspace` when empty.
    pub cwd: String,
    /// Web access, as far as the session's environment allows it.
    pub web: Arc<dyn Web>,
}

/// Port for web access under the sandbox's network policy.
#[async_trait]
pub trait Web: Send + Sync {
    /// Fetches a page, or returns an error message for the model.
    async fn fetch(&self, url: &str) -> Result<Page, String>;
}

/// Port for scheduled wakes of the session; needs no sandbox.
#[async_trait]
pub trait Timers: Send + Sync {
    /// Schedules the wake of a call, exactly once per call id. Returns its time, or an error
    /// message for the model.
    async fn set(
        &self,
        call_id: &str,
        when: When,
        note: &str,
    ) -> Result<Result<Timestamp, String>, ToolFault>;
}

/// Port to start sessions of the organization.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Starts a child session, exactly once per call id. Returns its id, or an error message for
    /// the model.
    async fn start(&self, call_id: &str, child: Child<'_>) -> Result<Result<SessionId, String>, ToolFault>;
}

/// Response of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Final URL, after redirects.
    pub url: String,
    pub status: u16,
    pub content_type: String,
    pub content: Vec<u8>,
    /// Whether the response was longer than what was read.
    pub is_cut: bool,
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Text for the model; never empty, truncated with a notice.
    pub output: String,
    pub is_error: bool,
    /// The command that ran, if the tool runs one.
    pub exec: Option<ExecSummary>,
}

/// A command that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecSummary {
    pub command: String,
    pub exit_code: i32,
    /// The end of its output.
    pub summary: String,
    /// Total bytes of its output.
    pub bytes: u64,
    /// `exited`, `timeout`, `oom`, `disk_full` or `killed`.
    pub cause: &'static str,
    pub duration: Duration,
}

/// State of a crashed worker's call after a takeover.
#[derive(Clone, Debug, PartialEq)]
pub enum Recovered {
    /// It ran, or was safe to run again; this is its result.
    Done(Done),
    /// It never started and may be run now.
    NeverRan,
    /// Unknown whether it took effect.
    Unknown,
}

/// Reason why a call has no result yet, by the harness's reaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolFault {
    /// The sandbox is gone; an unsafe call in progress has an unknown outcome.
    #[error("the sandbox is gone")]
    SandboxGone,
    /// Another worker has the session's lease: stop.
    #[error("another worker holds the lease of this sandbox")]
    Stale,
    /// The sandbox did not respond: retry with `recover`, with a bound.
    #[error("the sandbox did not respond: {0}")]
    Retry(String),
    /// The database is unavailable: repeat the call later.
    #[error("the database is unavailable: {0}")]
    Away(String),
}

impl SandboxHandle {
    /// Resolves a path in the sandbox: absolute, or relative to `cwd`.
    fn path(&self, path: &str) -> String {
        let path = path.strip_prefix("./").unwrap_or(path);
        if path.starts_with('/') {
            return path.to_owned();
        }
        let cwd = self.cwd().trim_end_matches('/');
        if path.is_empty() || path == "." { cwd.to_owned() } else { format!("{cwd}/{path}") }
    }

    fn cwd(&self) -> &str {
        if self.cwd.is_empty() { WORKSPACE } else { &self.cwd }
    }
}

impl Done {
    fn ok(output: impl Into<String>) -> Self {
        Self { output: output.into(), is_error: false, exec: None }
    }

    fn error(output: impl Into<String>) -> Self {
        Self { output: output.into(), is_error: true, exec: None }
    }
}

/// Reason why a tool stopped early; `?` passes it to the dispatcher.
#[derive(Debug)]
enum Stop {
    TellModel(String),
    Fault(ToolFault),
}

impl From<sandbox::Fault> for Stop {
    fn from(fault: sandbox::Fault) -> Self {
        match fault {
            sandbox::Fault::Gone => Self::Fault(ToolFault::SandboxGone),
            sandbox::Fault::Stale => Self::Fault(ToolFault::Stale),
            sandbox::Fault::Unavailable(reason) => Self::Fault(ToolFault::Retry(reason)),
            sandbox::Fault::NotFound(words) | sandbox::Fault::Refused(words) => Self::TellModel(words),
        }
    }
}

/// Prefixes a message about a file with its path, which the sandbox's message lacks.
fn at(path: &str) -> impl FnOnce(sandbox::Fault) -> Stop {
    move |fault| match Stop::from(fault) {
        Stop::TellModel(words) => Stop::TellModel(format!("{path}: {words}")),
        Stop::Fault(fault) => Stop::Fault(fault),
    }
}

/// Ends the tool with an error message for the model.
fn tell<T>(words: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::TellModel(words.into()))
}
