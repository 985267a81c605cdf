//! Callers' operations on a session's sandbox: commands, files, archives, checkpoints.
//!
//! Called by `worker` under the lease of the session: beside a turn, or with the job `operation` while
//! there is no turn. A command belongs to the sandbox and not to its worker, so the worker that serves
//! the operation next finds the command there and waits for its end.

mod archive;
mod control;
mod file;
mod output;
mod queue;
mod record;
mod spend;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::{Mutex, watch};

use file::OperationBlob;
use output::Pump;
use queue::OperationQueue;

use crate::{
    base::{
        backoff::Backoff,
        limit::{DIRECT_OUTPUT_BYTES_MAX, SANDBOX_BACKOFF, SANDBOX_CALL_ATTEMPTS_MAX},
        text,
    },
    domain::{
        Cost, OperationId, Session,
        exit::PreparationFailure,
        operation::{Answer, Failure, Request},
        price::{SandboxSize, Tariff},
    },
    journal::{Halted, Writer},
    lifecycle::{self, LeasedSandbox, SandboxHandle, Sandboxes},
    sandbox::{Exec, Exit, Fault, OutputStream},
    store::{
        self,
        job::LeaseState,
        notification::Notification,
        operation::{Begun, Open},
    },
};

const BACKOFF: Backoff = Backoff { first: SANDBOX_BACKOFF.0, longest: SANDBOX_BACKOFF.1 };

/// Serves the operations of one session under a lease.
pub(crate) struct OperationServer<'a> {
    sandboxes: &'a Sandboxes,
    writer: Writer,
    sandbox: Arc<LeasedSandbox>,
    session: &'a Session,
    tariff: Tariff,
    size: SandboxSize,
    lease: watch::Receiver<LeaseState>,
    /// Commands with a reservation. Locked while limits are checked and reported.
    reserved: Mutex<HashSet<OperationId>>,
    /// Commands that wait here or begin, and that the sandbox does not know yet.
    starting: watch::Sender<HashSet<OperationId>>,
    /// Locked while the log is searched for the end of a command, and the end is recorded.
    end: Mutex<()>,
    /// Start of each command whose end is not in the log yet. A command whose sandbox is gone stays
    /// here until that is recorded.
    running: Mutex<HashMap<OperationId, Instant>>,
}

/// Why nothing more can be served under this lease.
pub(crate) enum Error {
    /// Another worker holds the session.
    Stale,
    /// There is no sandbox yet; try again after this time.
    NotYet(Duration),
    /// The database or the sandbox is unreachable; try again later.
    Unavailable(String),
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<Halted> for Error {
    fn from(halted: Halted) -> Self {
        match halted {
            Halted::Stale | Halted::Moved => Self::Stale,
            Halted::Failed(error) => Self::Unavailable(error.to_string()),
        }
    }
}

impl<'a> OperationServer<'a> {
    /// Serves the operations of `session` in `sandbox`, priced by `tariff`.
    pub(crate) fn new(
        sandboxes: &'a Sandboxes,
        sandbox: Arc<LeasedSandbox>,
        session: &'a Session,
        tariff: Tariff,
        lease: watch::Receiver<LeaseState>,
    ) -> Self {
        Self {
            sandboxes,
            writer: sandbox.writer().clone(),
            size: sandbox.size(),
            sandbox,
            session,
            tariff,
            lease,
            reserved: Mutex::default(),
            starting: watch::Sender::new(HashSet::new()),
            end: Mutex::default(),
            running: Mutex::default(),
        }
    }
}

impl OperationServer<'_> {
    /// Serves open operations, and those that arrive meanwhile, until none is left.
    pub(crate) async fn serve_all(&self) -> Result<(), Error> {
        let mut seen = HashSet::new();
        while self.serve_open(&mut seen).await? {}
        Ok(())
    }

