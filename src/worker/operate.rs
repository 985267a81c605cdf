//! What callers ask of a session's sandbox themselves: served under whatever lease holds it.
//!
//! Called by `slot`: beside a turn, or with the job `operate` while there is none; that
//! one gives way to a turn. A command belongs to the sandbox and not to its worker, so
//! whoever serves the operation next finds it there and waits for the same end.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::{Mutex, watch};

use super::{
    Worker, archive,
    control::Line,
    egress_attachment::EgressAttachment,
    file::{self, OperationBlob},
    leased_sandbox::LeasedSandbox,
    output::{self, Pump},
    sandbox_spec,
};
use crate::{
    base::{
        backoff::Backoff,
        limit::{
            DIRECT_OUTPUT_BYTES_MAX, EXEC_SUMMARY_BYTES_MAX, SANDBOX_BACKOFF, SANDBOX_CALL_ATTEMPTS_MAX,
        },
        text,
    },
    domain::{
        Actor, Body, Cost, Event, OperationId, Session,
        operation::{Answer, Failure, Request},
        price::{SandboxSize, Tariff},
    },
    harness::{ToolFault, Unready},
    journal::{Halted, Writer},
    queue::{Lease, State},
    sandbox::{Exec, Exit, Fault, OutputStream},
    store::{self, notification::Notification, operation::Open},
    tool,
};

const BACKOFF: Backoff = Backoff { first: SANDBOX_BACKOFF.0, longest: SANDBOX_BACKOFF.1 };

/// Serves one session's operations.
pub(super) struct Operator<'a> {
    pub worker: &'a Worker,
    pub writer: Writer,
    pub sandbox: Arc<LeasedSandbox>,
    pub session: &'a Session,
    pub tariff: Tariff,
    pub size: SandboxSize,
    pub lease: watch::Receiver<State>,
    /// Commands that something is reserved for. Held while somebody looks whether a limit is
    /// to be told of.
    pub reserved: Mutex<HashSet<OperationId>>,
    /// Since when commands are at work whose end is not told: one whose sandbox is gone is
    /// among them until that is in the log.
    pub begun: Mutex<HashMap<OperationId, Instant>>,
}

/// Why nothing more can be served under this lease.
pub(super) enum Stopped {
    Stale,
    Away(String),
}

impl From<store::Error> for Stopped {
    fn from(error: store::Error) -> Self {
        Self::Away(error.to_string())
    }
}

impl From<Halted> for Stopped {
    fn from(halted: Halted) -> Self {
        match halted {
            Halted::Stale | Halted::Moved => Self::Stale,
            Halted::Failed(error) => Self::Away(error.to_string()),
        }
    }
}

