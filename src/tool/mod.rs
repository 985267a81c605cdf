//! The tools of agents: schemas, replay classes, and how a call runs in the sandbox.
//!
//! Called by `turn` with the calls that a model made; calls the port `Sandbox`, and nothing on the
//! host. A call is checked once, into a [`Call`]; what the model can fix is a result, what it cannot
//! is a [`Fault`]. A call of an unsafe tool never runs twice. A tool is one file with a `TOOL`, which
//! [`catalogue`] lists.

mod ask;
mod bash;
mod catalogue;
mod child_session;
mod custom;
mod custom_schema;
mod edit;
mod exec;
mod glob;
mod grep;
mod output;
mod read;
mod schedule_wake;
mod schema;
mod submit_output;
mod web_fetch;
mod write;

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    base::Timestamp,
    domain::{
        SessionId,
        content::{Content, FileRef},
        elicitation::{Elicitation, Elicited},
        event::{Body, Outcome},
        scheduled_wake::When,
        tool::{Replay, ToolCall, ToolSpec},
    },
    sandbox::{self, Sandbox, SandboxFence},
};

pub use ask::{WaitingAsk, waiting_spec};
pub use catalogue::{Catalog, names, specs};
pub use child_session::{Child, SessionEvent, SessionEvents, SessionMessage, SessionReport, SessionWait};
pub use custom::{ToolProblem, TurnTool, check_schemas, check_tools, custom_spec};
pub use output::cap as shortened;
pub use schedule_wake::shown;
pub use schema::LazySchema;
pub use submit_output::{OutputTool, check_output_schema};

/// Base of relative paths, unless the session's context names another directory.
pub const WORKSPACE: &str = "/workspace";

/// The session's sandbox as a tool uses it, under a lease.
#[derive(Clone)]
pub struct SandboxHandle {
    pub sandbox: Arc<dyn Sandbox>,
    pub fence: SandboxFence,
    /// Environment variables in addition to those of the sandbox.
    pub env: Vec<(String, String)>,
    /// Absolute path; working directory of commands. `/workspace` when empty.
    pub cwd: String,
    pub services: Arc<dyn Services>,
}

/// Services for tools outside of the sandbox.
#[async_trait]
pub trait Services: Send + Sync {
    /// Fetches a page under the rules of the session's environment; or why not, in words for the model.
    async fn fetch(&self, url: &str) -> Result<Page, String>;

    /// Stores an image of the sandbox for the model.
    ///
    /// # Errors
    /// `TellModel` when it is no image that a model can get.
    async fn store_image(&self, path: &str, content: Bytes) -> Result<FileRef, Fault>;

    /// Schedules a wake of the session, once per call; returns its time.
    ///
    /// # Errors
    /// `TellModel` when the wake cannot be scheduled.
    async fn schedule_wake(&self, call_id: &str, when: When, note: &str) -> Result<Timestamp, Fault>;

    /// Starts a child session, once per call; returns its id.
    ///
    /// # Errors
    /// `TellModel` when the session cannot be started.
    async fn start_session(&self, call_id: &str, child: Child<'_>) -> Result<SessionId, Fault>;

    /// Returns the states of sessions below this one once they have nothing to do, one asks a question, or the time is
    /// over; whether it is.
    ///
    /// # Errors
    /// `Waits` before that, `TellModel` when one of them is not below this session.
    async fn wait_for_sessions(
        &self,
        call_id: &str,
        wait: SessionWait<'_>,
    ) -> Result<(Vec<SessionReport>, bool), Fault>;

    /// Reads the messages of a session below this one after the `seq` of `after`.
    ///
    /// # Errors
    /// `TellModel` when it is not below this session.
    async fn read_session(&self, id: &str, after: i64) -> Result<SessionEvents, Fault>;

    /// Sends a message to a session below this one, once per call; returns what became of it, for the model.
    ///
    /// # Errors
    /// `TellModel` when it is not below this session, or takes no message.
    async fn message_session(&self, call_id: &str, message: SessionMessage<'_>) -> Result<String, Fault>;

    /// Cancels the turns of a session below this one and of those below it, once per call; returns words for the model.
    ///
    /// # Errors
    /// `TellModel` when it is not below this session.
    async fn cancel_session(&self, call_id: &str, id: &str) -> Result<String, Fault>;
}

/// A fetched page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Address after redirects.
    pub url: String,
    pub status: u16,
    pub content_type: String,
    pub content: Vec<u8>,
    /// The page is longer than what was read.
    pub is_cut: bool,
}

/// A tool: what the model sees of it, and how the arguments of a call are parsed.
struct Tool {
    spec: fn() -> ToolSpec,
    /// Parses arguments that the schema of the spec accepted.
    parse: fn(Value) -> Arc<dyn Invocation>,
}

/// The parsed arguments of a call, which run it.
#[async_trait]
trait Invocation: Debug + Send + Sync {
    /// Longest time that the command of the call may run, if it is billed; `None` for a call without a command,
    /// and for a search, which is free.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Runs a call that needs no sandbox; `None` for one that does. Safe to repeat.
    async fn run_outside(
        &self,
        _call_id: &str,
        _services: &dyn Services,
    ) -> Option<Result<CallResult, Fault>> {
        None
    }

