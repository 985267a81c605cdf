//! The harness's port `Tools` over the session's sandbox.
//!
//! A call runs in the sandbox of the lease. When the sandbox does not answer, or is lost, the call is
//! settled by its replay class: an unsafe call that may have started never runs again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use async_trait::async_trait;

use super::{long_result::shortened, mcp::McpTools, pinned_tools::PinnedTools, services::SessionServices};
use crate::{
    base::{
        Timestamp,
        backoff::Backoff,
        limit::{ACTION_EXPIRES_SECONDS, AGENT_TOOLS_MAX, SANDBOX_BACKOFF, SANDBOX_CALL_ATTEMPTS_MAX},
    },
    domain::{
        TurnId,
        content::FileRef,
        custom_tool::{AgentTool, CustomTool},
        event::Body,
        log_fold::{LogFold, McpLists, SANDBOX_TRACE, SandboxTrace},
        permission::{Grant, Permissions, PolicyDecision},
        question::Question,
        tool::{ASK, CHILD_SESSION_TOOLS, Replay, SUBMIT_OUTPUT, ToolCall, ToolSpec},
        turn_settings::AskMode,
    },
    harness::{self, Halt},
    journal::Writer,
    lifecycle::{self, LeasedSandbox, Sandboxes},
    mcp,
    permission::{self, Evaluator, RuledTool},
    tool::{
        self, Call, CallResult, Catalog, ExecSummary, Fault, OutputTool, Recovered, SandboxHandle, TurnTool,
        WaitingAsk,
    },
};

const BACKOFF: Backoff = Backoff { first: SANDBOX_BACKOFF.0, longest: SANDBOX_BACKOFF.1 };

/// Error code of a turn whose tools have no available sandbox.
const SANDBOX_UNAVAILABLE: &str = "sandbox_unavailable";

/// The tools of an agent over the sandbox of its session.
pub(super) struct LeasedTools {
    catalogue: Catalog,
    /// All but those of MCP servers.
    own_specs: Vec<ToolSpec>,
    specs: RwLock<Arc<[ToolSpec]>>,
    /// Those of the tools that callers run.
    custom: Vec<TurnTool>,
    /// Those of MCP servers.
    mcp: McpTools,
    /// `ask`, if a turn waits for the answers.
    ask: Option<WaitingAsk>,
    /// `submit_output`, if the turn needs an output.
    output: Option<OutputTool>,
    permissions: Permissions,
    writer: Writer,
    sandbox: Arc<LeasedSandbox>,
    services: Arc<SessionServices>,
    /// Start of each call with a command whose end is not known yet.
    running: Mutex<HashMap<String, Instant>>,
}

/// Reason why a call has no result after the sandbox was queried.
enum Unsettled {
    /// The call did not start.
    NeverRan,
    /// Its sandbox is lost.
    Lost,
}

impl From<lifecycle::Error> for Fault {
    fn from(error: lifecycle::Error) -> Self {
        match error {
            lifecycle::Error::Stale => Self::Stale,
            lifecycle::Error::Unavailable(reason) => {
                Self::EndTurn { code: SANDBOX_UNAVAILABLE, reason, is_final: false }
            }
            lifecycle::Error::PreparationFailure(what, reason) => {
                Self::EndTurn { code: what.code(), reason, is_final: true }
            }
            lifecycle::Error::LogUnavailable(reason) => Self::LogUnavailable(reason),
            lifecycle::Error::NotYet(_, retry) => Self::NotYet(retry),
        }
    }
}

