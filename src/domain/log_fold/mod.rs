//! Fold of a log for its turns: the conversation of the model and the state of unfinished turns.
//!
//! A pure function of the events that [`is_folded`] names, in order; the others change nothing. So a fold of the
//! first events and the events after it give the same as the whole log. The log is the truth: a fold only saves
//! reading it.

mod conversation;
mod last_step;
mod mcp;
mod sandbox_trace;
mod shorten;
mod sizes;
mod turn_actions;
mod turn_fold;
mod waiting_input;

use serde::{Deserialize, Serialize};

use super::{
    action::ToolAnswer,
    compaction::CompactionRequest,
    content::{Content, FileRef, SANDBOX_FILES, files_of},
    custom_tool::CustomTool,
    event::{Body, Draft, Event, Level, TurnCompleted},
    ids::*,
    permission::Grant,
    source::SourceLog,
    tool::ToolCall,
};
use crate::base::limit::{SESSION_FILES_MAX, WARNINGS_FOLDED_MAX};

pub use conversation::{Conversation, build};
pub use last_step::{LastStep, StepCall};
pub use mcp::McpLists;
pub use sandbox_trace::{SANDBOX_TRACE, SandboxTrace, may_have_run};
pub use shorten::HistoryCut;
pub use turn_actions::ActionEnd;
use turn_fold::is_of_turn;
pub use turn_fold::{CONTEXT_TOO_LONG, FILES_REFUSED, TurnFold};

/// Types of the events that a fold reads, of `agent.message` only those of level `user`.
pub const FOLDED: [&str; 38] = [
    "user.message",
    "turn.started",
    "turn.completed",
    "step.completed",
    "agent.message",
    "output.rejected",
    "history.compaction_requested",
    "history.compacted",
    "history.compaction_failed",
    "history.pruned",
    "tool.call",
    "tool.result",
    "action.required",
    "action.closed",
    "user.custom_tool_result",
    "user.tool_confirmation",
    "user.answer",
    "permission.granted",
    "permission.revoked",
    "tool.started",
    "turn.waiting",
    "turn.resumed",
    "turn.steered",
    "turn.retried",
    "error.model",
    "error.runtime",
    "limit.warning",
    "tool.registered",
    "mcp.listed",
    "mcp.failed",
    "sandbox.created",
    "sandbox.lost",
    "sandbox.terminated",
    "source.cloning",
    "source.cloned",
    "source.failed",
    "source.prepared",
    "sandbox.files_lost",
];

/// Fold of the first events of a log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogFold {
    /// Whether the model reads input objects as JSON; otherwise it gets their text.
    objects: bool,
    /// `seq` and id of the last event in the fold.
    last: Option<(i64, EventId)>,
    conversation: Conversation,
    /// Queued and running turns.
    turns: Vec<(TurnId, TurnFold)>,
    /// The last turn that ended, if it failed.
    failed: Option<FailedTurn>,
    /// The newest warnings of limits of the session: the limit and its value.
    warned: Vec<(String, u64)>,
    /// Whether the newest sandbox of the session may exist.
    has_sandbox: bool,
    read_to: ReadTo,
    /// Registered tools that the agent gets, in the order of their registration.
    tools: Vec<CustomTool>,
    /// Tools of its MCP servers.
    mcp: McpLists,
    /// Rules that were granted, each with the id of its event.
    grants: Vec<(EventId, Grant)>,
    /// A caller's request for a summary that has not been met.
    compaction_request: Option<CompactionRequest>,
    /// Files that callers sent, for the sandbox.
    files: Vec<FileRef>,
    /// Clones of the session's sources.
    sources: SourceLog,
}

/// A turn that ended with an error, for a retry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct FailedTurn {
    id: TurnId,
    turn: TurnFold,
    /// The request for a summary, if it had nothing else to do.
    compaction_request: Option<CompactionRequest>,
}

/// Newest events that callers sent the running turn, as far as a fold has them; 0 without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadTo {
    /// `seq` of the newest event with which a caller, or an expiry, ended an action.
    pub actions: i64,
    /// `seq` of the newest message that steers the turn.
    pub steers: i64,
}

/// Returns whether a fold reads an event.
pub fn is_folded(draft: &Draft) -> bool {
    let is_narration = matches!(draft.body, Body::AgentMessage { .. }) && draft.level != Level::User;
    FOLDED.contains(&draft.body.type_name()) && !is_narration
}

