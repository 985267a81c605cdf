//! Catalog of tools, and dispatch of calls to them.
//!
//! Called by the worker for the harness: `refused` before a sandbox is attached, `run` once the
//! call is in the log, `recover` after a takeover, `cancel` when the turn ends. Calls the tools.
//! The order of the specs is fixed, because it is part of the cached prefix.

use std::{sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Done, ExecSummary, Recovered, SandboxHandle, Sessions, Stop, Timers, ToolFault, ask, bash, edit, exec,
    glob, grep, read, schedule_wake, schema::Schema, start_session, tell, web_fetch, write,
};
use crate::{
    domain::{
        scheduled_wake::SCHEDULED_WAKE,
        tool::{ASK, START_SESSION, ToolCall, ToolSpec},
    },
    sandbox,
};

/// The tools of an agent; cheap to clone.
#[derive(Clone, Debug)]
pub struct Catalogue(Arc<[Entry]>);

#[derive(Clone, Debug)]
struct Entry {
    tool: Tool,
    spec: Arc<ToolSpec>,
    schema: Arc<Schema>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Bash,
    Read,
    Write,
    Edit,
    Glob,
    Grep,
    WebFetch,
    Ask,
    ScheduledWake,
    StartSession,
}

/// Returns the names of all tools, in the order of the specs.
pub fn names() -> [&'static str; 10] {
    ["bash", "read", "write", "edit", "glob", "grep", "web_fetch", ASK, SCHEDULED_WAKE, START_SESSION]
}

impl Catalogue {
    /// Creates the catalog of all built-in tools.
    pub fn builtin() -> Self {
        let entry = |tool, spec: ToolSpec| {
            let schema = Arc::new(Schema::compile(&spec.input_schema));
            Entry { tool, spec: Arc::new(spec), schema }
        };
        let entries = [
            entry(Tool::Bash, bash::spec()),
            entry(Tool::Read, read::spec()),
            entry(Tool::Write, write::spec()),
            entry(Tool::Edit, edit::spec()),
            entry(Tool::Glob, glob::spec()),
            entry(Tool::Grep, grep::spec()),
            entry(Tool::WebFetch, web_fetch::spec()),
            entry(Tool::Ask, ask::spec()),
            entry(Tool::ScheduledWake, schedule_wake::spec()),
            entry(Tool::StartSession, start_session::spec()),
        ];
        Self(entries.into())
    }

