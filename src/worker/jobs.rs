//! Jobs beside turns: idle sandboxes, callers' operations, clean-up of closed sessions.

use std::time::Duration;

use tokio::sync::watch;

use super::Worker;
use crate::{
    base::limit::{NODE_HEARTBEAT_INTERVAL, ROOTFS_POLL, SANDBOX_BACKOFF},
    domain::{
        Session,
        operation::{Answer, Failure},
        price::Tariff,
    },
    lifecycle::{self, BUILD_FAILED, Next, RootfsStatus, SandboxSpec, Sandboxes, check_rootfs},
    operation::{self, OperationServer},
    queue::Lease,
    sandbox::Fault,
    store::{self, job::Claimed, notification::Notification},
};

impl Worker {
    /// Freezes, hibernates or rotates the sandbox of an idle session when that is due.
    pub(super) async fn attend_idle(&self, lease: Lease) -> Result<&'static str, store::Error> {
        let sandboxes = &self.runtime.sandboxes;
        let fence = lease.fence();
        let session = sandboxes.store.load_session(fence.org, fence.session).await?;
        let sandbox = sandboxes.session(fence, &session);
        let attended = tokio::select! {
            attended = sandbox.idle() => attended,
            () = lease.lost() => return Ok("the lease was lost"),
        };
        match attended {
            Ok(Next::Never) => lease.finish().await.map(|()| "no sandbox is left"),
            Ok(Next::After(delay)) => lease.release(delay).await.map(|()| "the sandbox is idle"),
            Err(lifecycle::Error::Stale) => Ok("the lease was lost"),
            Err(error) => {
                tracing::warn!(session.id = %session.id, %error, "an idle sandbox could not be changed; retrying");
                lease.release(sandboxes.idle.retry()).await.map(|()| "the sandbox could not be changed")
            }
        }
    }

    /// Serves callers' operations on a session's sandbox while no turn runs.
    pub(super) async fn serve_operations(
        &self,
        lease: Lease,
        mut draining: watch::Receiver<bool>,
    ) -> Result<&'static str, store::Error> {
        let sandboxes = &self.runtime.sandboxes;
        let fence = lease.fence();
        let session = sandboxes.store.load_session(fence.org, fence.session).await?;
        if let Some(outcome) = self.await_rootfs(&lease, &session).await? {
            return Ok(outcome);
        }
        let (spec, policy) = match SandboxSpec::read(sandboxes, fence.org, &session).await? {
            Ok(read) => read,
            Err((_, message)) => {
                return self.refuse_operations(&lease, Failure::EnvironmentDeleted, message).await;
            }
        };
        let billing = sandboxes.store.billing(fence.org, session.created.agent_id).await?;
        let model = session.created.agent_snapshot.as_ref().map_or("", |agent| agent.model.as_str());
        let tariff = Tariff::of(model, billing.prices.as_ref());
        let sandbox = sandboxes.lease(sandboxes.journal.writer(fence, None), spec, policy);
        let server = OperationServer::new(sandboxes, sandbox.clone(), &session, tariff, lease.state());
        let mut wanted = lease.state();
        let outcome = tokio::select! {
            served = server.serve_all() => match served {
                Ok(()) => lease.finish().await.map(|()| "served"),
                Err(operation::Error::Stale) => Ok("the lease was lost"),
                Err(operation::Error::NotYet(retry)) => lease.release(retry).await.map(|()| "waits"),
                Err(operation::Error::Unavailable(reason)) => {
                    tracing::warn!(session.id = %session.id, reason, "a sandbox is unreachable; retrying");
                    lease.release(SANDBOX_BACKOFF.1).await.map(|()| "waits")
                }
            },
            () = lease.lost() => Ok("the lease was lost"),
            // The turn serves the operations that are still open.
            () = async { drop(wanted.wait_for(|state| state.is_wanted).await) } => {
                lease.release(Duration::ZERO).await.map(|()| "yielded to a turn")
            }
            () = async { drop(draining.wait_for(|draining| *draining).await) } => {
                lease.release(Duration::ZERO).await.map(|()| "released")
            }
            () = sandbox.egress().run() => unreachable!("the egress proxy runs for ever"),
        };
        server.bill_late().await;
        sandbox.close_egress().await;
        outcome
    }

    /// Checks the root file system for operations: releases the job while it is built, refuses the
    /// operations when the build failed; `None` when it exists.
    async fn await_rootfs(
        &self,
        lease: &Lease,
        session: &Session,
    ) -> Result<Option<&'static str>, store::Error> {
        match check_rootfs(&self.runtime.sandboxes, lease.fence(), session).await {
            Ok(RootfsStatus::Ready) => Ok(None),
            Ok(RootfsStatus::Building) => lease.release(ROOTFS_POLL).await.map(|()| Some("waits")),
            Ok(RootfsStatus::Failed(message)) => {
                let message = format!("{BUILD_FAILED}: {message}");
                self.refuse_operations(lease, Failure::SandboxUnavailable, message).await.map(Some)
            }
            Err(lifecycle::Error::Stale) => Ok(Some("the lease was lost")),
            Err(error) => {
                tracing::warn!(session.id = %session.id, %error, "a root file system could not be checked; retrying");
                lease.release(SANDBOX_BACKOFF.1).await.map(|()| Some("waits"))
            }
        }
    }

    /// Answers every open operation with one failure.
    async fn refuse_operations(
        &self,
        lease: &Lease,
        code: Failure,
        message: String,
    ) -> Result<&'static str, store::Error> {
        let (fence, sandboxes) = (lease.fence(), &self.runtime.sandboxes);
        let failed = Answer::Failed { code, message };
        for open in sandboxes.store.open_operations(fence.org, fence.session).await? {
            sandboxes.store.answer_operation(fence, open.id, &failed).await?;
        }
        sandboxes.notifications.send(Notification::Log(fence.session));
        lease.finish().await.map(|()| "refused")
    }

    /// Removes the sandbox, the disk and the checkpoints of a closed session.
    pub(super) async fn clean_up(&self, lease: Lease) -> Result<&'static str, store::Error> {
        let claimed = *lease.claimed();
        let removed = self.remove_sandbox(&claimed).await?;
        let removed = match removed {
            Ok(()) => self.runtime.sandboxes.remove_checkpoints(claimed.org, claimed.session).await,
            Err(fault) => Err(fault.to_string()),
        };
        match removed {
            Ok(()) => {
                lease.finish().await?;
                Ok("cleaned up")
            }
            Err(reason) => {
                tracing::warn!(session.id = %claimed.session, reason, "a sandbox could not be removed; retrying");
                lease.release(NODE_HEARTBEAT_INTERVAL).await?;
                Ok("not cleaned up yet")
            }
        }
    }

    /// A disk of the session on another node is removed by the reaper of that node.
    async fn remove_sandbox(&self, claimed: &Claimed) -> Result<Result<(), Fault>, store::Error> {
        let Sandboxes { store, nodes, .. } = &self.runtime.sandboxes;
        let (org, session) = (claimed.org, claimed.session);
        let live = store.live_sandbox(org, session).await?;
        let node = match &live {
            Some(live) => Some(live.node),
            None => store.past_sandboxes(org, session).await?.node,
        };
        let mut sandbox = None;
        if let Some(node) = node
            && !self.runtime.sandboxes.is_lost(node).await?
        {
            // A worker without sandboxes leaves them to the others of its node.
            sandbox = nodes.sandboxes_on(node).ok();
        }
        if let Some(live) = live {
            if let Some(sandbox) = &sandbox
                && let Err(fault) = sandbox.destroy(live.sandbox).await
            {
                return Ok(Err(fault));
            }
            store.end_sandbox(org, session, live.sandbox).await?;
        }
        Ok(match sandbox {
            Some(sandbox) => sandbox.erase(org, session).await,
            None => Ok(()),
        })
    }
}
