//! Operations on the sandbox as a whole: start, stop, checkpoint, restore, kill.

use super::{Error, OperationServer, exec_id, without_sandbox};
use crate::{
    base::limit::SANDBOX_BACKOFF,
    domain::{
        CheckpointId, OperationId,
        operation::{Answer, Failure, Request},
        spend::{Verdict, verdict},
    },
    lifecycle::{self, blobs_of_session},
    sandbox::{Fault, Signal, checkpoint},
    store::{notification::Notification, operation::Open},
};

/// Reason in `sandbox.terminated` when a caller stopped the sandbox.
const STOPPED: &str = "stopped";

impl OperationServer<'_> {
    /// Performs an operation on the sandbox as a whole; `None` for operations inside it and for a restore.
    pub(crate) async fn control(
        &self,
        open: &Open,
    ) -> Result<Option<Result<Answer, (Failure, String)>>, Error> {
        let done = match &open.request {
            Request::Start => match self.refused().await? {
                Some(refused) => return Ok(Some(Err(refused))),
                None => self.sandbox.acquire().await.map(|_| Answer::Done),
            },
            Request::Stop => self.sandbox.terminate(STOPPED, open.actor.clone()).await.map(|()| Answer::Done),
            Request::Checkpoint => {
                let full = self.sandboxes.full_of_checkpoints(self.writer.fence().org).await?;
                if let Some(reason) = full {
                    return Ok(Some(Err((Failure::SandboxUnavailable, reason.to_owned()))));
                }
                let _use = self.sandbox.begin_use();
                self.sandbox.checkpoint().await.map(|checkpoint| Answer::Kept { checkpoint })
            }
            Request::Kill { exec, signal } => return self.kill(*exec, *signal).await.map(Some),
            Request::Exec { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::List { .. }
            | Request::ReadTree { .. }
            | Request::WriteTree { .. }
            | Request::Restore { .. } => return Ok(None),
        };
        match done {
            Ok(answer) => Ok(Some(Ok(answer))),
            Err(lifecycle::Error::Stale) => Err(Error::Stale),
            Err(lifecycle::Error::NotYet(_, retry)) => Err(Error::NotYet(retry)),
            Err(lifecycle::Error::LogUnavailable(reason)) => Err(Error::Unavailable(reason)),
            Err(fault @ (lifecycle::Error::Unavailable(_) | lifecycle::Error::PreparationFailure(..))) => {
                Ok(Some(Err(without_sandbox(fault))))
            }
        }
    }

    /// Restores a checkpoint. After the answer is stored, the next use of the sandbox gets these files, even
    /// if this worker crashes.
    pub(crate) async fn restore(&self, open: &Open, wanted: CheckpointId) -> Result<(), Error> {
        let fence = self.writer.fence();
        let store = &self.sandboxes.store;
        let answer = match self.restorable(wanted).await? {
            Ok(()) => Answer::Kept { checkpoint: wanted },
            Err((code, message)) => {
                let failed = Answer::Failed { code, message };
                let held = store.answer_operation(fence, open.id, &failed).await?;
                self.sandboxes.notifications.send(Notification::Log(fence.session));
                return if held { Ok(()) } else { Err(Error::Stale) };
            }
        };
        if !store.restore_checkpoint(fence, wanted, open.id, &answer).await? {
            return Err(Error::Stale);
        }
        let left = self.sandbox.discard(open.actor.clone()).await;
        self.sandboxes.notifications.send(Notification::Log(fence.session));
        match left {
            Ok(()) => Ok(()),
            Err(lifecycle::Error::Stale) => Err(Error::Stale),
            // The next use of the sandbox completes the removal first.
            Err(
                lifecycle::Error::LogUnavailable(reason)
                | lifecycle::Error::NotYet(reason, _)
                | lifecycle::Error::Unavailable(reason)
                | lifecycle::Error::PreparationFailure(_, reason),
            ) => {
                tracing::warn!(session.id = %self.session.id, reason, "the sandbox replaced by a restore could not be removed; retried at the next use");
                Ok(())
            }
        }
    }

    /// Whether no call is in progress and the checkpoint and its blob exist.
    async fn restorable(&self, wanted: CheckpointId) -> Result<Result<(), (Failure, String)>, Error> {
        let fence = self.writer.fence();
        if let Some(refused) = self.refused().await? {
            return Ok(Err(refused));
        }
        let all = self.sandboxes.store.checkpoints(fence.org, fence.session).await?;
        let Some(found) = all.into_iter().find(|one| one.checkpoint == wanted) else {
            return Ok(Err((Failure::NotFound, "the checkpoint does not exist or has expired".to_owned())));
        };
        let is_used = match self.sandbox.existing().await {
            _ if self.sandbox.is_in_use() => true,
            Some(handle) => handle.sandbox.running(handle.fence).await.is_ok_and(|running| running > 0),
            None => false,
        };
        if is_used {
            let message = "commands run in the sandbox; end them or wait for their end";
            return Ok(Err((Failure::InUse, message.to_owned())));
        }
        let session = blobs_of_session(fence.org, fence.session);
        Ok(match checkpoint::fetch(&self.sandboxes.blobs, &session, &found.digest).await {
            Ok(_) => Ok(()),
            Err(Fault::NotFound(message)) => Err((Failure::NotFound, message)),
            Err(fault) => Err((Failure::SandboxUnavailable, fault.to_string())),
        })
    }

    /// The refusal if a spend cap or the balance is exhausted.
    pub(crate) async fn refused(&self) -> Result<Option<(Failure, String)>, Error> {
        let (org, agent) = (self.writer.fence().org, self.session.created.agent_id);
        let store = &self.sandboxes.store;
        if !store.billing(org, agent).await?.is_bound {
            return Ok(None);
        }
        let now = store.spend_status_of(org, agent).await?;
        Ok(match verdict(&now.organization, &now.agent, now.balance) {
            Verdict::Exceeded(spend) => {
                Some((Failure::BudgetExceeded, format!("{}: all of it is spent", spend.limit)))
            }
            Verdict::BalanceExhausted => {
                Some((Failure::PaymentRequired, "the organization's balance is used up".to_owned()))
            }
            Verdict::Granted { .. } | Verdict::Wait | Verdict::Unpriced => None,
        })
    }

    /// Kills a command, or sends it a signal, also if it has begun and does not run yet. Records the end of a command
    /// that the kill ended in the queue.
    async fn kill(
        &self,
        exec: OperationId,
        signal: Option<Signal>,
    ) -> Result<Result<Answer, (Failure, String)>, Error> {
        let Some(seen) = self.seen(exec).await? else { return Ok(Err(not_running())) };
        let has_begun = seen.started_at.is_some();
        match (seen.request, seen.answer) {
            (Request::Exec { command, .. }, Some(Answer::Exec { exit_code, .. })) if !has_begun => {
                self.record_queued_end(exec, command, exit_code).await?;
                Ok(Ok(Answer::Done))
            }
            (_, Some(_)) => Ok(Ok(Answer::Done)),
            (_, None) if !has_begun => Ok(Err(not_running())),
            (_, None) => {
                self.has_started(exec).await;
                let sent = self.signal(exec, signal).await?;
                // It may have ended meanwhile, also before it could run.
                let is_over = sent.is_err() && self.is_answered(exec).await?;
                Ok(if is_over { Ok(Answer::Done) } else { sent })
            }
        }
    }

    /// Kills a command that runs in the sandbox, or sends it a signal.
    async fn signal(
        &self,
        exec: OperationId,
        signal: Option<Signal>,
    ) -> Result<Result<Answer, (Failure, String)>, Error> {
        let Some(handle) = self.sandbox.existing().await else { return Ok(Err(not_running())) };
        let (sandbox_fence, id) = (handle.fence, exec_id(exec));
        let done = match signal {
            Some(signal) => handle.sandbox.signal(sandbox_fence, &id, signal).await,
            None => handle.sandbox.kill(sandbox_fence, &id).await,
        };
        match done {
            Ok(()) => Ok(Ok(Answer::Done)),
            Err(Fault::Stale) => Err(Error::Stale),
            Err(Fault::NotFound(_) | Fault::Gone) => Ok(Err(not_running())),
            Err(Fault::Refused(message) | Fault::Unavailable(message)) => {
                Ok(Err((Failure::SandboxUnavailable, message)))
            }
        }
    }

    /// Returns when a command runs in the sandbox or has ended: before that, its sandbox does not know it.
    async fn has_started(&self, exec: OperationId) {
        drop(self.starting.subscribe().wait_for(|starting| !starting.contains(&exec)).await);
    }

    /// Kills a caller's command as soon as it runs. Its end is recorded like every other end.
    pub(super) async fn end_command(&self, exec: OperationId) {
        self.has_started(exec).await;
        while let Ok(Err((Failure::SandboxUnavailable, reason))) = self.signal(exec, None).await {
            tracing::warn!(session.id = %self.session.id, reason, "a command could not be killed; retrying");
            tokio::time::sleep(SANDBOX_BACKOFF.1).await;
        }
    }
}

fn not_running() -> (Failure, String) {
    (Failure::NotFound, "the command does not run in the sandbox".to_owned())
}