    /// Returns the tools as the model sees them, in a fixed order.
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.0.iter().map(|entry| ToolSpec::clone(&entry.spec)).collect()
    }

    /// Returns the error result of an invalid call: an unknown tool, or arguments that do not match
    /// the schema. Needs no sandbox.
    pub fn refused(&self, call: &ToolCall) -> Option<Done> {
        self.checked(call).err().map(Done::error)
    }

    /// Runs a call to its end. Dropping the future leaves its command running.
    ///
    /// A second run of a call with the same id attaches to the command of the first.
    ///
    /// # Errors
    /// `Retry` may be returned after a command started; `recover` queries it. After `SandboxGone`, an
    /// unsafe call must not be run again.
    pub async fn run(&self, call: &ToolCall, handle: &SandboxHandle) -> Result<Done, ToolFault> {
        let (tool, input) = match self.checked(call) {
            Ok(checked) => checked,
            Err(words) => return Ok(Done::error(words)),
        };
        settle(match tool {
            Tool::Bash => bash::run(call, parsed(input), handle).await,
            Tool::Read => read::run(parsed(input), handle).await,
            Tool::Write => write::run(parsed(input), handle).await,
            Tool::Edit => edit::run(call, parsed(input), handle).await,
            Tool::Glob => glob::run(call, parsed(input), handle).await,
            Tool::Grep => grep::run(call, parsed(input), handle).await,
            Tool::WebFetch => web_fetch::run(parsed(input), handle).await,
            Tool::Ask => Ok(ask::put()),
            // The worker calls `set_timer` first if timers are available.
            Tool::ScheduledWake => tell("Scheduled wakes are not available; nothing was scheduled."),
            Tool::StartSession => tell("Starting sessions is not available; no session was started."),
        })
    }

    /// Returns the max run time of a call's command; `None` if it runs none.
    pub fn longest(&self, call: &ToolCall) -> Option<Duration> {
        match self.checked(call) {
            Ok((Tool::Bash, input)) => Some(bash::longest(&parsed(input))),
            Ok(_) | Err(_) => None,
        }
    }

    /// Schedules the wake that a call requests; `None` if it is another tool. Needs no sandbox and
    /// is safe to repeat.
    pub async fn set_timer(&self, call: &ToolCall, timers: &dyn Timers) -> Option<Result<Done, ToolFault>> {
        if call.tool != SCHEDULED_WAKE {
            return None;
        }
        Some(match self.checked(call) {
            Ok((_, input)) => settle(schedule_wake::run(&call.call_id, parsed(input), timers).await),
            Err(words) => Ok(Done::error(words)),
        })
    }

    /// Starts the session that a call requests; `None` if it is another tool. Needs no sandbox and
    /// is safe to repeat.
    pub async fn start_session(
        &self,
        call: &ToolCall,
        sessions: &dyn Sessions,
    ) -> Option<Result<Done, ToolFault>> {
        if call.tool != START_SESSION {
            return None;
        }
        Some(match self.checked(call) {
            Ok((_, input)) => settle(start_session::run(&call.call_id, parsed(input), sessions).await),
            Err(words) => Ok(Done::error(words)),
        })
    }

    /// Returns the outcome of a crashed worker's call, queried from the sandbox that survived it.
    ///
    /// Calls that are safe to repeat are run again. Waits for a command that is still running.
    ///
    /// # Errors
    /// As for [`Catalogue::run`].
    pub async fn recover(&self, call: &ToolCall, handle: &SandboxHandle) -> Result<Recovered, ToolFault> {
        let (tool, input) = match self.checked(call) {
            Ok(checked) => checked,
            Err(words) => return Ok(Recovered::Done(Done::error(words))),
        };
        let recovered = match tool {
            Tool::Bash => bash::recover(call, parsed(input), handle).await,
            Tool::Edit => edit::recover(call, parsed(input), handle).await,
            Tool::Read
            | Tool::Write
            | Tool::Glob
            | Tool::Grep
            | Tool::WebFetch
            | Tool::Ask
            | Tool::ScheduledWake
            | Tool::StartSession => {
                return self.run(call, handle).await.map(Recovered::Done);
            }
        };
        match recovered {
            Ok(recovered) => Ok(recovered),
            Err(Stop::TellModel(words)) => Ok(Recovered::Done(Done::error(words))),
            Err(Stop::Fault(fault)) => Err(fault),
        }
    }

    /// Kills the command of a call and all its descendants, if there is one.
    ///
    /// Returns once none is left, with how the agent's own command ended. If the sandbox cannot be
    /// reached, returns as well; then the command's timeout or the end of the sandbox ends it.
    pub async fn cancel(&self, call: &ToolCall, handle: &SandboxHandle) -> Option<ExecSummary> {
        let is_own = match self.entry(&call.tool).map(|entry| entry.tool) {
            Some(Tool::Bash) => true,
            Some(Tool::Glob | Tool::Grep) => false,
            Some(
                Tool::Read
                | Tool::Write
                | Tool::Edit
                | Tool::WebFetch
                | Tool::Ask
                | Tool::ScheduledWake
                | Tool::StartSession,
            )
            | None => return None,
        };
        match handle.sandbox.kill(handle.fence, &exec::id(call)).await {
            Ok(()) if is_own => bash::stopped(call, handle).await,
            Err(fault @ (sandbox::Fault::Unavailable(_) | sandbox::Fault::Stale)) => {
                tracing::warn!(call.id = call.call_id, error = %fault, "could not kill a canceled command");
                None
            }
            Ok(()) | Err(_) => None,
        }
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.spec.name == name)
    }

    /// Returns the tool and its validated arguments, or an error for the model.
    fn checked(&self, call: &ToolCall) -> Result<(Tool, Value), String> {
        let Some(entry) = self.entry(&call.tool) else {
            return Err(format!(
                "There is no tool `{}`. Available tools: {}.",
                call.tool,
                names().join(", ")
            ));
        };
        let input = entry.schema.check(&call.tool, &call.input)?;
        Ok((entry.tool, input))
    }
}

fn settle(outcome: Result<Done, Stop>) -> Result<Done, ToolFault> {
    match outcome {
        Ok(done) => Ok(done),
        Err(Stop::TellModel(words)) => Ok(Done::error(words)),
        Err(Stop::Fault(fault)) => Err(fault),
    }
}

fn parsed<T: DeserializeOwned>(input: Value) -> T {
    serde_json::from_value(input).expect("each tool's schema matches its arguments")
}
