//! What a caller asks of the sandbox as a whole: there, away, saved, gone back; and the order
//! in which operations are served.
//!
//! Called by `operate`, under whatever lease holds the session.

use std::collections::VecDeque;

use super::{
    operate::{Operator, Stopped, exec_id, without_sandbox},
    reap::blobs_of,
};
use crate::{
    base::limit::OPERATIONS_TOGETHER_MAX,
    domain::{
        CheckpointId, OperationId,
        operation::{Answer, Failure, Request},
        spend::{Verdict, judge},
    },
    harness::ToolFault,
    sandbox::{Fault, Signal, checkpoint},
    store::{notification::Notification, operation::Open},
};

/// Why a sandbox ends that its caller stopped.
const STOPPED: &str = "stopped";

/// Who is served, and who waits for that.
#[derive(Default)]
pub(super) struct Line {
    pub waiting: VecDeque<Open>,
    pub under_way: Vec<Open>,
}

impl Line {
    /// Who is served next, if anybody may be now: commands some at a time, so that they
    /// keep nobody from looking at files or ending one; and alone who wants the sandbox alone.
    pub fn next(&mut self) -> Option<Open> {
        let is_alone = |open: &Open| open.request.is_alone();
        let is_command = |open: &Open| matches!(open.request, Request::Exec { .. });
        if self.under_way.iter().any(is_alone) {
            return None;
        }
        let has_room = |commands: bool| {
            self.under_way.iter().filter(|open| is_command(open) == commands).count()
                < OPERATIONS_TOGETHER_MAX
        };
        let first_alone = self.waiting.iter().position(is_alone).unwrap_or(self.waiting.len());
        let is_free = |open: &Open| has_room(is_command(open));
        let place = match self.waiting.iter().take(first_alone).position(is_free) {
            Some(place) => place,
            // Whoever goes back is told that others are there and does not wait for them.
            None => match &self.waiting.get(first_alone)?.request {
                Request::Restore { .. } => first_alone,
                _ if self.under_way.is_empty() => first_alone,
                _ => return None,
            },
        };
        let open = self.waiting.remove(place)?;
        self.under_way.push(open.clone());
        Some(open)
    }

    /// Somebody was served.
    pub fn is_over(&mut self, operation: OperationId) {
        self.under_way.retain(|open| open.id != operation);
    }

    /// Whether the sandbox is to be stopped, and commands are in the way of that.
    pub fn wants_an_end(&self) -> bool {
        let stops = |open: &Open| matches!(open.request, Request::Stop);
        self.waiting.iter().any(stops) && !self.under_way.is_empty()
    }
}