impl LeasedTools {
    /// An agent without a list has all tools of the catalogue but those for child sessions, which must be listed explicitly.
    /// Tools of callers follow those of the catalogue, in the order of the list, then the registered ones, then
    /// `submit_output`, then those of MCP servers.
    pub(super) fn new(
        (catalogue, clients): (Catalog, mcp::Clients),
        sandboxes: &Sandboxes,
        writer: &Writer,
        sandbox: Arc<LeasedSandbox>,
        agent: PinnedTools,
        (fold, turn): (&LogFold, TurnId),
    ) -> Self {
        let servers = agent.mcp_servers();
        let allowed = agent.tools.as_deref();
        let is_allowed = |spec: &ToolSpec| match allowed {
            Some(tools) => tools.iter().any(|tool| tool.name() == spec.name),
            None => !CHILD_SESSION_TOOLS.contains(&spec.name.as_str()),
        };
        let mut specs: Vec<_> = catalogue.specs().into_iter().filter(is_allowed).collect();
        let expires_seconds =
            agent.settings.ask.map_or(ACTION_EXPIRES_SECONDS.1, |ask| ask.expires_seconds());
        let ask = agent.settings.ask.filter(|ask| ask.mode == AskMode::Wait);
        let ask = ask.map(|ask| WaitingAsk::new(ask.expires_seconds()));
        if ask.is_some() {
            specs.iter_mut().filter(|spec| spec.name == ASK).for_each(|spec| *spec = tool::waiting_spec());
        }
        let listed = allowed.into_iter().flatten().filter_map(AgentTool::custom);
        let custom: Vec<_> = listed.chain(fold.registered_tools(turn)).cloned().collect();
        specs.extend(custom.iter().map(tool::custom_spec));
        let output = agent.settings.output_schema.map(OutputTool::new);
        specs.extend(output.as_ref().map(OutputTool::spec));
        let custom = custom.into_iter().map(TurnTool::new).collect();
        let services = Arc::new(SessionServices::new(sandboxes.clone(), writer, &sandbox));
        let mcp = McpTools::new(
            clients,
            (&sandboxes.store, &sandboxes.files, sandboxes.journal.origin()),
            &sandbox,
            (servers, AGENT_TOOLS_MAX.saturating_sub(specs.len()), expires_seconds),
            fold.mcp(),
        );
        let tools = Self {
            catalogue,
            own_specs: specs,
            specs: RwLock::new([].into()),
            custom,
            mcp,
            ask,
            output,
            permissions: agent.permissions,
            writer: writer.clone(),
            sandbox,
            services,
            running: Mutex::default(),
        };
        tools.update_specs();
        tools
    }

    /// Puts together what the model is offered.
    fn update_specs(&self) {
        let specs = self.own_specs.iter().cloned().chain(self.mcp.specs()).collect();
        *self.specs.write().unwrap_or_else(PoisonError::into_inner) = specs;
    }

    /// Ends the connections to servers.
    pub(super) async fn close(&self) {
        self.mcp.close().await;
    }

    /// Access to the sandbox for tools.
    fn handle(&self, handle: lifecycle::SandboxHandle) -> SandboxHandle {
        let context = self.sandbox.context();
        SandboxHandle {
            sandbox: handle.sandbox,
            fence: handle.fence,
            env: context.env_under(&[]),
            cwd: context.working_dir.clone().unwrap_or_default(),
            services: Arc::clone(&self.services) as _,
        }
    }

    /// Runs a call in the current sandbox; queries the call's state again if the sandbox does not answer.
    async fn run_in_sandbox(&self, call: &Call) -> Result<Result<CallResult, Unsettled>, Fault> {
        let handle = self.handle(self.sandbox.acquire().await?);
        match self.until_expiry(call, &handle, call.run(&handle)).await {
            Ok(result) => Ok(Ok(result)),
            Err(Fault::SandboxGone) => self.lost(call, &handle, "it was gone when a tool used it").await,
            Err(Fault::SandboxUnreachable(reason)) => self.ask_again(call, handle, reason).await,
            Err(fault) => Err(fault),
        }
    }

