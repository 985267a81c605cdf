//! The harness's ports, joined to the rooms behind them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;

use super::{egress_attachment::EgressAttachment, leased_sandbox::LeasedSandbox};
use crate::{
    base::{
        backoff::Backoff,
        limit::{SANDBOX_BACKOFF, SANDBOX_CALL_ATTEMPTS_MAX},
    },
    domain::{
        AgentId, Body, Event, Session,
        budget::{Budget, Most},
        event::{Draft, Outcome},
        piece::Piece,
        spend::Verdict,
        tool::{Replay, START_SESSION, ToolCall, ToolSpec},
    },
    harness::{self, Done, Executed, Halt, ToolFault},
    journal::{self, Halted, Log, LogSize, Writer},
    store::spend::Ask,
    tool::{self, Catalogue, Recovered},
};

const BACKOFF: Backoff = Backoff { first: SANDBOX_BACKOFF.0, longest: SANDBOX_BACKOFF.1 };

/// The log, under a lease.
pub(super) struct LeasedJournal {
    writer: Writer,
    /// What was read for this lease while the turn was prepared: the first question after
    /// each has its answer already.
    session: Mutex<Option<Session>>,
    log: Mutex<Option<Vec<Event>>>,
    size: LogSize,
    /// Whose counted decisions ride along with what is written.
    egress: Option<Arc<EgressAttachment>>,
    /// Whose caps bind; none where no model is asked.
    agent: Option<AgentId>,
    /// Nothing bound when the turn was prepared, and no call was made since.
    is_free: AtomicBool,
}

impl LeasedJournal {
    /// With nothing read yet, for a turn that asks no model and whose sandbox reaches nothing.
    pub(super) fn of(writer: Writer) -> Self {
        let (session, log, size) = (Mutex::new(None), Mutex::new(None), LogSize::default());
        Self { writer, session, log, size, egress: None, agent: None, is_free: AtomicBool::new(true) }
    }

    /// With the session and then the log, as they were read under this very lease; of
    /// what its agent may spend nothing is known to bind if it `is_free`.
    pub(super) fn new(
        writer: Writer,
        session: Session,
        log: Log,
        egress: Arc<EgressAttachment>,
        is_free: bool,
    ) -> Self {
        let (agent, is_free) = (session.created.agent_id, AtomicBool::new(is_free));
        let size = log.size();
        let (session, log) = (Mutex::new(Some(session)), Mutex::new(Some(log.events)));
        Self { writer, session, log, size, egress: Some(egress), agent, is_free }
    }

    /// After its end a turn says nothing more, so its sandbox reaches nothing more.
    async fn record_with(&self, egress: &EgressAttachment, drafts: Vec<Draft>) -> Result<Vec<Event>, Halted> {
        if drafts.iter().any(|draft| matches!(draft.body, Body::TurnCompleted(_))) {
            egress.close().await;
        }
        let taken = egress.take();
        let mut all = egress.drafts(&taken, &self.writer);
        all.extend(drafts);
        let recorded = self.writer.record(all).await;
        if recorded.is_err() {
            egress.restore(&taken);
        }
        recorded
    }
}

fn away(error: journal::Error) -> Halt {
    Halt::Unavailable(error.to_string())
}

fn halt(halted: Halted) -> Halt {
    match halted {
        Halted::Stale => Halt::Stale,
        Halted::Moved => Halt::Moved,
        Halted::Failed(error) => Halt::Unavailable(error.to_string()),
    }
}

#[async_trait]
impl harness::Journal for LeasedJournal {
    async fn record(&self, drafts: Vec<Draft>) -> Result<Vec<Event>, Halt> {
        let recorded = match &self.egress {
            Some(egress) => self.record_with(egress, drafts).await,
            None => self.writer.record(drafts).await,
        };
        recorded.map_err(halt)
    }

    async fn log(&self) -> Result<Vec<Event>, Halt> {
        let read = self.log.lock().expect("nobody panics who takes it").take();
        match read {
            Some(log) => Ok(log),
            None => self.writer.log().await.map_err(|error| Halt::Unavailable(error.to_string())),
        }
    }