impl Operator<'_> {
    /// What is asked of the sandbox as a whole; `None` when something in it is meant.
    pub(super) async fn control(
        &self,
        open: &Open,
    ) -> Result<Option<Result<Answer, (Failure, String)>>, Stopped> {
        let done = match &open.request {
            Request::Start => match self.refused().await? {
                Some(refused) => return Ok(Some(Err(refused))),
                None => self.sandbox.ready().await.map(|_| Answer::Done),
            },
            Request::Stop => self.sandbox.put_away(STOPPED, open.actor.clone()).await.map(|()| Answer::Done),
            Request::Checkpoint => {
                let _use = self.sandbox.enter();
                self.sandbox.save().await.map(|checkpoint| Answer::Kept { checkpoint })
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
            Err(ToolFault::Stale) => Err(Stopped::Stale),
            Err(ToolFault::Away(reason)) => Err(Stopped::Away(reason)),
            Err(fault @ (ToolFault::Unavailable(_) | ToolFault::Unready(..))) => {
                Ok(Some(Err(without_sandbox(fault))))
            }
        }
    }

    /// Goes back to a checkpoint. From the moment of the answer on whoever needs the sandbox
    /// gets those files, whatever becomes of this worker.
    pub(super) async fn restore(&self, open: &Open, wanted: CheckpointId) -> Result<(), Stopped> {
        let fence = self.writer.fence();
        let store = &self.worker.store;
        let answer = match self.restorable(wanted).await? {
            Ok(()) => Answer::Kept { checkpoint: wanted },
            Err((code, message)) => {
                let failed = Answer::Failed { code, message };
                let held = store.answer_operation(fence, open.id, &failed).await?;
                self.worker.notifications.send(Notification::Log(fence.session));
                return if held { Ok(()) } else { Err(Stopped::Stale) };
            }
        };
        if !store.restore_checkpoint(fence, wanted, open.id, &answer).await? {
            return Err(Stopped::Stale);
        }
        let left = self.sandbox.leave_behind(open.actor.clone()).await;
        self.worker.notifications.send(Notification::Log(fence.session));
        match left {
            Ok(()) => Ok(()),
            Err(ToolFault::Stale) => Err(Stopped::Stale),
            // Whoever needs a sandbox next finishes that first.
            Err(ToolFault::Away(reason) | ToolFault::Unavailable(reason) | ToolFault::Unready(_, reason)) => {
                tracing::warn!(session.id = %self.session.id, reason, "a sandbox that was left behind is still there");
                Ok(())
            }
        }
    }

    /// Whether nothing runs, and the checkpoint is there as it was.
    async fn restorable(&self, wanted: CheckpointId) -> Result<Result<(), (Failure, String)>, Stopped> {
        let fence = self.writer.fence();
        if let Some(refused) = self.refused().await? {
            return Ok(Err(refused));
        }
        let all = self.worker.store.checkpoints(fence.org, fence.session).await?;
        let Some(found) = all.into_iter().find(|one| one.checkpoint == wanted) else {
            return Ok(Err((Failure::NotFound, "the checkpoint is not kept any longer".to_owned())));
        };
        let is_used = match self.sandbox.if_attached().await {
            _ if self.sandbox.is_used() => true,
            Some(handle) => handle.sandbox.running(handle.fence).await.is_ok_and(|running| running > 0),
            None => false,
        };
        if is_used {
            let message = "commands run in the sandbox; end them or wait for their end";
            return Ok(Err((Failure::InUse, message.to_owned())));
        }
        let session = blobs_of(fence.org, fence.session);
        Ok(match checkpoint::fetch(&self.worker.blobs, &session, &found.digest).await {
            Ok(_) => Ok(()),
            Err(Fault::NotFound(message)) => Err((Failure::NotFound, message)),
            Err(fault) => Err((Failure::SandboxUnavailable, fault.to_string())),
        })
    }

    /// What keeps a command from being run: what may be spent.
    pub(super) async fn refused(&self) -> Result<Option<(Failure, String)>, Stopped> {
        let (org, agent) = (self.writer.fence().org, self.session.created.agent_id);
        let store = &self.worker.store;
        if !store.billing(org, agent).await?.is_bound {
            return Ok(None);
        }
        let now = store.spend_status_of(org, agent).await?;
        Ok(match judge(&now.organization, &now.agent, now.balance) {
            Verdict::Exceeded(spend) => {
                Some((Failure::BudgetExceeded, format!("{}: all of it is spent", spend.limit)))
            }
            Verdict::Unpaid => {
                Some((Failure::PaymentRequired, "the organization's balance is used up".to_owned()))
            }
            Verdict::Granted { .. } | Verdict::Wait | Verdict::Unpriced => None,
        })
    }

    /// Ends a command, or sends it a signal.
    async fn kill(
        &self,
        exec: OperationId,
        signal: Option<Signal>,
    ) -> Result<Result<Answer, (Failure, String)>, Stopped> {
        let nothing = || (Failure::NotFound, "the command does not run in the sandbox".to_owned());
        let Some(handle) = self.sandbox.if_attached().await else { return Ok(Err(nothing())) };
        let (sandbox_fence, id) = (handle.fence, exec_id(exec));
        let done = match signal {
            Some(signal) => handle.sandbox.signal(sandbox_fence, &id, signal).await,
            None => handle.sandbox.kill(sandbox_fence, &id).await,
        };
        match done {
            Ok(()) => Ok(Ok(Answer::Done)),
            Err(Fault::Stale) => Err(Stopped::Stale),
            Err(Fault::NotFound(_) | Fault::Gone) => Ok(Err(nothing())),
            Err(Fault::Refused(message) | Fault::Unavailable(message)) => {
                Ok(Err((Failure::SandboxUnavailable, message)))
            }
        }
    }

    /// Ends callers' commands, whose own ends then are told as every end is.
    pub(super) async fn end_commands(&self, under_way: &[Open]) {
        for open in under_way.iter().filter(|open| matches!(open.request, Request::Exec { .. })) {
            if let Err(Stopped::Away(reason)) = self.kill(open.id, None).await.map(drop) {
                tracing::warn!(session.id = %self.session.id, reason, "a command could not be ended");
            }
        }
    }
}
