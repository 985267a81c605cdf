//! Creation of a sandbox: placement, admission, restore of the session's files, record.
//!
//! Called by `leased_sandbox` when a tool first needs a sandbox, and by `session` for one that replaces another.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use futures::future::{Either, select};
use uuid::Uuid;

use super::{
    Error,
    nodes::Placing,
    session::{Attached, Place, SandboxSession},
};
use crate::{
    base::{
        backoff::Backoff,
        limit::{ROTATION_WAIT, SANDBOX_BACKOFF, SANDBOX_START_ATTEMPTS_MAX},
    },
    domain::{Body, SandboxId},
    sandbox::{Fault, Files, Sandbox, Spec, checkpoint},
    store::{
        checkpoint::Checkpoint,
        notification::Notification,
        record::Fence,
        sandbox::{EndedSandboxes, NewSandbox},
    },
};

const BACKOFF: Backoff = Backoff { first: SANDBOX_BACKOFF.0, longest: SANDBOX_BACKOFF.1 };

/// Origin of the files of a new sandbox.
struct Filled {
    restored: Option<(Checkpoint, Duration)>,
    files: Files,
}

impl SandboxSession {
    /// Creates a sandbox with the session's files, with bounded retries.
    pub(crate) async fn create(&self, place: Place) -> Result<Attached, Error> {
        let Fence { org, session, .. } = self.fence;
        let store = &self.sandboxes.store;
        let (past, checkpoints, needs) =
            tokio::join!(store.past_sandboxes(org, session), store.checkpoints(org, session), self.needs());
        let (mut past, checkpoints) = (past?, checkpoints?);
        let (kept, held_for) = match place {
            // A session without an agent fails when its sandbox is not replaced.
            Place::Kept(node) if !self.spec.has_agent => (Some(node), self.sandboxes.limits.wait),
            Place::Kept(node) => (Some(node), ROTATION_WAIT),
            // Files that no checkpoint contains may be on its disk.
            Place::InQueue => (past.node.filter(|_| past.checkpoint.is_none()), Duration::ZERO),
        };
        let is_in_queue = place == Place::InQueue;
        let placing = Placing { org, needs: needs?, kept, is_in_queue, held_for };
        let life = self.spec.life;
        let started = Instant::now();
        let mut failed = None;
        for attempt in 1.. {
            let id: SandboxId = self.sandboxes.journal.origin().id();
            let mut new = NewSandbox {
                org,
                session,
                sandbox: id,
                node: Uuid::nil(),
                life,
                size: self.spec.limits.into(),
                first_check_after: life
                    .map_or(Duration::MAX, |life| life.rotates_in)
                    .min(self.sandboxes.idle.freeze_after),
            };
            let sandbox = match (self.admit(&mut new, &placing).await, failed.take()) {
                (Ok(sandbox), _) => sandbox,
                // The next lease would count its attempts anew.
                (Err(Error::NotYet(..)), Some(fault)) => return Err(Error::Unavailable(fault)),
                (Err(error), _) => return Err(error),
            };
            self.sandboxes.notifications.send(Notification::List(org));
            let spec = Spec {
                sandbox: id,
                org,
                session,
                limits: self.spec.limits,
                rootfs: self.spec.rootfs.clone(),
                env: self.spec.env.clone(),
                previous: past.sandboxes.clone(),
                restores: !checkpoints.is_empty(),
            };
            match self.fill(&*sandbox, &spec, &checkpoints).await {
                Ok(filled) => {
                    let duration_ms = started.elapsed().as_millis() as u64;
                    self.announce(id, created(id, duration_ms, &filled, &past)).await?;
                    return Ok(Attached::new(id, new.node, life));
                }
                // The row remains: another worker may already use the sandbox.
                Err(Fault::Stale) => return Err(Error::Stale),
                Err(fault) => {
                    if matches!(fault, Fault::Unavailable(_)) {
                        // Another node may be there for the next attempt.
                        self.sandboxes.nodes.answers(new.node).await;
                    }
                    self.end_row(id).await?;
                    // It may still have been the last one that used the disk.
                    past.sandboxes.push(id);
                    tracing::warn!(session.id = %session, attempt, %fault, "a sandbox did not start");
                    if attempt >= SANDBOX_START_ATTEMPTS_MAX {
                        return Err(Error::Unavailable(fault.to_string()));
                    }
                    failed = Some(fault.to_string());
                    tokio::time::sleep(BACKOFF.delay(attempt, self.sandboxes.journal.origin())).await;
                }
            }
        }
        unreachable!("the loop above only ends by returning")
    }