    fn keep(&self, log: Vec<Event>) {
        self.writer.cache_log(log, self.size);
    }

    async fn session(&self) -> Result<Session, Halt> {
        let read = self.session.lock().expect("nobody panics who takes it").take();
        match read {
            Some(session) => Ok(session),
            None => self.writer.session().await.map_err(|error| Halt::Unavailable(error.to_string())),
        }
    }

    fn is_heard(&self) -> bool {
        self.writer.is_heard()
    }

    fn tell(&self, piece: Piece) {
        self.writer.tell(piece);
    }

    async fn budgets(&self, session: &Session) -> Result<Vec<Budget>, Halt> {
        let limits = session.created.limits;
        let is_limited = limits.tokens.or(limits.cost_micros).or(limits.tool_calls).is_some();
        if !is_limited && session.created.parent_session_id.is_none() {
            return Ok(Vec::new());
        }
        self.writer.budgets().await.map_err(away)
    }

    async fn reserve(
        &self,
        most: &(dyn Fn() -> Most + Send + Sync),
        is_shared: bool,
    ) -> Result<Verdict, Halt> {
        let granted = Verdict::Granted { close: Vec::new() };
        let Some(agent) = self.agent else { return Ok(granted) };
        let is_free = self.is_free.swap(false, Ordering::Relaxed);
        let is_bound = !is_free && self.writer.spend_is_bound(agent).await.map_err(away)?;
        if !is_bound && !is_shared {
            return Ok(granted);
        }
        let ask = Ask { agent: Some(agent), call: None, most: most(), is_bound, is_shared };
        self.writer.reserve(&ask).await.map_err(halt)
    }

    async fn reserve_exec(&self, call_id: &str, most: u64, is_shared: bool) -> Result<Verdict, Halt> {
        let granted = Verdict::Granted { close: Vec::new() };
        let Some(agent) = self.agent else { return Ok(granted) };
        let is_bound = self.writer.spend_is_bound(agent).await.map_err(away)?;
        if !is_bound && !is_shared {
            return Ok(granted);
        }
        let most = Most { tokens: 0, cost_micros: Some(most) };
        let ask = Ask { agent: Some(agent), call: Some(call_id), most, is_bound, is_shared };
        self.writer.reserve(&ask).await.map_err(halt)
    }

    async fn pay_late(&self, drafts: Vec<Draft>) -> Result<(), Halt> {
        self.writer.pay_late(&drafts).await.map_err(away)
    }

    async fn release_exec(&self, call_id: &str) -> Result<(), Halt> {
        self.writer.release_exec(call_id).await.map_err(away)
    }
}

/// The tools that the agent may use, with the session's sandbox behind them.
pub(super) struct LeasedTools {
    catalogue: Catalogue,
    specs: Vec<ToolSpec>,
    sandbox: Arc<LeasedSandbox>,
    /// Since when calls that run a command are at work.
    begun: Mutex<HashMap<String, Instant>>,
}

/// What a call came to when no result can be had by asking.
enum Open {
    /// It did not begin.
    NeverRan,
    /// Its sandbox is gone.
    Lost,
}

impl LeasedTools {
    /// `allowed` names the agent's tools; `None` is all of them.
    pub(super) fn new(catalogue: Catalogue, sandbox: Arc<LeasedSandbox>, allowed: Option<&[String]>) -> Self {
        // What starts more of its kind an agent must name.
        let is_allowed = |spec: &ToolSpec| match allowed {
            Some(names) => names.contains(&spec.name),
            None => spec.name != START_SESSION,
        };
        let specs = catalogue.specs().into_iter().filter(is_allowed).collect();
        Self { catalogue, specs, sandbox, begun: Mutex::default() }
    }

    /// Does what needs no sandbox; `None` for a call that does.
    async fn beyond_the_sandbox(&self, call: &ToolCall) -> Option<Result<tool::Done, tool::ToolFault>> {
        match self.catalogue.set_timer(call, &*self.sandbox).await {
            Some(set) => Some(set),
            None => self.catalogue.start_session(call, &*self.sandbox).await,
        }
    }