impl LogFold {
    /// Creates the fold of an empty log. `objects` passes input objects to the model as JSON.
    pub fn new(objects: bool) -> Self {
        Self {
            objects,
            last: None,
            conversation: Conversation::new(objects),
            turns: Vec::new(),
            failed: None,
            warned: Vec::new(),
            has_sandbox: false,
            read_to: ReadTo::default(),
            tools: Vec::new(),
            mcp: McpLists::default(),
            grants: Vec::new(),
            compaction_request: None,
            files: Vec::new(),
            sources: SourceLog::default(),
        }
    }

    /// Computes the fold of `log`.
    pub fn of(log: &[Event], objects: bool) -> Self {
        let mut fold = Self::new(objects);
        log.iter().for_each(|event| fold.take(event));
        fold
    }

    /// Processes the next event of the log.
    pub fn take(&mut self, event: &Event) {
        let draft = &event.draft;
        if !is_folded(draft) {
            return;
        }
        self.last = Some((event.seq, draft.id));
        self.conversation.take(event);
        self.sources.take(event);
        if draft.body.ends_action() {
            self.read_to.actions = event.seq;
        }
        if matches!(draft.body, Body::UserMessage { steers: true, .. }) {
            self.read_to.steers = event.seq;
        }
        match &draft.body {
            Body::SandboxCreated { .. } | Body::SandboxLost { .. } => {
                self.has_sandbox = matches!(draft.body, Body::SandboxCreated { .. });
                self.turns.iter_mut().for_each(|(_, turn)| turn.note_sandbox());
            }
            Body::SandboxTerminated { .. } => self.has_sandbox = false,
            Body::LimitWarning { limit, allowed, session_id: None, .. } if !is_of_turn(limit) => {
                self.warned.push((limit.clone(), *allowed));
                let surplus = self.warned.len().saturating_sub(WARNINGS_FOLDED_MAX);
                self.warned.drain(..surplus);
            }
            Body::PermissionGranted(grant) => self.grants.push((draft.id, (**grant).clone())),
            Body::PermissionRevoked { grant_event_id } => self.grants.retain(|(id, _)| id != grant_event_id),
            Body::ToolRegistered(tool) => {
                self.tools.retain(|known| known.name != tool.name);
                self.tools.extend(tool.custom());
            }
            Body::UserMessage { content, .. } | Body::UserCustomToolResult(ToolAnswer { content, .. }) => {
                self.take_files(content);
            }
            Body::ToolResult { content, .. } => self.take_files(content),
            Body::McpListed(listed) => self.mcp.take_listed(listed, event.ts),
            Body::McpFailed(failed) => self.mcp.take_failed(failed, event.ts),
            Body::HistoryCompactionRequested(request) => self.compaction_request = Some(request.clone()),
            Body::HistoryCompacted(_) | Body::HistoryCompactionFailed(_) => self.compaction_request = None,
            Body::TurnCompleted(completed) => self.end_turn(completed),
            Body::TurnSteered { from_turn_id, from_is_empty: true, .. } => {
                self.turns.retain(|(id, _)| id != from_turn_id);
            }
            Body::TurnRetried { turn_id, .. } => self.retry_turn(*turn_id),
            _ => {}
        }
        self.take_of_turn(event);
    }

    fn end_turn(&mut self, completed: &TurnCompleted) {
        let Some(at) = self.turns.iter().position(|(id, _)| *id == completed.turn_id) else { return };
        let (id, turn) = self.turns.remove(at);
        // The request of a turn of its own ends with it.
        let compaction_request = if turn.has_input { None } else { self.compaction_request.take() };
        self.failed = completed.error.is_some().then(|| FailedTurn {
            id,
            turn: turn.before_retry(completed.active_seconds),
            compaction_request,
        });
    }

    fn retry_turn(&mut self, id: TurnId) {
        if let Some(failed) = self.failed.take_if(|failed| failed.id == id) {
            self.turns.push((id, failed.turn));
            self.compaction_request = failed.compaction_request.or(self.compaction_request.take());
        }
    }