    /// Queries the state of a call a bounded number of times, then records the sandbox as lost.
    async fn ask_again(
        &self,
        call: &Call,
        mut handle: SandboxHandle,
        mut reason: String,
    ) -> Result<Result<CallResult, Unsettled>, Fault> {
        for attempt in 1..=SANDBOX_CALL_ATTEMPTS_MAX {
            tokio::time::sleep(self.sandbox.delay(&BACKOFF, attempt)).await;
            handle = self.handle(self.sandbox.reacquire().await?);
            match self.until_expiry(call, &handle, call.recover(&handle)).await {
                Ok(recovered) => return Ok(settled(recovered)),
                Err(Fault::SandboxGone) => {
                    return self.lost(call, &handle, "it was gone when a tool used it").await;
                }
                Err(Fault::SandboxUnreachable(again)) => reason = again,
                Err(fault) => return Err(fault),
            }
        }
        self.lost(call, &handle, &reason).await
    }

    /// Ends the command of a call when its sandbox expires.
    async fn until_expiry<T>(
        &self,
        call: &Call,
        handle: &SandboxHandle,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::pin!(work);
        if call.timeout.is_some() {
            self.running().entry(call.id().to_owned()).or_insert_with(Instant::now);
        }
        let done = tokio::select! {
            done = &mut work => done,
            () = self.sandbox.end_of_life() => {
                call.cancel(handle).await;
                work.await
            }
        };
        if done.is_ok() {
            self.running().remove(call.id());
        }
        done
    }

    /// Records that the sandbox of a call is gone. Until that is in the log the call counts as
    /// running: its session may have been closed, and the sandbox removed with it.
    async fn lost(
        &self,
        call: &Call,
        handle: &SandboxHandle,
        reason: &str,
    ) -> Result<Result<CallResult, Unsettled>, Fault> {
        self.sandbox.record_loss(handle.fence.sandbox, reason).await?;
        self.running().remove(call.id());
        Ok(Err(Unsettled::Lost))
    }

    /// Whether a command of this call may ever have started, read from the log as it is now: the loss
    /// of its sandbox may just have been recorded.
    async fn may_have_run(&self, call: &Call) -> Result<bool, Fault> {
        let mut trace = SandboxTrace::new(call.id());
        let found = self.writer.newest(&SANDBOX_TRACE, |event| trace.take(event)).await;
        let found = found.map_err(|error| Fault::LogUnavailable(error.to_string()))?;
        Ok(found.unwrap_or_else(|| trace.finish()))
    }

    async fn run_timed(&self, call: &Call) -> Result<CallResult, Fault> {
        if self.mcp.has(call) {
            let result = self.mcp.run(call, false).await?;
            return shortened(&self.sandbox, call, result).await;
        }
        let _use = self.sandbox.begin_use();
        if let Some(result) = call.run_outside(&*self.services).await {
            return result;
        }
        for _ in 0..SANDBOX_CALL_ATTEMPTS_MAX {
            match self.run_in_sandbox(call).await? {
                Ok(result) => return Ok(result),
                Err(Unsettled::Lost) if call.replay == Replay::Unsafe => return Ok(unknown()),
                Err(Unsettled::Lost | Unsettled::NeverRan) => {}
            }
        }
        let reason = "the sandbox was lost repeatedly".to_owned();
        Err(Fault::EndTurn { code: SANDBOX_UNAVAILABLE, reason, is_final: false })
    }

