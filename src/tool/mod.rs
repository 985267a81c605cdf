//! The catalogue of tools: schemas, replay classes, dispatch into the sandbox.
//!
//! Called by the worker with the calls that a model asked for; calls the port
//! `Sandbox`, and nothing on the host. Whatever a model can fix is told to the
//! model; what it cannot is a [`ToolFault`]. No call of an unsafe tool runs twice.

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

/// Where all relative paths begin.
pub const WORKSPACE: &str = "/workspace";

/// What a tool works with: the session's sandbox, held by a lease.
#[derive(Clone)]
pub struct SandboxHandle {
    pub sandbox: Arc<dyn Sandbox>,
    pub fence: SandboxFence,
    /// Variables beyond the sandbox's own.
    pub env: Vec<(String, String)>,
    /// Absolute; where commands start. `/workspace` when empty.
    pub cwd: String,
    /// The world, as far as the session's environment allows it.
    pub web: Arc<dyn Web>,
}

/// The world beyond the sandbox, under the rules that hold for the sandbox.
#[async_trait]
pub trait Web: Send + Sync {
    /// A page, or why there is none, in words for the model.
    async fn fetch(&self, url: &str) -> Result<Page, String>;
}

/// The timers of the session, beyond any sandbox.
#[async_trait]
pub trait Timers: Send + Sync {
    /// Sets the timer of a call, once however often it is asked: when it goes off, or
    /// why there is none, in words for the model.
    async fn set(
        &self,
        call_id: &str,
        when: When,
        note: &str,
    ) -> Result<Result<Timestamp, String>, ToolFault>;
}

/// The sessions of the organization, as far as an agent starts them.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Starts a session under the one that asks, once for a call however often it is made:
    /// its id, or why there is none, in words for the model.
    async fn start(&self, call_id: &str, child: Child<'_>) -> Result<Result<SessionId, String>, ToolFault>;
}

/// What a host answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it came from after the redirects.
    pub url: String,
    pub status: u16,
    pub content_type: String,
    pub content: Vec<u8>,
    /// There was more than was read.
    pub is_cut: bool,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// For the model; never empty, capped, says what was cut.
    pub output: String,
    pub is_error: bool,
    /// The command that ran, where the tool is one.
    pub exec: Option<ExecSummary>,
}

/// A command that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecSummary {
    pub command: String,
    pub exit_code: i32,
    /// The end of its output.
    pub summary: String,
    /// Bytes that it wrote in all.
    pub bytes: u64,
    /// `exited`, `timeout`, `oom`, `disk_full` or `killed`.
    pub cause: &'static str,
    pub duration: Duration,
}

/// What a takeover finds of a call whose worker died.
#[derive(Clone, Debug, PartialEq)]
pub enum Recovered {
    /// It ran, or was safe to run again: this is its result.
    Done(Done),
    /// It never began: it may be run now.
    NeverRan,
    /// Whether it took effect cannot be told.
    Unknown,
}

/// Why a call has no result yet, by what the harness will do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolFault {
    /// The sandbox is gone: an unsafe call that was under way is `outcome unknown`.
    #[error("the sandbox is gone")]
    SandboxGone,
    /// Another worker holds the session: stop.
    #[error("another worker holds this sandbox")]
    Stale,
    /// The sandbox did not answer: ask again with `recover`, bounded.
    #[error("the sandbox did not answer: {0}")]
    Retry(String),
    /// The record is out of reach: make the call again later.
    #[error("the record is out of reach: {0}")]
    Away(String),
}

impl SandboxHandle {
    /// The path in the sandbox: absolute ones as they are, others below `cwd`.
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

/// Why a tool stopped before its end; `?` carries it to the dispatch.
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

/// Words about a file, which the sandbox's own do not name.
fn at(path: &str) -> impl FnOnce(sandbox::Fault) -> Stop {
    move |fault| match Stop::from(fault) {
        Stop::TellModel(words) => Stop::TellModel(format!("{path}: {words}")),
        Stop::Fault(fault) => Stop::Fault(fault),
    }
}

/// Words for the model that end the tool.
fn tell<T>(words: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::TellModel(words.into()))
}