impl Worker {
    /// Serves what is asked of a session's sandbox while no turn does.
    pub(super) async fn operate(
        &self,
        lease: Lease,
        mut draining: watch::Receiver<bool>,
    ) -> Result<&'static str, store::Error> {
        let fence = lease.fence();
        let session = self.store.load_session(fence.org, fence.session).await?;
        let writer = self.journal.writer(fence, None);
        if let Some(outcome) = self.hold_back(&lease, &session).await? {
            return Ok(outcome);
        }
        let sandbox_spec = sandbox_spec::read(self, fence.org, &session).await?;
        let (spec, allowed) = match sandbox_spec {
            Ok(sandbox_spec) => sandbox_spec,
            Err((_, message)) => {
                return self.refuse_all(&lease, Failure::EnvironmentDeleted, message).await;
            }
        };
        let billing = self.store.billing(fence.org, session.created.agent_id).await?;
        let model = session.created.agent_snapshot.as_ref().map_or("", |agent| agent.model.as_str());
        let size = SandboxSize { cpu_millis: spec.limits.cpu_millis, memory_bytes: spec.limits.memory_bytes };
        let egress =
            EgressAttachment::new(self.network.clone(), writer.clone(), self.journal.origin(), allowed);
        let egress = Arc::new(egress);
        let sandbox = LeasedSandbox::new(self.clone(), writer.clone(), Arc::clone(&egress), spec);
        let operator = Operator {
            worker: self,
            writer: writer.clone(),
            sandbox: Arc::new(sandbox),
            session: &session,
            tariff: Tariff::of(model, billing.prices.as_ref()),
            size,
            lease: lease.state(),
            reserved: Mutex::default(),
            begun: Mutex::default(),
        };
        let mut wanted = lease.state();
        let outcome = tokio::select! {
            served = operator.serve_all() => match served {
                Ok(()) => lease.finish().await.map(|()| "served"),
                Err(Stopped::Stale) => Ok("the lease was lost"),
                Err(Stopped::Away(reason)) => {
                    tracing::warn!(session.id = %fence.session, reason, "a sandbox cannot be asked yet");
                    lease.release(SANDBOX_BACKOFF.1).await.map(|()| "waits")
                }
            },
            () = lease.lost() => Ok("the lease was lost"),
            // The turn goes on with what is open here.
            () = async { drop(wanted.wait_for(|state| state.is_wanted).await) } => {
                lease.release(Duration::ZERO).await.map(|()| "gave way")
            }
            () = async { drop(draining.wait_for(|draining| *draining).await) } => {
                lease.release(Duration::ZERO).await.map(|()| "handed back")
            }
            () = egress.run() => unreachable!("a way out is served for ever"),
        };
        operator.pay_late().await;
        egress.close().await;
        let taken = egress.take();
        let drafts = egress.drafts(&taken, &writer);
        if !drafts.is_empty() && writer.record(drafts).await.is_err() {
            tracing::warn!(session.id = %fence.session, "counts of decisions about egress were lost with a lease");
        }
        self.notifications.send(Notification::Job);
        outcome
    }
}