    /// Runs a call in the sandbox that is there, asking again while that does not answer.
    async fn run_here(&self, call: &ToolCall, started: Instant) -> Result<Result<Done, Open>, ToolFault> {
        let handle = self.sandbox.ready().await?;
        match self.within_life(call, &handle, self.catalogue.run(call, &handle)).await {
            Ok(done) => Ok(Ok(ran(done, started))),
            Err(tool::ToolFault::Stale) => Err(ToolFault::Stale),
            Err(tool::ToolFault::Away(reason)) => Err(ToolFault::Away(reason)),
            Err(tool::ToolFault::SandboxGone) => {
                self.gone(call, &handle, "it was gone when a tool used it").await
            }
            Err(tool::ToolFault::Retry(reason)) => self.ask_here(call, handle, started, reason).await,
        }
    }

    /// Asks the sandbox what became of a call; bounded, then the sandbox is given up.
    async fn ask_here(
        &self,
        call: &ToolCall,
        mut handle: tool::SandboxHandle,
        started: Instant,
        mut reason: String,
    ) -> Result<Result<Done, Open>, ToolFault> {
        for attempt in 1..=SANDBOX_CALL_ATTEMPTS_MAX {
            tokio::time::sleep(self.sandbox.delay(&BACKOFF, attempt)).await;
            handle = self.sandbox.attached().await?;
            match self.within_life(call, &handle, self.catalogue.recover(call, &handle)).await {
                Ok(recovered) => return Ok(recovered_here(recovered, started)),
                Err(tool::ToolFault::Stale) => return Err(ToolFault::Stale),
                Err(tool::ToolFault::Away(reason)) => return Err(ToolFault::Away(reason)),
                Err(tool::ToolFault::SandboxGone) => {
                    return self.gone(call, &handle, "it was gone when a tool used it").await;
                }
                Err(tool::ToolFault::Retry(again)) => reason = again,
            }
        }
        self.gone(call, &handle, &reason).await
    }

    /// Ends the command of a call when the time of its sandbox is over.
    async fn within_life<T>(
        &self,
        call: &ToolCall,
        handle: &tool::SandboxHandle,
        work: impl Future<Output = Result<T, tool::ToolFault>>,
    ) -> Result<T, tool::ToolFault> {
        tokio::pin!(work);
        if self.catalogue.longest(call).is_some() {
            self.begun().entry(call.call_id.clone()).or_insert_with(Instant::now);
        }
        let done = tokio::select! {
            done = &mut work => done,
            () = self.sandbox.end_of_life() => {
                self.catalogue.cancel(call, handle).await;
                work.await
            }
        };
        if done.is_ok() {
            self.begun().remove(&call.call_id);
        }
        done
    }

    /// Writes down that the sandbox of a call is gone. Until that is in the log the call counts
    /// as at work: its session may have been closed, and the sandbox have gone with it.
    async fn gone(
        &self,
        call: &ToolCall,
        handle: &tool::SandboxHandle,
        reason: &str,
    ) -> Result<Result<Done, Open>, ToolFault> {
        self.sandbox.lost(handle.fence.sandbox, reason).await?;
        self.begun().remove(&call.call_id);
        Ok(Err(Open::Lost))
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.begun.lock().expect("nobody panics who takes it")
    }

    fn is_unsafe(&self, call: &ToolCall) -> bool {
        (self as &dyn harness::Tools).replay(&call.tool) == Replay::Unsafe
    }
}

#[async_trait]
impl harness::Tools for LeasedTools {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    fn refused(&self, call: &ToolCall) -> Option<String> {
        if !self.specs.iter().any(|spec| spec.name == call.tool) {
            let names: Vec<_> = self.specs.iter().map(|spec| spec.name.as_str()).collect();
            return Some(format!("There is no tool `{}`. The tools are: {}.", call.tool, names.join(", ")));
        }
        self.catalogue.refused(call).map(|done| done.output)
    }

    fn longest(&self, call: &ToolCall) -> Option<Duration> {
        self.catalogue.longest(call)
    }

