//! Clones of a session's sources into its sandbox, before the first command.
//!
//! Called by `leased_sandbox` before a sandbox is used. Missing sources are determined from the log, and
//! each clone is in the log before it starts: after a takeover the new worker kills the clone of the old
//! one and starts again. git runs in the sandbox as the user of commands and reaches its host through the
//! egress proxy, by a grant for this clone alone.

mod bundle;
mod clone;
mod failure;

use std::time::Instant;

use super::{Error, egress::EgressAttachment, hook, leased_sandbox::LeasedSandbox, session::SandboxSession};
use failure::{Cloned, Failed, Failure};

use crate::{
    base::text::hex,
    domain::{
        Body, SandboxId,
        exit::PreparationFailure,
        source::{PinnedSource, SourceStatus, State},
    },
    sandbox::{Fault, Sandbox},
};

impl LeasedSandbox {
    /// Clones missing sources into a sandbox, then runs the environment's `post_clone` hook.
    ///
    /// # Errors
    /// Those of the sandbox; `PreparationFailure` if a source failed permanently, `Unavailable` if it failed
    /// temporarily.
    pub(super) async fn bring_sources(&self, sandbox: &dyn Sandbox, id: SandboxId) -> Result<(), Error> {
        let own = &self.session;
        let sources = &own.spec.sources;
        if sources.is_empty() {
            return Ok(());
        }
        let (org, session) = (own.fence.org, own.fence.session);
        let progress = own.sandboxes.journal.sources(org, session, sources).await;
        let progress = progress.map_err(|error| Error::LogUnavailable(error.to_string()))?;
        for (source, status) in sources.iter().zip(&progress.sources) {
            if status.state != State::Resolved {
                settle(own, sandbox, id, status).await?;
                clone_one(own, &self.egress, sandbox, id, source).await?;
            }
        }
        let Some(script) = own.spec.post_clone.as_ref().filter(|_| progress.prepared_at.is_none()) else {
            return Ok(());
        };
        let started = Instant::now();
        match hook::run(sandbox, own.sandbox_fence(id), "post_clone", script).await {
            Ok(None) => {
                let duration_ms = started.elapsed().as_millis() as u64;
                own.record(vec![Body::SourcePrepared { sandbox_id: id, duration_ms }]).await
            }
            Ok(Some(failure)) => Err(Error::PreparationFailure(PreparationFailure::LifecycleHook, failure)),
            Err(fault) => Err(of_sandbox(fault)),
        }
    }
}

/// Kills the clone that an earlier worker started in this sandbox.
async fn settle(
    session: &SandboxSession,
    sandbox: &dyn Sandbox,
    id: SandboxId,
    status: &SourceStatus,
) -> Result<(), Error> {
    let Some((_, clone_id)) = status.clone.as_ref().filter(|(in_sandbox, _)| *in_sandbox == id) else {
        return Ok(());
    };
    match sandbox.kill(session.sandbox_fence(id), clone_id).await {
        // `NotFound`: it was recorded and never started.
        Ok(()) | Err(Fault::NotFound(_)) => Ok(()),
        Err(fault) => Err(of_sandbox(fault)),
    }
}

async fn clone_one(
    session: &SandboxSession,
    egress: &EgressAttachment,
    sandbox: &dyn Sandbox,
    id: SandboxId,
    source: &PinnedSource,
) -> Result<(), Error> {
    let started = Instant::now();
    let clone_id = format!("source-{}", hex(&session.sandboxes.journal.origin().bytes::<10>()));
    let name = source.name.clone();
    let begun = Body::SourceCloning { name: name.clone(), sandbox_id: id, clone_id: clone_id.clone() };
    session.record(vec![begun]).await?;
    let cloning = clone::Cloning {
        session,
        egress,
        sandbox,
        sandbox_fence: session.sandbox_fence(id),
        clone_id,
        source,
    };
    match cloning.run().await {
        Ok(Cloned { sha, bytes }) => {
            let duration_ms = started.elapsed().as_millis() as u64;
            session.record(vec![Body::SourceCloned { name, sandbox_id: id, sha, bytes, duration_ms }]).await
        }
        Err(Failed::Sandbox(fault)) => Err(of_sandbox(fault)),
        Err(Failed::Source(failure)) => {
            let Failure { code, message, retryable } = &failure;
            let (code, message, retryable) = ((*code).to_owned(), message.clone(), *retryable);
            session
                .record(vec![Body::SourceFailed { name, sandbox_id: id, code, message, retryable }])
                .await?;
            Err(failure.fault(&source.name))
        }
    }
}

fn of_sandbox(fault: Fault) -> Error {
    match fault {
        Fault::Stale => Error::Stale,
        fault => Error::Unavailable(fault.to_string()),
    }
}