impl Operator<'_> {
    /// Serves what is open, and what is asked meanwhile, until nothing is.
    async fn serve_all(&self) -> Result<(), Stopped> {
        let mut seen = HashSet::new();
        while self.serve_open(&mut seen).await? {}
        Ok(())
    }

    /// Serves what is asked while a turn runs, for ever; looks only when somebody asked.
    pub(super) async fn serve_beside_a_turn(&self) {
        let (mut lease, mut seen) = (self.lease.clone(), HashSet::new());
        loop {
            if lease.wait_for(|state| state.operations.is_some()).await.is_err() {
                // The lease table is gone with the process.
                std::future::pending::<()>().await;
            }
            match self.serve_open(&mut seen).await {
                Ok(true) => {}
                // What was served is told with the next look at the lease.
                Ok(false) => drop(lease.changed().await),
                // The turn finds out by itself, and what is open stays so for the next.
                Err(Stopped::Stale) => std::future::pending::<()>().await,
                Err(Stopped::Away(reason)) => {
                    tracing::warn!(session.id = %self.session.id, reason, "a caller waits beside a turn");
                    seen.clear();
                    tokio::time::sleep(SANDBOX_BACKOFF.1).await;
                }
            }
        }
    }

    /// Serves what is open now and has not been `seen`. Returns whether there was any.
    async fn serve_open(&self, seen: &mut HashSet<OperationId>) -> Result<bool, Stopped> {
        let fence = self.writer.fence();
        let mut lease = self.lease.clone();
        let mut under_way = FuturesUnordered::new();
        let mut line = Line::default();
        let mut did_any = false;
        loop {
            lease.mark_unchanged();
            let open = self.worker.store.open_operations(fence.org, fence.session).await?;
            // Beside a turn nobody has the sandbox alone: whoever wants that waits for its end.
            let may_be_served = |open: &Open| self.writer.turn().is_none() || !open.request.is_alone();
            line.waiting.extend(open.into_iter().filter(|open| may_be_served(open) && seen.insert(open.id)));
            if line.wants_an_end() {
                self.end_commands(&line.under_way).await;
            }
            while let Some(open) = line.next() {
                did_any = true;
                under_way.push(async {
                    let id = open.id;
                    self.serve(open).await.map(|()| id)
                });
            }
            tokio::select! {
                served = under_way.next() => match served {
                    Some(served) => line.is_over(served?),
                    None => return Ok(did_any),
                },
                _ = lease.changed() => {}
            }
        }
    }

    async fn serve(&self, open: Open) -> Result<(), Stopped> {
        if let Request::Restore { checkpoint } = &open.request {
            return self.restore(&open, *checkpoint).await;
        }
        let performed = self.perform(&open).await?;
        self.begun.lock().await.remove(&open.id);
        let answer = match performed {
            Ok(answer) => answer,
            Err((code, message)) => Answer::Failed { code, message },
        };
        let fence = self.writer.fence();
        if !self.worker.store.answer_operation(fence, open.id, &answer).await? {
            return Err(Stopped::Stale);
        }
        self.worker.notifications.send(Notification::Log(fence.session));
        self.worker.notifications.send(Notification::Output(open.id));
        Ok(())
    }

    async fn perform(&self, open: &Open) -> Result<Result<Answer, (Failure, String)>, Stopped> {
        if let Some(done) = self.control(open).await? {
            return Ok(done);
        }
        let _use = self.sandbox.enter();
        let is_command = matches!(open.request, Request::Exec { .. });
        if let Some(refused) = self.reserve(open).await? {
            self.say_over(open, None).await?;
            return Ok(Err(refused));
        }
        let mut has_begun = open.sandbox.is_some();
        for attempt in 1..=SANDBOX_CALL_ATTEMPTS_MAX {
            let handle = match self.attached(has_begun).await {
                Ok(handle) => handle,
                Err(ToolFault::Stale) => return Err(Stopped::Stale),
                Err(ToolFault::Away(reason)) => return Err(Stopped::Away(reason)),
                Err(fault @ (ToolFault::Unavailable(_) | ToolFault::Unready(..))) => {
                    self.say_over(open, None).await?;
                    return Ok(Err(without_sandbox(fault)));
                }
            };
            let id = handle.fence.sandbox;
            match self.worker.store.begin_operation(self.writer.fence(), open.id, id).await? {
                None => return Err(Stopped::Stale),
                // It may have run there, and nobody can ask that sandbox any more.
                Some(began_in) if is_command && began_in != id => {
                    self.say_over(open, None).await?;
                    return Ok(Err(lost()));
                }
                Some(_) => has_begun = true,
            }
            match self.attempt(open, &handle).await? {
                Ok(answer) => return Ok(Ok(answer)),
                Err(Fault::Stale) => return Err(Stopped::Stale),
                Err(Fault::NotFound(message)) => return Ok(Err((Failure::NotFound, message))),
                Err(Fault::Refused(message)) => {
                    self.say_over(open, None).await?;
                    return Ok(Err((Failure::Refused, message)));
                }
                Err(Fault::Gone) => {
                    self.sandbox.lost(id, "it was gone when a caller used it").await.map_err(stopped)?;
                    if is_command {
                        self.say_over(open, None).await?;
                        return Ok(Err(lost()));
                    }
                }
                Err(Fault::Unavailable(reason)) => {
                    tracing::warn!(session.id = %self.session.id, attempt, reason, "a sandbox did not answer a caller");
                }
            }
            tokio::time::sleep(self.sandbox.delay(&BACKOFF, attempt)).await;
        }
        self.say_over(open, None).await?;
        Ok(Err(match is_command {
            // It may have begun.
            true => lost(),
            false => (Failure::SandboxUnavailable, "the sandbox does not answer".to_owned()),
        }))
    }

    /// The sandbox: as it is for what may have begun in it, else one that may be used for long.
    async fn attached(&self, has_begun: bool) -> Result<tool::SandboxHandle, ToolFault> {
        if has_begun { self.sandbox.attached().await } else { self.sandbox.ready().await }
    }

    async fn attempt(
        &self,
        open: &Open,
        handle: &tool::SandboxHandle,
    ) -> Result<Result<Answer, Fault>, Stopped> {
        let (sandbox, sandbox_fence) = (&*handle.sandbox, handle.fence);
        let place =
            OperationBlob { blobs: &self.worker.blobs, fence: self.writer.fence(), operation: open.id };
        match &open.request {
            Request::Exec { argv, working_dir, env, timeout_seconds, .. } => {
                let exec = Exec {
                    id: exec_id(open.id),
                    argv: argv.clone(),
                    cwd: working_dir.clone(),
                    env: env.clone(),
                    timeout: Duration::from_secs(*timeout_seconds),
                    output_bytes_max: DIRECT_OUTPUT_BYTES_MAX,
                };
                self.begun.lock().await.entry(open.id).or_insert_with(Instant::now);
                match self.run(open, handle, &exec).await {
                    Ok((exit, stdout, stderr)) => {
                        // What its end says is paid, whoever closes the session now.
                        self.begun.lock().await.remove(&open.id);
                        self.say_over(open, Some((&exit, &stdout, &stderr))).await?;
                        Ok(Ok(ended(&exit, stdout, stderr)))
                    }
                    Err(fault) => Ok(Err(fault)),
                }
            }
            Request::Read { path, offset, bytes_max } => {
                Ok(file::read(sandbox, sandbox_fence, &place, path, *offset, *bytes_max).await)
            }
            Request::Write { path, blob } => {
                let written = file::write(sandbox, sandbox_fence, &place, path, blob).await;
                if let Ok(Answer::Written { bytes }) = &written {
                    self.say_written(open, path, *bytes).await?;
                }
                Ok(written)
            }
            Request::ReadTree { path } => Ok(archive::read(sandbox, sandbox_fence, &place, path).await),
            Request::WriteTree { path, blob } => {
                let written = archive::write(sandbox, sandbox_fence, &place, path, blob).await;
                if let Ok(Answer::Written { bytes }) = &written {
                    self.say_written(open, path, *bytes).await?;
                }
                Ok(written)
            }
            Request::List { path } => Ok(file::list(sandbox, sandbox_fence, &place, path).await),
            Request::Start
            | Request::Stop
            | Request::Checkpoint
            | Request::Restore { .. }
            | Request::Kill { .. } => unreachable!("what concerns the sandbox itself was done before"),
        }
    }

    /// Starts the command, or finds the one that runs, and waits for its end.
    async fn run(
        &self,
        open: &Open,
        handle: &tool::SandboxHandle,
        exec: &Exec,
    ) -> Result<(Exit, String, String), Fault> {
        let (sandbox, sandbox_fence) = (&*handle.sandbox, handle.fence);
        sandbox.start(sandbox_fence, exec).await?;
        let pump = Pump {
            worker: self.worker,
            fence: self.writer.fence(),
            operation: open.id,
            sandbox,
            sandbox_fence,
            exec_id: &exec.id,
        };
        let exit = tokio::select! {
            exit = sandbox.wait(sandbox_fence, &exec.id) => exit?,
            () = self.sandbox.end_of_life() => {
                sandbox.kill(sandbox_fence, &exec.id).await?;
                sandbox.wait(sandbox_fence, &exec.id).await?
            }
            () = pump.run() => unreachable!("output is passed on until its command is over"),
        };
        let [stdout, stderr] =
            [(OutputStream::Stdout, exit.stdout_bytes), (OutputStream::Stderr, exit.stderr_bytes)].map(
                |(stream, written)| {
                    output::read(
                        sandbox,
                        sandbox_fence,
                        &exec.id,
                        stream,
                        written.min(DIRECT_OUTPUT_BYTES_MAX),
                    )
                },
            );
        let (stdout, stderr) = (text::printable(&stdout.await?), text::printable(&stderr.await?));
        Ok((exit, stdout, stderr))
    }

    /// Writes that a command is over, once: of one that ran with its end.
    async fn say_over(&self, open: &Open, exit: Option<(&Exit, &str, &str)>) -> Result<(), Stopped> {
        let Request::Exec { command, .. } = &open.request else { return Ok(()) };
        let said =
            |body: &Body| matches!(body, Body::ExecCompleted { exec_id, .. } if *exec_id == Some(open.id));
        let may_be_said = open.sandbox.is_some() || exit.is_none();
        if may_be_said && self.has_said(said).await? {
            return self.spent(open, Cost::default()).await;
        }
        let summary = exit.map_or(String::new(), |(_, stdout, stderr)| {
            let all = format!("{stdout}{stderr}");
            let from = all.len().saturating_sub(EXEC_SUMMARY_BYTES_MAX);
            all[all.ceil_char_boundary(from)..].to_owned()
        });
        let duration_ms = exit.map_or(0, |(exit, ..)| exit.duration.as_millis() as u64);
        let cost = self.tariff.exec(self.size, duration_ms);
        let body = Body::ExecCompleted {
            call_id: open.id.to_string(),
            exec_id: Some(open.id),
            command: command.clone(),
            exit_code: exit.map_or(-1, |(exit, ..)| exit.code),
            summary,
            bytes: exit.map_or(0, |(exit, ..)| exit.stdout_bytes + exit.stderr_bytes),
            cause: exit.map_or("unknown", |(exit, ..)| exit.cause.word()).to_owned(),
            duration_ms,
            cpu_micros: cost.sandbox_cpu_micros,
            memory_micros: cost.sandbox_memory_micros,
        };
        self.say(Actor::system(), body).await?;
        self.spent(open, cost).await
    }

    async fn say_written(&self, open: &Open, path: &str, bytes: u64) -> Result<(), Stopped> {
        let said = |body: &Body| matches!(body, Body::FileWritten { write_id, .. } if *write_id == open.id);
        if open.sandbox.is_some() && self.has_said(said).await? {
            return Ok(());
        }
        let is_archive = matches!(open.request, Request::WriteTree { .. });
        let body = Body::FileWritten { write_id: open.id, path: path.to_owned(), bytes, is_archive };
        self.say(open.actor.clone(), body).await
    }

    /// Whether whoever began an operation has written that; asked only where another did.
    pub(super) async fn has_said(&self, said: impl Fn(&Body) -> bool) -> Result<bool, Stopped> {
        let log: Vec<Event> = self.writer.log().await.map_err(|error| Stopped::Away(error.to_string()))?;
        Ok(log.iter().any(|event| said(&event.draft.body)))
    }
}