    /// Serves operations while a turn runs. Reads them only when the lease reports some. Never returns.
    pub(crate) async fn serve_beside_a_turn(&self) {
        let (mut lease, mut seen) = (self.lease.clone(), HashSet::new());
        loop {
            if lease.wait_for(|state| state.operations.is_some()).await.is_err() {
                // The lease table is gone with the process.
                std::future::pending::<()>().await;
            }
            match self.serve_open(&mut seen).await {
                Ok(true) => {}
                // The next renewal of the lease reports new operations.
                Ok(false) => drop(lease.changed().await),
                // The turn detects the loss itself; the next worker serves open operations.
                Err(Error::Stale) => std::future::pending::<()>().await,
                Err(Error::NotYet(retry)) => {
                    seen.clear();
                    tokio::time::sleep(retry).await;
                }
                Err(Error::Unavailable(reason)) => {
                    tracing::warn!(session.id = %self.session.id, reason, "operations beside a turn could not be served; retrying");
                    seen.clear();
                    tokio::time::sleep(SANDBOX_BACKOFF.1).await;
                }
            }
        }
    }

    /// Serves open operations that are not in `seen`. Returns whether there were any.
    async fn serve_open(&self, seen: &mut HashSet<OperationId>) -> Result<bool, Error> {
        let fence = self.writer.fence();
        let mut lease = self.lease.clone();
        let (mut under_way, mut ends) = (FuturesUnordered::new(), FuturesUnordered::new());
        let (mut queue, mut ending) = (OperationQueue::default(), HashSet::new());
        let mut did_any = false;
        loop {
            lease.mark_unchanged();
            let open = self.sandboxes.store.open_operations(fence.org, fence.session).await?;
            // A kill has ended the others.
            queue.waiting.retain(|waiting| open.iter().any(|open| open.id == waiting.id));
            // An exclusive operation waits for the end of the turn.
            let may_be_served = |open: &Open| self.writer.turn().is_none() || !open.request.is_exclusive();
            for open in open.into_iter().filter(may_be_served) {
                if seen.insert(open.id) {
                    self.starts(&open);
                    queue.waiting.push_back(open);
                }
            }
            while let Some(open) = queue.next() {
                did_any = true;
                under_way.push(async {
                    let id = open.id;
                    self.serve(open).await.map(|()| id)
                });
            }
            for exec in queue.to_end() {
                if ending.insert(exec) {
                    // Polled beside the commands, because it may wait for the start of one.
                    ends.push(self.end_command(exec));
                }
            }
            tokio::select! {
                served = under_way.next() => match served {
                    Some(served) => queue.is_over(served?),
                    None => return Ok(did_any),
                },
                Some(()) = ends.next() => {}
                _ = lease.changed() => {}
            }
        }
    }

    /// Notes that a command is going to start.
    fn starts(&self, open: &Open) {
        if matches!(open.request, Request::Exec { .. }) {
            self.starting.send_modify(|starting| {
                starting.insert(open.id);
            });
        }
    }

    /// Notes that a command runs in the sandbox, or has ended.
    fn has_left_queue(&self, exec: OperationId) {
        self.starting.send_if_modified(|starting| starting.remove(&exec));
    }

    async fn serve(&self, open: Open) -> Result<(), Error> {
        if let Request::Restore { checkpoint } = &open.request {
            return self.restore(&open, *checkpoint).await;
        }
        let performed = self.perform(&open).await?;
        self.running.lock().await.remove(&open.id);
        let answer = match performed {
            Ok(answer) => answer,
            Err((code, message)) => Answer::Failed { code, message },
        };
        let fence = self.writer.fence();
        if !self.sandboxes.store.answer_operation(fence, open.id, &answer).await? {
            return Err(Error::Stale);
        }
        self.has_left_queue(open.id);
        self.sandboxes.notifications.send(Notification::Log(fence.session));
        self.sandboxes.notifications.send(Notification::Output(open.id));
        if let Request::Write { blob, .. } | Request::WriteTree { blob, .. } = &open.request {
            // Nobody reads it any more. If this fails, it is removed with the operation.
            let _ = self.sandboxes.blobs.delete(blob).await;
        }
        Ok(())
    }

