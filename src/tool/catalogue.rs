//! Which tools there are, and which of them a call reaches.
//!
//! Called by the harness: `plan` before anything is attached, `run` once the call
//! is in the log, `recover` after a takeover, `cancel` when the turn ends. Calls
//! the tools. The order of the specs is fixed: it is part of the cached prefix.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Done, Hands, Plan, Recovered, Stop, ToolFault, ask, bash, edit, exec, glob, grep, read, schema::Schema,
    write,
};
use crate::{
    base::{limit, text},
    domain::tool::{Replay, ToolCall, ToolSpec},
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
    Ask,
}

impl Catalogue {
    /// Every tool that is built in.
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
            entry(Tool::Ask, ask::spec()),
        ];
        Self(entries.into())
    }

    /// Those that an agent may use, in the order of the catalogue; `None` for all.
    pub fn only(&self, names: Option<&[String]>) -> Self {
        let Some(names) = names else { return self.clone() };
        Self(self.0.iter().filter(|entry| names.contains(&entry.spec.name)).cloned().collect())
    }

    /// The tools as the model sees them, in a fixed order.
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.0.iter().map(|entry| ToolSpec::clone(&entry.spec)).collect()
    }

    /// Every tool's name, in the same order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|entry| entry.spec.name.as_str())
    }

    /// What a crash in the middle of a call would mean; a name that is unknown
    /// runs nothing.
    pub fn replay(&self, tool: &str) -> Replay {
        self.entry(tool).map_or(Replay::ReadOnly, |entry| entry.spec.replay)
    }

    /// What is to be done with a call. Checks its arguments; needs no box.
    pub fn plan(&self, call: &ToolCall) -> Plan {
        match self.checked(call) {
            Ok((Tool::Ask, input, _)) => Plan::Ask(ask::question(parsed(input))),
            Ok((_, _, replay)) => Plan::Run(replay),
            Err(words) => Plan::TellModel(Done::error(words)),
        }
    }

    /// Runs a call to its end. Dropping the future leaves its command running.
    ///
    /// A second run of a call with the same id finds the command of the first.
    ///
    /// # Errors
    /// `Retry` may follow a command that was started: `recover` asks for it. After
    /// `SandboxGone` an unsafe call must not be run again.
    pub async fn run(&self, call: &ToolCall, hands: &Hands) -> Result<Done, ToolFault> {
        let (tool, input, _) = match self.checked(call) {
            Ok(checked) => checked,
            Err(words) => return Ok(Done::error(words)),
        };
        settle(match tool {
            Tool::Bash => bash::run(call, parsed(input), hands).await,
            Tool::Read => read::run(parsed(input), hands).await,
            Tool::Write => write::run(parsed(input), hands).await,
            Tool::Edit => edit::run(call, parsed(input), hands).await,
            Tool::Glob => glob::run(call, parsed(input), hands).await,
            Tool::Grep => grep::run(call, parsed(input), hands).await,
            Tool::Ask => Ok(ask::question(parsed(input)).result()),
        })
    }

    /// What became of a call whose worker died, asked of the box that outlived it.
    ///
    /// Calls that are safe to repeat are run again. Waits for a command that is
    /// still running.
    ///
    /// # Errors
    /// As for [`Catalogue::run`].
    pub async fn recover(&self, call: &ToolCall, hands: &Hands) -> Result<Recovered, ToolFault> {
        let (tool, input, _) = match self.checked(call) {
            Ok(checked) => checked,
            Err(words) => return Ok(Recovered::Done(Done::error(words))),
        };
        let recovered = match tool {
            Tool::Bash => bash::recover(call, parsed(input), hands).await,
            Tool::Edit => edit::recover(call, parsed(input), hands).await,
            Tool::Read | Tool::Write | Tool::Glob | Tool::Grep | Tool::Ask => {
                return self.run(call, hands).await.map(Recovered::Done);
            }
        };
        match recovered {
            Ok(recovered) => Ok(recovered),
            Err(Stop::TellModel(words)) => Ok(Recovered::Done(Done::error(words))),
            Err(Stop::Fault(fault)) => Err(fault),
        }
    }

    /// Ends the command of a call and all its descendants; nothing when there is none.
    pub async fn cancel(&self, call: &ToolCall, hands: &Hands) -> Result<(), ToolFault> {
        match self.entry(&call.tool).map(|entry| entry.tool) {
            Some(Tool::Bash | Tool::Glob | Tool::Grep) => {}
            Some(Tool::Read | Tool::Write | Tool::Edit | Tool::Ask) | None => return Ok(()),
        }
        match hands.sandbox.kill(hands.grip, &exec::id(call)).await {
            Ok(()) | Err(sandbox::Fault::Gone | sandbox::Fault::NotFound(_) | sandbox::Fault::Refused(_)) => {
                Ok(())
            }
            Err(sandbox::Fault::Stale) => Err(ToolFault::Stale),
            Err(sandbox::Fault::Unavailable(reason)) => Err(ToolFault::Retry(reason)),
        }
    }

    /// A call in one line, for a timeline: what it is about, not all of it.
    pub fn summary(&self, call: &ToolCall) -> String {
        const TELLING: [&str; 4] = ["command", "path", "pattern", "question"];
        let telling = TELLING.iter().find_map(|name| call.input.get(name).and_then(Value::as_str));
        let words = telling.map_or_else(|| call.input.to_string(), str::to_owned);
        let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
        text::truncate(&line, limit::TOOL_SUMMARY_BYTES_MAX).to_owned()
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.spec.name == name)
    }

    /// The tool and its valid arguments, or words for the model.
    fn checked(&self, call: &ToolCall) -> Result<(Tool, Value, Replay), String> {
        let Some(entry) = self.entry(&call.tool) else {
            let known = self.names().collect::<Vec<_>>().join(", ");
            return Err(format!("There is no tool `{}`. There are: {known}.", call.tool));
        };
        let input = entry.schema.check(&call.tool, &call.input)?;
        Ok((entry.tool, input, entry.spec.replay))
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
    serde_json::from_value(input).expect("the schema of each tool is that of its arguments")
}