/// The name of a caller's command in its sandbox.
pub(super) fn exec_id(operation: OperationId) -> String {
    format!("d-{operation}")
}

fn stopped(fault: ToolFault) -> Stopped {
    match fault {
        ToolFault::Stale => Stopped::Stale,
        ToolFault::Away(reason) | ToolFault::Unavailable(reason) | ToolFault::Unready(_, reason) => {
            Stopped::Away(reason)
        }
    }
}

pub(super) fn without_sandbox(fault: ToolFault) -> (Failure, String) {
    match fault {
        ToolFault::Unready(Unready::LifecycleHook, reason) => (Failure::LifecycleHookFailed, reason),
        ToolFault::Unready(Unready::RepoAccess, reason) => (Failure::MissingRepoAccess, reason),
        ToolFault::Unready(Unready::Source, reason) => (Failure::SourceFailed, reason),
        ToolFault::Unavailable(reason) | ToolFault::Away(reason) => (Failure::SandboxUnavailable, reason),
        ToolFault::Stale => (Failure::SandboxUnavailable, "another worker has it".to_owned()),
    }
}

fn lost() -> (Failure, String) {
    let message = "the sandbox was lost while this was under way; it may have been done";
    (Failure::OutcomeUnknown, message.to_owned())
}

fn ended(exit: &Exit, stdout: String, stderr: String) -> Answer {
    Answer::Exec {
        exit_code: exit.code,
        cause: exit.cause.word().to_owned(),
        stdout,
        stderr,
        stdout_bytes: exit.stdout_bytes,
        stderr_bytes: exit.stderr_bytes,
        duration_ms: exit.duration.as_millis() as u64,
    }
}