    async fn perform(&self, open: &Open) -> Result<Result<Answer, (Failure, String)>, Error> {
        if let Some(done) = self.control(open).await? {
            return Ok(done);
        }
        let _use = self.sandbox.begin_use();
        let is_command = matches!(open.request, Request::Exec { .. });
        if let Some(refused) = self.reserve(open).await? {
            self.record_end(open, None).await?;
            return Ok(Err(refused));
        }
        let mut has_begun = open.sandbox.is_some();
        for attempt in 1..=SANDBOX_CALL_ATTEMPTS_MAX {
            let handle = match self.acquire(has_begun).await {
                Ok(handle) => handle,
                Err(lifecycle::Error::Stale) => return Err(Error::Stale),
                Err(lifecycle::Error::NotYet(_, retry)) => return Err(Error::NotYet(retry)),
                Err(lifecycle::Error::LogUnavailable(reason)) => return Err(Error::Unavailable(reason)),
                Err(
                    fault @ (lifecycle::Error::Unavailable(_) | lifecycle::Error::PreparationFailure(..)),
                ) => {
                    self.record_end(open, None).await?;
                    return Ok(Err(without_sandbox(fault)));
                }
            };
            let id = handle.fence.sandbox;
            match self.sandboxes.store.begin_operation(self.writer.fence(), open.id, id).await? {
                None => return Err(Error::Stale),
                Some(Begun::Ended) => {
                    self.spent(open.id, Cost::default()).await?;
                    return Ok(Err(killed_in_queue()));
                }
                // It may have run in a sandbox that no longer exists.
                Some(Begun::In(began_in)) if is_command && began_in != id => {
                    self.record_end(open, None).await?;
                    return Ok(Err(lost()));
                }
                Some(Begun::In(_)) => has_begun = true,
            }
            match self.attempt(open, &handle).await? {
                Ok(answer) => return Ok(Ok(answer)),
                Err(Fault::Stale) => return Err(Error::Stale),
                Err(Fault::NotFound(message)) => return Ok(Err((Failure::NotFound, message))),
                Err(Fault::Refused(message)) => {
                    self.record_end(open, None).await?;
                    return Ok(Err((Failure::Refused, message)));
                }
                Err(Fault::Gone) => {
                    self.sandbox
                        .record_loss(id, "it was gone when a caller's operation used it")
                        .await
                        .map_err(stopped)?;
                    if is_command {
                        self.record_end(open, None).await?;
                        return Ok(Err(lost()));
                    }
                }
                Err(Fault::Unavailable(reason)) => {
                    tracing::warn!(session.id = %self.session.id, attempt, reason, "a sandbox did not answer an operation; retrying");
                }
            }
            tokio::time::sleep(self.sandbox.delay(&BACKOFF, attempt)).await;
        }
        self.record_end(open, None).await?;
        Ok(Err(match is_command {
            // It may have started.
            true => lost(),
            false => (Failure::SandboxUnavailable, "the sandbox does not answer".to_owned()),
        }))
    }

    /// The current sandbox if the operation may have started in it; else rotates one that expires soon.
    async fn acquire(&self, has_begun: bool) -> Result<SandboxHandle, lifecycle::Error> {
        if has_begun { self.sandbox.reacquire().await } else { self.sandbox.acquire().await }
    }

