//! The harness's ports, joined to the rooms behind them.

use std::sync::Arc;

use async_trait::async_trait;

use super::hands::Hands;
use crate::{
    domain::{
        Event, Session,
        event::{Draft, Outcome},
        tool::{Replay, ToolCall, ToolSpec},
    },
    harness::{self, Done, Executed, Halt, ToolFault},
    journal::{Halted, TurnWriter},
    tool::{self, Catalogue},
};

/// The log, under a lease.
pub(super) struct LeasedJournal(pub TurnWriter);

#[async_trait]
impl harness::Journal for LeasedJournal {
    async fn record(&self, drafts: Vec<Draft>) -> Result<Vec<Event>, Halt> {
        self.0.record(drafts).await.map_err(|halted| match halted {
            Halted::Stale => Halt::Stale,
            Halted::Moved => Halt::Moved,
            Halted::Failed(error) => Halt::Unavailable(error.to_string()),
        })
    }

    async fn log(&self) -> Result<Vec<Event>, Halt> {
        self.0.log().await.map_err(|error| Halt::Unavailable(error.to_string()))
    }

    async fn session(&self) -> Result<Session, Halt> {
        self.0.session().await.map_err(|error| Halt::Unavailable(error.to_string()))
    }
}

/// The tools that the agent may use, with the session's box behind them.
pub(super) struct LeasedTools {
    catalogue: Arc<Catalogue>,
    hands: Hands,
    specs: Vec<ToolSpec>,
}

impl LeasedTools {
    /// `allowed` names the agent's tools; `None` is all of them.
    pub(super) fn new(catalogue: Arc<Catalogue>, hands: Hands, allowed: Option<Vec<String>>) -> Self {
        let is_allowed = |spec: &&ToolSpec| allowed.as_ref().is_none_or(|names| names.contains(&spec.name));
        let specs = catalogue.specs().iter().filter(is_allowed).cloned().collect();
        Self { catalogue, hands, specs }
    }
}

#[async_trait]
impl harness::Tools for LeasedTools {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    fn replay(&self, tool: &str) -> Option<Replay> {
        self.specs.iter().find(|spec| spec.name == tool).map(|spec| spec.replay)
    }

    async fn run(&self, call: &ToolCall) -> Result<Done, ToolFault> {
        let mut lost = false;
        loop {
            let started = std::time::Instant::now();
            let hands = self.hands.attached().await?;
            let ran = if lost {
                // The box that ran it is gone: only what repeats safely runs again.
                self.catalogue.recover(call, &hands).await
            } else {
                self.catalogue.run(call, &hands).await
            };
            match self.settled(call, ran, started).await? {
                Some(done) => return Ok(done),
                None if self.replay(&call.tool) == Some(Replay::Unsafe) => return Ok(unknown()),
                None => lost = true,
            }
        }
    }

    async fn recover(&self, call: &ToolCall) -> Result<Done, ToolFault> {
        let started = std::time::Instant::now();
        let is_unsafe = self.replay(&call.tool) == Some(Replay::Unsafe);
        if is_unsafe && !self.hands.survived().await? {
            return Ok(unknown());
        }
        let hands = self.hands.attached().await?;
        let recovered = self.catalogue.recover(call, &hands).await;
        match self.settled(call, recovered, started).await? {
            Some(done) => Ok(done),
            None if is_unsafe => Ok(unknown()),
            None => self.run(call).await,
        }
    }

    async fn cancel(&self, call: &ToolCall) {
        if let Some(hands) = self.hands.if_attached().await {
            self.catalogue.cancel(call, &hands).await;
        }
    }
}

impl LeasedTools {
    /// The tool's word in the harness's terms; `None` when the box is gone.
    async fn settled(
        &self,
        call: &ToolCall,
        ran: Result<tool::Done, tool::ToolFault>,
        started: std::time::Instant,
    ) -> Result<Option<Done>, ToolFault> {
        match ran {
            Ok(done) => Ok(Some(Done {
                output: done.output,
                is_error: done.is_error,
                outcome: Outcome::Ran,
                duration: started.elapsed(),
                exec: done.exec.map(|exec| Executed {
                    command: exec.command,
                    exit_code: exec.exit_code,
                    summary: exec.summary,
                    bytes: exec.bytes,
                    cause: exec.cause.to_string(),
                }),
            })),
            Err(tool::ToolFault::Stale) => Err(ToolFault::Stale),
            Err(tool::ToolFault::SandboxGone) => {
                self.hands.lost("it was gone when a tool wanted it").await?;
                Ok(None)
            }
            Err(tool::ToolFault::Retry(reason)) => {
                tracing::warn!(call.id = call.call_id, reason, "a sandbox did not answer; it is replaced");
                self.hands.lost(&reason).await?;
                Ok(None)
            }
        }
    }
}

fn unknown() -> Done {
    Done {
        output: "The sandbox was lost while this tool ran. Its outcome is unknown: look at what it left before \
                 you run it again."
            .to_owned(),
        is_error: true,
        outcome: Outcome::Unknown,
        duration: std::time::Duration::ZERO,
        exec: None,
    }
}