    async fn run(&self, call: &ToolCall) -> Result<Done, ToolFault> {
        let _use = self.sandbox.enter();
        let started = Instant::now();
        if let Some(done) = self.beyond_the_sandbox(call).await {
            return done.map(|done| ran(done, started)).map_err(without_sandbox);
        }
        for _ in 0..SANDBOX_CALL_ATTEMPTS_MAX {
            match self.run_here(call, started).await? {
                Ok(done) => return Ok(done),
                Err(Open::Lost) if self.is_unsafe(call) => return Ok(unknown(started)),
                Err(Open::Lost | Open::NeverRan) => {}
            }
        }
        Err(ToolFault::Unavailable("its sandbox was lost again and again".to_owned()))
    }

    async fn recover(&self, call: &ToolCall) -> Result<Done, ToolFault> {
        let begun = self.sandbox.enter();
        let started = Instant::now();
        if let Some(done) = self.beyond_the_sandbox(call).await {
            return done.map(|done| ran(done, started)).map_err(without_sandbox);
        }
        // Without the sandbox that it was announced for, nobody can say whether it ran.
        if self.is_unsafe(call) && !self.sandbox.survived().await? {
            if self.sandbox.may_have_run(&call.call_id).await? {
                return Ok(unknown(started));
            }
            // Its worker died before it had a sandbox: nothing can have begun.
            drop(begun);
            return self.run(call).await;
        }
        let handle = self.sandbox.attached().await?;
        let settled = match self.within_life(call, &handle, self.catalogue.recover(call, &handle)).await {
            Ok(recovered) => recovered_here(recovered, started),
            Err(tool::ToolFault::Stale) => return Err(ToolFault::Stale),
            Err(tool::ToolFault::Away(reason)) => return Err(ToolFault::Away(reason)),
            Err(tool::ToolFault::SandboxGone) => {
                self.gone(call, &handle, "it was gone when its session went on").await?
            }
            Err(tool::ToolFault::Retry(reason)) => self.ask_here(call, handle, started, reason).await?,
        };
        match settled {
            Ok(done) => Ok(done),
            Err(Open::Lost) if self.is_unsafe(call) => Ok(unknown(started)),
            Err(Open::Lost | Open::NeverRan) => {
                drop(begun);
                self.run(call).await
            }
        }
    }

    async fn cancel(&self, call: &ToolCall) -> Option<(Executed, Duration)> {
        let handle = self.sandbox.if_attached().await?;
        let exec = self.catalogue.cancel(call, &handle).await?;
        let duration = exec.duration;
        Some((executed(exec), duration))
    }

    fn running(&self, call: &ToolCall) -> Option<Duration> {
        self.begun().get(&call.call_id).map(Instant::elapsed)
    }
}

/// Why a call that needs no sandbox has no result yet.
fn without_sandbox(fault: tool::ToolFault) -> ToolFault {
    match fault {
        tool::ToolFault::Stale => ToolFault::Stale,
        fault @ (tool::ToolFault::Away(_) | tool::ToolFault::Retry(_) | tool::ToolFault::SandboxGone) => {
            ToolFault::Away(fault.to_string())
        }
    }
}

fn recovered_here(recovered: Recovered, started: Instant) -> Result<Done, Open> {
    match recovered {
        Recovered::Done(done) => Ok(ran(done, started)),
        Recovered::NeverRan => Err(Open::NeverRan),
        Recovered::Unknown => Ok(unknown(started)),
    }
}

fn ran(done: tool::Done, started: Instant) -> Done {
    Done {
        output: done.output,
        is_error: done.is_error,
        outcome: Outcome::Ran,
        duration: done.exec.as_ref().map_or_else(|| started.elapsed(), |exec| exec.duration),
        exec: done.exec.map(executed),
    }
}

fn executed(exec: tool::ExecSummary) -> Executed {
    Executed {
        cause: exec.cause.to_owned(),
        command: exec.command,
        exit_code: exec.exit_code,
        summary: exec.summary,
        bytes: exec.bytes,
    }
}

fn unknown(started: Instant) -> Done {
    let output = "The sandbox was lost while this tool ran, so its outcome is unknown. Look at what it left before \
                  you run it again.";
    let duration: Duration = started.elapsed();
    Done { output: output.to_owned(), is_error: true, outcome: Outcome::Unknown, duration, exec: None }
}
