//! What callers ask of a sandbox themselves: asked, waited for, forgotten.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Error, Journal, Unit};
use crate::{
    base::limit::OPERATION_POLL,
    domain::{
        AgentId, OperationId, OrgId, SessionId,
        decide::{Command, Rejection, Stamp},
        operation::Request,
        spend::{Verdict, judge},
    },
    store::{notification::Notification, operation::Seen},
};

/// Where the bytes of a file are that a caller sends or gets.
pub fn operation_blob(org: OrgId, session: SessionId, operation: OperationId) -> String {
    format!("{}/{}/operations/{}", org.uuid(), session.uuid(), operation.uuid())
}

impl Unit {
    /// Asks something of a session's sandbox. Returns false when too much is being asked of
    /// it already.
    ///
    /// # Errors
    /// `Rejected` when the session is closed, or, for a command, what it or its organization
    /// may spend is used up.
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
            self.may_use(id).await?;
        }
        if matches!(request, Request::Exec { .. }) {
            self.may_spend(asked.session.created.agent_id).await?;
        }
        self.notification(Notification::Job);
        self.notification(Notification::Control);
        Ok(self.tx.ask(id, operation, &request, &stamp.actor).await?)
    }

    /// Refuses what costs something where nothing more may be spent. What is reserved for
    /// others is not looked at: whoever serves it waits for that.
    async fn may_spend(&mut self, agent: Option<AgentId>) -> Result<(), Error> {
        let now = self.tx.spend_status(agent).await?;
        match judge(&now.organization, &now.agent, now.balance) {
            Verdict::Exceeded(spend) => Err(Rejection::CapSpent(spend.limit).into()),
            Verdict::Unpaid => Err(Rejection::Unpaid.into()),
            Verdict::Granted { .. } | Verdict::Wait | Verdict::Unpriced => Ok(()),
        }
    }
}

impl Journal {
    /// An operation as it is when it is answered, or after `patience`.
    pub async fn answered(
        &self,
        org: OrgId,
        session: SessionId,
        operation: OperationId,
        patience: Duration,
    ) -> Result<Seen, Error> {
        let mut watch = self.notifications.watch(session);
        let until = Instant::now() + patience;
        loop {
            let seen = self.store.begin(org).await?.operation(session, operation).await?;
            if seen.answer.is_some() || Instant::now() >= until {
                return Ok(seen);
            }
            // A notification may be lost.
            let _ = timeout_at(until.min(Instant::now() + OPERATION_POLL), watch.changed()).await;
        }
    }

    /// Forgets what callers asked of sandboxes more than a day ago, with the files that they
    /// sent or got; returns how many.
    pub async fn forget_operations(&self) -> Result<usize, Error> {
        let old = self.store.old_operations().await?;
        for (org, session, operation) in &old {
            self.blobs.delete(&operation_blob(*org, *session, *operation)).await?;
            self.store.forget_operation(*org, *session, *operation).await?;
        }
        Ok(old.len())
    }
}