    async fn recover_timed(&self, call: &Call) -> Result<CallResult, Fault> {
        if self.mcp.has(call) {
            let is_unsafe_there = call.replay == Replay::Unsafe && self.mcp.is_in_sandbox(call);
            let is_away = is_unsafe_there && !self.sandbox.still_exists().await?;
            let was_lost = is_away && self.may_have_run(call).await?;
            if is_away && !was_lost {
                // No sandbox has met it: nothing was sent.
                let result = self.mcp.run(call, false).await?;
                return shortened(&self.sandbox, call, result).await;
            }
            let result = self.mcp.recover(call, was_lost).await?;
            return shortened(&self.sandbox, call, result).await;
        }
        let in_use = self.sandbox.begin_use();
        if let Some(result) = call.run_outside(&*self.services).await {
            return result;
        }
        // Without the sandbox of the first attempt it is unknown whether an unsafe call ran.
        if call.replay == Replay::Unsafe && !self.sandbox.still_exists().await? {
            if self.may_have_run(call).await? {
                return Ok(unknown());
            }
            // The worker died before a sandbox existed: nothing can have started.
            drop(in_use);
            return self.run_timed(call).await;
        }
        let handle = self.handle(self.sandbox.reacquire().await?);
        let outcome = match self.until_expiry(call, &handle, call.recover(&handle)).await {
            Ok(recovered) => settled(recovered),
            Err(Fault::SandboxGone) => {
                self.lost(call, &handle, "it was gone when its session continued").await?
            }
            Err(Fault::SandboxUnreachable(reason)) => self.ask_again(call, handle, reason).await?,
            Err(fault) => return Err(fault),
        };
        match outcome {
            Ok(result) => Ok(result),
            Err(Unsettled::Lost) if call.replay == Replay::Unsafe => Ok(unknown()),
            Err(Unsettled::Lost | Unsettled::NeverRan) => {
                drop(in_use);
                self.run_timed(call).await
            }
        }
    }

    /// The directory in which a call runs.
    fn cwd(&self) -> String {
        self.sandbox.context().working_dir.clone().unwrap_or_else(|| tool::WORKSPACE.to_owned())
    }

    /// The tool of a call as the model sees it.
    fn spec(&self, call: &ToolCall) -> Option<ToolSpec> {
        self.all_specs().iter().find(|spec| spec.name == call.tool).cloned()
    }