    async fn attempt(&self, open: &Open, handle: &SandboxHandle) -> Result<Result<Answer, Fault>, Error> {
        let (sandbox, sandbox_fence) = (&*handle.sandbox, handle.fence);
        let place =
            OperationBlob { blobs: &self.sandboxes.blobs, fence: self.writer.fence(), operation: open.id };
        match &open.request {
            Request::Exec { argv, working_dir, env, timeout_seconds, .. } => {
                let exec = Exec {
                    id: exec_id(open.id),
                    argv: argv.clone(),
                    cwd: working_dir.clone(),
                    env: env.clone(),
                    timeout: Duration::from_secs(*timeout_seconds),
                    output_bytes_max: DIRECT_OUTPUT_BYTES_MAX,
                    is_service: false,
                };
                self.running.lock().await.entry(open.id).or_insert_with(Instant::now);
                match self.run(open, handle, &exec).await {
                    Ok((exit, stdout, stderr)) => {
                        // Its end is billed by `exec.completed`, even if the session is closed now.
                        self.running.lock().await.remove(&open.id);
                        self.record_end(open, Some((&exit, &stdout, &stderr))).await?;
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
                    self.record_written(open, path, *bytes).await?;
                }
                Ok(written)
            }
            Request::ReadTree { path } => Ok(archive::read(sandbox, sandbox_fence, &place, path).await),
            Request::WriteTree { path, blob } => {
                let written = archive::write(sandbox, sandbox_fence, &place, path, blob).await;
                if let Ok(Answer::Written { bytes }) = &written {
                    self.record_written(open, path, *bytes).await?;
                }
                Ok(written)
            }
            Request::List { path } => Ok(file::list(sandbox, sandbox_fence, &place, path).await),
            Request::Start
            | Request::Stop
            | Request::Checkpoint
            | Request::Restore { .. }
            | Request::Kill { .. } => unreachable!("`control` handles operations on the sandbox as a whole"),
        }
    }

    /// Starts the command, or attaches to the running one, and waits for its end.
    async fn run(
        &self,
        open: &Open,
        handle: &SandboxHandle,
        exec: &Exec,
    ) -> Result<(Exit, String, String), Fault> {
        let (sandbox, sandbox_fence) = (&*handle.sandbox, handle.fence);
        sandbox.start(sandbox_fence, exec).await?;
        self.has_left_queue(open.id);
        let pump = Pump {
            sandboxes: self.sandboxes,
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
            () = pump.run() => unreachable!("the output pump never returns"),
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
}

/// Id of a caller's command in its sandbox.
fn exec_id(operation: OperationId) -> String {
    format!("d-{operation}")
}

fn stopped(fault: lifecycle::Error) -> Error {
    match fault {
        lifecycle::Error::Stale => Error::Stale,
        lifecycle::Error::NotYet(_, retry) => Error::NotYet(retry),
        lifecycle::Error::LogUnavailable(reason)
        | lifecycle::Error::Unavailable(reason)
        | lifecycle::Error::PreparationFailure(_, reason) => Error::Unavailable(reason),
    }
}

fn without_sandbox(fault: lifecycle::Error) -> (Failure, String) {
    match fault {
        lifecycle::Error::PreparationFailure(PreparationFailure::LifecycleHook, reason) => {
            (Failure::LifecycleHookFailed, reason)
        }
        lifecycle::Error::PreparationFailure(PreparationFailure::RepoAccess, reason) => {
            (Failure::MissingRepoAccess, reason)
        }
        lifecycle::Error::PreparationFailure(PreparationFailure::Source, reason) => {
            (Failure::SourceFailed, reason)
        }
        lifecycle::Error::PreparationFailure(PreparationFailure::Skill, reason) => {
            (Failure::SkillFailed, reason)
        }
        lifecycle::Error::PreparationFailure(PreparationFailure::NotAdmitted, reason)
        | lifecycle::Error::Unavailable(reason)
        | lifecycle::Error::NotYet(reason, _)
        | lifecycle::Error::LogUnavailable(reason) => (Failure::SandboxUnavailable, reason),
        lifecycle::Error::Stale => (Failure::SandboxUnavailable, "another worker holds it".to_owned()),
    }
}

/// Failure of a command that has its answer from the kill. It is not stored.
fn killed_in_queue() -> (Failure, String) {
    (Failure::Canceled, "a kill ended the command in the queue".to_owned())
}

fn lost() -> (Failure, String) {
    let message = "the sandbox was lost while the operation ran; it may have completed";
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