    /// Notes the files of a message or a result: each path once, and the newest of too many.
    fn take_files(&mut self, content: &[Content]) {
        // Tools also show files that are in the sandbox already, elsewhere.
        for file in files_of(content).filter(|file| file.path.starts_with(SANDBOX_FILES)) {
            self.files.retain(|known| known.path != file.path);
            self.files.push(file.clone());
        }
        let surplus = self.files.len().saturating_sub(SESSION_FILES_MAX);
        self.files.drain(..surplus);
    }

    fn take_of_turn(&mut self, event: &Event) {
        let Some(id) = event.draft.turn_id else { return };
        // Only input and a start show that a turn is not over.
        let opens = matches!(
            event.draft.body,
            Body::UserMessage { .. } | Body::HistoryCompactionRequested(_) | Body::TurnStarted { .. }
        );
        if let Some((_, turn)) = self.turns.iter_mut().find(|(turn, _)| *turn == id)
            && matches!(event.draft.body, Body::TurnStarted { .. })
            && turn.started_at.is_none()
        {
            turn.tools.clone_from(&self.tools);
        }
        match self.turns.iter_mut().find(|(turn, _)| *turn == id) {
            Some((_, turn)) => turn.take(event),
            None if opens => {
                let mut turn = TurnFold::default();
                turn.take(event);
                self.turns.push((id, turn));
            }
            None => {}
        }
    }

    /// Returns `seq` and id of the last event in the fold.
    pub fn last(&self) -> Option<(i64, EventId)> {
        self.last
    }

    /// Returns how far the fold knows what callers have sent the running turn.
    pub fn read_to(&self) -> ReadTo {
        self.read_to
    }

    /// Returns whether a message waits for this turn, because it steers it.
    pub fn is_steered(&self, turn: TurnId) -> bool {
        self.conversation.steers(turn)
    }

    /// Returns the registered tools of a turn: those of its start, which stay the same while it runs.
    pub fn registered_tools(&self, turn: TurnId) -> &[CustomTool] {
        match self.turn(turn) {
            Some(turn) if turn.started_at.is_some() => &turn.tools,
            _ => &self.tools,
        }
    }

    /// Returns the tools of its MCP servers, as they were listed last.
    pub fn mcp(&self) -> &McpLists {
        &self.mcp
    }

    /// Returns a caller's request for a summary that has not been met.
    pub fn compaction_request(&self) -> Option<&CompactionRequest> {
        self.compaction_request.as_ref()
    }

    /// Returns the files that callers sent, each path once, the newest last.
    pub fn files(&self) -> &[FileRef] {
        &self.files
    }

    /// Returns the clones of the session's sources.
    pub(crate) fn sources(&self) -> &SourceLog {
        &self.sources
    }

    /// Returns the rules that were granted for the session.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter().map(|(_, grant)| grant)
    }

    /// Returns the `seq` of the last event in the fold; 0 without one.
    pub fn seq(&self) -> i64 {
        self.last.map_or(0, |(seq, _)| seq)
    }

    /// Returns whether input objects are passed to the model as JSON.
    pub fn objects(&self) -> bool {
        self.objects
    }

    /// Returns the conversation.
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// Returns the state of a turn that has not ended.
    pub fn turn(&self, id: TurnId) -> Option<&TurnFold> {
        self.turns.iter().find(|(turn, _)| *turn == id).map(|(_, turn)| turn)
    }

    /// Returns the calls of a turn that have no result in the log, in order.
    pub fn open_calls(&self, turn: TurnId) -> Vec<ToolCall> {
        self.turn(turn).map(|turn| turn.open_calls().cloned().collect()).unwrap_or_default()
    }

    /// Returns whether a command of an open call of this turn may have started, if no sandbox can be queried.
    pub fn may_have_run(&self, turn: TurnId, call_id: &str) -> bool {
        self.has_sandbox || self.turn(turn).is_some_and(|turn| turn.met_sandbox(call_id))
    }

    /// Returns the limits with a warning, each with its value: those of the session, and of this turn.
    pub fn warned(&self, turn: TurnId) -> impl Iterator<Item = &(String, u64)> {
        self.warned.iter().chain(self.turn(turn).into_iter().flat_map(|turn| &turn.warned))
    }

    /// Returns the approximate memory of the fold, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.conversation.bytes() + self.mcp.bytes()
    }
}

/// Returns the calls of a turn that have no result in the log, in order.
pub fn open_calls(log: &[Event], turn: TurnId) -> Vec<ToolCall> {
    LogFold::of(log, false).open_calls(turn)
}