    /// Runs the call to its end. Dropping the future leaves its command running. A second run with
    /// the same id finds the command of the first.
    async fn run(&self, _call_id: &str, _handle: &SandboxHandle) -> Result<CallResult, Fault> {
        tell("This tool does not run in the sandbox.")
    }

    /// Finds out what became of a call whose worker died. Calls that are safe to repeat run again.
    async fn recover(&self, call_id: &str, handle: &SandboxHandle) -> Result<Recovered, Fault> {
        self.run(call_id, handle).await.map(Recovered::Done)
    }

    /// Ends what the call started; returns the command that it was, where there is one.
    async fn cancel(&self, _call_id: &str, _handle: &SandboxHandle) -> Option<ExecSummary> {
        None
    }
}

fn parse<A: DeserializeOwned + Invocation + 'static>(arguments: Value) -> Arc<dyn Invocation> {
    let parsed: A =
        serde_json::from_value(arguments).expect("the schema of each tool is that of its arguments");
    Arc::new(parsed)
}

/// A call whose tool exists and whose arguments are valid.
#[derive(Clone, Debug)]
pub struct Call {
    /// The call as the model made it.
    pub origin: ToolCall,
    pub replay: Replay,
    /// Longest time that its command may run; `None` for a call without a command that is billed.
    pub timeout: Option<Duration>,
    /// Whether it runs at a server outside of the sandbox, of which the log alone says later whether it began.
    pub is_remote: bool,
    /// The response for its server, which has asked a person.
    pub elicited: Option<Elicited>,
    invocation: Arc<dyn Invocation>,
}

/// A call that something else than the catalogue runs.
#[derive(Debug)]
struct External;

impl Invocation for External {}

impl Call {
    /// A checked call of a tool that the port runs itself, outside of the catalogue.
    pub fn external(origin: ToolCall, replay: Replay, timeout: Option<Duration>) -> Self {
        Self { origin, replay, timeout, is_remote: false, elicited: None, invocation: Arc::new(External) }
    }

    /// A checked call that runs at a server.
    pub fn remote(origin: ToolCall, replay: Replay) -> Self {
        Self { is_remote: true, ..Self::external(origin, replay, None) }
    }

    /// The provider's id of the call.
    pub fn id(&self) -> &str {
        &self.origin.call_id
    }

    /// Runs a call that needs no sandbox; `None` for one that does. Safe to repeat.
    pub async fn run_outside(&self, services: &dyn Services) -> Option<Result<CallResult, Fault>> {
        self.invocation.run_outside(self.id(), services).await.map(told)
    }

    /// Runs the call to its end. Dropping the future leaves its command running.
    ///
    /// A second run of a call with the same id finds the command of the first.
    ///
    /// # Errors
    /// `SandboxUnreachable` may follow a command that was started: [`Call::recover`] asks for it. After
    /// `SandboxGone` an unsafe call must not run again.
    pub async fn run(&self, handle: &SandboxHandle) -> Result<CallResult, Fault> {
        told(self.invocation.run(self.id(), handle).await)
    }

    /// Finds out what became of a call whose worker died, from the sandbox that outlived it. Waits for
    /// a command that is still running; a call that is safe to repeat runs again.
    ///
    /// # Errors
    /// As for [`Call::run`].
    pub async fn recover(&self, handle: &SandboxHandle) -> Result<Recovered, Fault> {
        match self.invocation.recover(self.id(), handle).await {
            Err(Fault::TellModel(words)) => Ok(Recovered::Done(CallResult::error(words))),
            recovered => recovered,
        }
    }

    /// Ends the command of the call and all its descendants; returns how the agent's own command
    /// ended. Where the sandbox does not answer, the command's time limit ends it.
    pub async fn cancel(&self, handle: &SandboxHandle) -> Option<ExecSummary> {
        self.invocation.cancel(self.id(), handle).await
    }
}

/// A fault that the model can fix, as a result for it.
fn told(outcome: Result<CallResult, Fault>) -> Result<CallResult, Fault> {
    match outcome {
        Err(Fault::TellModel(words)) => Ok(CallResult::error(words)),
        outcome => outcome,
    }
}

