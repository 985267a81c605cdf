//! Operations of callers on a sandbox: requested, awaited, expired.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Error, Journal, Unit};
use crate::{
    base::limit::OPERATION_POLL,
    domain::{
        AgentId, OperationId, OrgId, SessionId,
        decide::{Command, Rejection, Stamp},
        operation::{Answer, Request},
        spend::{Verdict, verdict},
    },
    store::{notification::Notification, operation::OperationRecord},
};

/// Blob key of the file that a caller writes or reads.
pub fn operation_blob(org: OrgId, session: SessionId, operation: OperationId) -> String {
    format!("{}/{}/operations/{}", org.uuid(), session.uuid(), operation.uuid())
}

impl Unit {
    /// Requests an operation on a session's sandbox. Returns false when too many are open already.
    ///
    /// # Errors
    /// `Rejected` when the session is archived. For an exec or a restore also when a limit that
    /// applies to the session is used up; for an exec also when a spend cap or the balance is used
    /// up.
    pub async fn operate(
        &mut self,
        id: SessionId,
        operation: OperationId,
        request: &Request,
        stamp: &Stamp,
    ) -> Result<bool, Error> {
        let context = self.tx.lock_session(id).await?.context;
        let request = request.clone().within(&context);
        let command = Command::Operate { operation, request: request.clone() };
        let asked = self.execute(id, command, stamp).await?;
        if matches!(request, Request::Exec { .. } | Request::Restore { .. }) {
            self.check_limits(id).await?;
        }
        if matches!(request, Request::Exec { .. }) {
            self.check_spend(asked.session.created.agent_id).await?;
        }
        let ready = self.tx.ask(id, operation, &request, &stamp.actor).await?;
        self.is_ready(ready);
        self.notify_holders(&[id]).await?;
        Ok(ready.is_some())
    }

    /// Ends a command that no worker has begun, without running it. Returns whether it did.
    ///
    /// The worker that serves the kill records the end in the log, so request the kill in the same unit.
    pub async fn end_queued_exec(
        &mut self,
        id: SessionId,
        exec: OperationId,
        end: &Answer,
    ) -> Result<bool, Error> {
        self.tx.lock_session(id).await?;
        let has_ended = self.tx.end_queued_exec(id, exec, end).await?;
        if has_ended {
            self.notification(Notification::Log(id));
            self.notification(Notification::Output(exec));
        }
        Ok(has_ended)
    }

    /// Rejects a request that costs money when a spend cap or the balance is used up.
    ///
    /// Reservations of other calls are ignored here: the worker that serves the request waits for
    /// them.
    async fn check_spend(&mut self, agent: Option<AgentId>) -> Result<(), Error> {
        let now = self.tx.spend_status(agent).await?;
        match verdict(&now.organization, &now.agent, now.balance) {
            Verdict::Exceeded(spend) => Err(Rejection::CapExceeded(spend.limit).into()),
            Verdict::BalanceExhausted => Err(Rejection::BalanceExhausted.into()),
            Verdict::Granted { .. } | Verdict::Wait | Verdict::Unpriced => Ok(()),
        }
    }
}

impl Journal {
    /// Returns an operation once it is answered, or as it is after `patience`.
    pub async fn answered(
        &self,
        org: OrgId,
        session: SessionId,
        operation: OperationId,
        patience: Duration,
    ) -> Result<OperationRecord, Error> {
        let mut watch = self.notifications.watch(session);
        let until = Instant::now() + patience;
        loop {
            let seen = self.store.begin(org).await?.operation(session, operation).await?;
            if seen.answer.is_some() || Instant::now() >= until {
                return Ok(seen);
            }
            // Notifications can be lost, so poll as well.
            let _ = timeout_at(until.min(Instant::now() + OPERATION_POLL), watch.changed()).await;
        }
    }
}