    /// Creates the sandbox and restores its files from the newest checkpoint whose blob exists. A failure
    /// leaves no sandbox, except for `Stale`: then another worker owns it.
    async fn fill(&self, sandbox: &dyn Sandbox, spec: &Spec, from: &[Checkpoint]) -> Result<Filled, Fault> {
        let mut spec = spec.clone();
        let mut from = from.iter();
        let session = self.blobs_of_session();
        loop {
            spec.restores = from.len() > 0;
            let next = from.next();
            let fetch = async {
                match next {
                    Some(next) => {
                        Some(checkpoint::fetch(&self.sandboxes.blobs, &session, &next.digest).await)
                    }
                    None => None,
                }
            };
            // Fetched while the sandbox is created; loaded only after all bytes have arrived.
            let create = sandbox.create(&spec, self.fence.epoch);
            let (files, fetched) = match select(pin!(create), pin!(fetch)).await {
                Either::Left((files, _)) if files != Ok(Files::Fresh) => (files?, None),
                Either::Left((files, fetch)) => (files?, fetch.await),
                Either::Right((fetched, create)) => (create.await?, fetched),
            };
            let Some((checkpoint, fetched)) = next.zip(fetched).filter(|_| files == Files::Fresh) else {
                return Ok(Filled { restored: None, files });
            };
            let started = Instant::now();
            let loaded =
                async { checkpoint::load(sandbox, self.sandbox_fence(spec.sandbox), fetched?).await };
            match loaded.await {
                Ok(()) => {
                    return Ok(Filled { restored: Some((checkpoint.clone(), started.elapsed())), files });
                }
                // The worker that owns it now destroys it, because the restore is incomplete.
                Err(Fault::Stale) => return Err(Fault::Stale),
                Err(fault) => {
                    sandbox.destroy(spec.sandbox).await?;
                    if !matches!(fault, Fault::NotFound(_)) {
                        return Err(fault);
                    }
                    metrics::counter!("sojourn_blobs_lost_total", "kind" => "checkpoint").increment(1);
                    tracing::error!(checkpoint.id = %checkpoint.checkpoint, %fault, "a checkpoint cannot be restored");
                }
            }
        }
    }
}

/// Events of a new sandbox: creation, restored checkpoint, lost files.
fn created(id: SandboxId, duration_ms: u64, filled: &Filled, past: &EndedSandboxes) -> Vec<Body> {
    let mut bodies = vec![Body::SandboxCreated { sandbox_id: id, duration_ms }];
    if let Some((checkpoint, took)) = &filled.restored {
        bodies.push(Body::SandboxCheckpointRestored {
            sandbox_id: id,
            checkpoint_id: checkpoint.checkpoint,
            duration_ms: took.as_millis() as u64,
        });
    }
    let restored = filled.restored.as_ref().map(|(checkpoint, _)| checkpoint);
    let has_all = filled.files == Files::Kept
        || !past.was_used
        || restored.is_some_and(|restored| past.checkpoint == Some(restored.checkpoint));
    if !has_all {
        bodies.push(Body::SandboxFilesLost {
            sandbox_id: id,
            since: restored.map(|checkpoint| checkpoint.created_at),
        });
    }
    bodies
}