/// Result of a call, for the model and for the log.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// Text for the model; never empty, truncated with a notice.
    pub output: String,
    pub is_error: bool,
    /// Whether the call ran, as far as that is known.
    pub outcome: Outcome,
    /// Wall time of the call.
    pub duration: Duration,
    /// The command that ran, if the tool runs one.
    pub exec: Option<ExecSummary>,
    /// Files for the model.
    pub content: Vec<Content>,
}

impl CallResult {
    /// Result of a call that succeeded.
    pub fn ok(output: impl Into<String>) -> Self {
        Self {
            output: output.into(),
            is_error: false,
            outcome: Outcome::Ran,
            duration: Duration::ZERO,
            exec: None,
            content: Vec::new(),
        }
    }

    /// Result of a call that succeeded, which the model reads as JSON.
    fn json(value: &impl Serialize) -> Self {
        Self::ok(serde_json::to_string(value).expect("the values of tools have strings as keys"))
    }

    /// Result of a call that ran and failed.
    pub fn error(output: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::ok(output) }
    }

    /// Result of a call that did not run.
    pub fn not_run(output: impl Into<String>) -> Self {
        Self { outcome: Outcome::NotRun, ..Self::error(output) }
    }

    /// Returns the body of the event of this result of a call.
    pub fn body(self, call: &ToolCall) -> Body {
        Body::ToolResult {
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            output: self.output,
            is_error: self.is_error,
            outcome: self.outcome,
            duration_ms: u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            content: self.content,
        }
    }

    /// Result of a call of which nobody knows whether it took effect.
    pub fn unknown(output: impl Into<String>) -> Self {
        Self { outcome: Outcome::Unknown, ..Self::error(output) }
    }
}

/// A command that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecSummary {
    pub command: String,
    pub exit_code: i32,
    /// The end of its output.
    pub summary: String,
    /// Bytes of output in all.
    pub bytes: u64,
    /// `exited`, `timeout`, `oom`, `disk_full` or `killed`.
    pub cause: &'static str,
    pub duration: Duration,
}

/// State of a crashed worker's call after a takeover.
#[derive(Clone, Debug, PartialEq)]
pub enum Recovered {
    /// It ran, or was safe to run again; this is its result.
    Done(CallResult),
    /// It never began: it may run now.
    NeverRan,
    /// Nobody knows whether it took effect.
    Unknown,
}

/// Why a call has no result, by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The model can fix it: it becomes the result of the call.
    #[error("{0}")]
    TellModel(String),
    /// The sandbox is gone: an unsafe call that was running has an unknown outcome.
    #[error("the sandbox is gone")]
    SandboxGone,
    /// The sandbox did not answer: retry with [`Call::recover`], a bounded number of times.
    #[error("the sandbox did not answer: {0}")]
    SandboxUnreachable(String),
    /// The database or a blob is unreachable: make the call again later.
    #[error("the log is unreachable: {0}")]
    LogUnavailable(String),
    /// The node of the sandbox does not answer now, or there is no capacity for one: release the job, and make the call
    /// again after this time.
    #[error("the sandbox is not available yet")]
    NotYet(Duration),
    /// The call waits for other sessions: the turn waits without a worker, and makes the call again when one of them
    /// has changed, or at `until`.
    #[error("the sessions still work")]
    Waits { sessions: Vec<SessionId>, until: Timestamp },
    /// The server asks a person: the call waits for the response, and then goes on.
    #[error("the server asks a person")]
    Asks(Box<Elicitation>),
    /// No sandbox is available after bounded retries, or it cannot be prepared: the turn ends with
    /// this error code. `is_final`: another try of the call does not help.
    #[error("{reason}")]
    EndTurn { code: &'static str, reason: String, is_final: bool },
    /// Another worker holds the session: stop.
    #[error("another worker holds this session")]
    Stale,
}

impl From<sandbox::Fault> for Fault {
    fn from(fault: sandbox::Fault) -> Self {
        match fault {
            sandbox::Fault::Gone => Self::SandboxGone,
            sandbox::Fault::Stale => Self::Stale,
            sandbox::Fault::Unavailable(reason) => Self::SandboxUnreachable(reason),
            sandbox::Fault::NotFound(words) | sandbox::Fault::Refused(words) => Self::TellModel(words),
        }
    }
}

impl SandboxHandle {
    /// A path in the sandbox: absolute ones as they are, others below `cwd`.
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

/// Adds the path to a fault of the sandbox that does not name it.
fn at(path: &str) -> impl FnOnce(sandbox::Fault) -> Fault {
    move |fault| match Fault::from(fault) {
        Fault::TellModel(words) => Fault::TellModel(format!("{path}: {words}")),
        fault => fault,
    }
}

/// Ends the tool with words for the model.
fn tell<T>(words: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::TellModel(words.into()))
}