    fn all_specs(&self) -> Arc<[ToolSpec]> {
        Arc::clone(&self.specs.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The custom tool of a call, if it is one.
    fn custom(&self, call: &ToolCall) -> Option<&TurnTool> {
        self.custom.iter().find(|custom| custom.tool.name == call.tool)
    }

    /// `ask`, if this is a call of it and a turn waits for the answers.
    fn ask(&self, call: &ToolCall) -> Option<&WaitingAsk> {
        self.ask.as_ref().filter(|_| call.tool == ASK)
    }

    /// Whether the arguments of a call of a tool of the service fit.
    fn fits(&self, call: &ToolCall) -> bool {
        match (self.mcp.check(call), self.ask(call)) {
            (Some(checked), _) => checked.is_ok(),
            (None, Some(ask)) => ask.questions(call).is_ok(),
            (None, None) => self.catalogue.check(call).is_ok(),
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.running.lock().expect("no holder panics")
    }
}

#[async_trait]
impl harness::Tools for LeasedTools {
    fn specs(&self) -> Arc<[ToolSpec]> {
        self.all_specs()
    }

    async fn list_mcp(&self, known: &McpLists, since: Timestamp) -> (Vec<Body>, Option<Halt>) {
        self.mcp.list(known, since).await
    }

    async fn open_response(&self, call: &Call) -> Result<(), Halt> {
        self.mcp.open_response(call).await.map_err(|fault| Halt::Unavailable(fault.to_string()))
    }

    fn offer_mcp(&self, known: &McpLists) {
        self.mcp.offer(known);
        self.update_specs();
    }

    fn missing_mcp(&self, known: &McpLists, since: Timestamp) -> Option<String> {
        self.mcp.missing(known, since)
    }

    fn check(&self, call: &ToolCall) -> Result<Call, String> {
        let specs = self.all_specs();
        if !specs.iter().any(|spec| spec.name == call.tool) {
            let names: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
            return Err(format!("There is no tool `{}`. The tools are: {}.", call.tool, names.join(", ")));
        }
        if let Some(checked) = self.mcp.check(call) {
            return checked;
        }
        // A call that fits has an action, and is never run here.
        let not_offered = || Err("This call was not offered to the caller, so it did not run.".to_owned());
        match (self.custom(call), self.ask(call)) {
            (None, None) => self.catalogue.check(call),
            (Some(custom), _) => custom.check(call).and_then(|()| not_offered()),
            (None, Some(ask)) => ask.questions(call).and_then(|_| not_offered()),
        }
    }

    fn caller_tool(&self, call: &ToolCall) -> Option<&CustomTool> {
        let custom = self.custom(call)?;
        custom.check(call).is_ok().then_some(&custom.tool)
    }

    fn questions(&self, call: &ToolCall) -> Option<(Vec<Question>, u64)> {
        self.spec(call)?;
        let ask = self.ask(call)?;
        Some((ask.questions(call).ok()?, ask.expires_seconds))
    }

    fn output_faults(&self, call: &ToolCall) -> Option<Vec<String>> {
        let output = self.output.as_ref().filter(|_| call.tool == SUBMIT_OUTPUT)?;
        Some(output.faults(call))
    }

    fn decision(&self, call: &ToolCall, grants: &[Grant]) -> PolicyDecision {
        let server_hash = self.mcp.server_hash(&call.tool);
        let is_ruled = !self.permissions.is_empty() || server_hash.is_some();
        let Some(spec) = self.spec(call).filter(|_| is_ruled) else { return PolicyDecision::default() };
        if self.custom(call).is_some() || call.tool == SUBMIT_OUTPUT || !self.fits(call) {
            return PolicyDecision::default();
        }
        let evaluator = Evaluator { permissions: &self.permissions, grants, cwd: &self.cwd() };
        match server_hash {
            None => evaluator.evaluate(call, &spec),
            Some(server_hash) => {
                let tool = RuledTool::of_server(&spec, &server_hash);
                let schema_hash = Some(tool.schema_hash.clone());
                PolicyDecision { schema_hash, ..evaluator.evaluate(call, tool) }
            }
        }
    }

    fn want_files(&self, files: &[FileRef]) {
        self.sandbox.want_files(files);
    }

    fn args_hash(&self, call: &ToolCall) -> String {
        self.spec(call).map(|spec| permission::args_hash(call, &spec, &self.cwd())).unwrap_or_default()
    }

    async fn run(&self, call: &Call) -> Result<CallResult, Fault> {
        let started = Instant::now();
        self.run_timed(call).await.map(|result| timed(result, started))
    }

    async fn recover(&self, call: &Call) -> Result<CallResult, Fault> {
        let started = Instant::now();
        self.recover_timed(call).await.map(|result| timed(result, started))
    }

    async fn cancel(&self, call: &ToolCall) -> Option<ExecSummary> {
        if self.mcp.cancel(call).await {
            return None;
        }
        // A call that fails the check has started nothing.
        let call = self.catalogue.check(call).ok()?;
        let handle = self.handle(self.sandbox.existing().await?);
        call.cancel(&handle).await
    }

    fn running(&self, call: &ToolCall) -> Option<Duration> {
        self.running().get(&call.call_id).map(Instant::elapsed)
    }
}

/// Takes the duration from the command, where there is one.
fn timed(result: CallResult, started: Instant) -> CallResult {
    let duration = result.exec.as_ref().map_or_else(|| started.elapsed(), |exec| exec.duration);
    CallResult { duration, ..result }
}

fn settled(recovered: Recovered) -> Result<CallResult, Unsettled> {
    match recovered {
        Recovered::Done(result) => Ok(result),
        Recovered::NeverRan => Err(Unsettled::NeverRan),
        Recovered::Unknown => Ok(unknown()),
    }
}

fn unknown() -> CallResult {
    CallResult::unknown(
        "The sandbox was lost while this tool ran, so its outcome is unknown. Check what it left before you run \
         it again.",
    )
}
