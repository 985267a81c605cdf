//! One job under one lease: a turn from its claim to its yield, or a clean-up.

use std::{sync::Arc, time::Duration};

use serde_json::Map;
use tokio::sync::watch;

use super::{
    REST, Worker,
    hands::Hands,
    ports::{LeasedJournal, LeasedTools},
};
use crate::{
    base::{SecretString, limit::TURN_ATTEMPTS_MAX},
    domain::{
        Actor, Body, Session, Status, TenantId, TurnId,
        event::{Draft, Outcome, TurnCompleted},
        turn::{TurnError, YieldReason},
    },
    harness::{self, Halt, Journal as _, Model, Signals, Tools as _},
    journal::TurnWriter,
    model::{Connection, ModelName, NoModel},
    queue::{Lease, State},
    store::{self, agent::Revision, hint::Hint, job::Kind},
};

/// Works on a job. Returns what became of it, in a word for the log.
pub(super) async fn run(
    worker: &Worker,
    lease: Lease,
    draining: watch::Receiver<bool>,
) -> Result<&'static str, store::Error> {
    match lease.claimed().kind {
        Kind::Cleanup => worker.clean_up(lease).await,
        Kind::Turn => run_turns(worker, lease, draining).await,
    }
}

async fn run_turns(
    worker: &Worker,
    lease: Lease,
    draining: watch::Receiver<bool>,
) -> Result<&'static str, store::Error> {
    loop {
        let claimed = *lease.claimed();
        let session = worker.store.load_session(claimed.tenant, claimed.session).await?;
        let turn = match (&session.running, &session.queued) {
            _ if session.status == Status::Archived => None,
            (Some(running), _) => Some((running.id, running.attempt + i32::from(claimed.taken_over))),
            (None, Some(queued)) => Some((queued.id, 1)),
            (None, None) => None,
        };
        let Some((turn, attempt)) = turn else {
            lease.finish().await?;
            return Ok("nothing was pending");
        };
        let writer = worker.journal.writer(lease.fence(), turn);
        match run_turn(worker, &lease, &session, writer, attempt, &draining).await {
            Ok(()) => {
                // The end of the turn gave the job back; more input may wait.
                worker.hints.send(Hint::Job);
                return Ok("the turn ended");
            }
            Err(Halt::Moved) => {}
            Err(Halt::Stale) => return Ok("the lease was lost"),
            Err(Halt::Drained) => {
                lease.release(Duration::ZERO).await?;
                worker.hints.send(Hint::Job);
                return Ok("handed back");
            }
            Err(Halt::Wait(delay)) => {
                lease.release(delay).await?;
                return Ok("waits");
            }
            Err(Halt::Unavailable(reason)) => {
                tracing::warn!(session.id = %claimed.session, turn.id = %turn, reason, "a turn cannot go on yet");
                lease.release(REST).await?;
                return Ok("given back");
            }
        }
    }
}

async fn run_turn(
    worker: &Worker,
    lease: &Lease,
    session: &Session,
    writer: TurnWriter,
    attempt: i32,
    draining: &watch::Receiver<bool>,
) -> Result<(), Halt> {
    let turn = writer.turn();
    if attempt > TURN_ATTEMPTS_MAX {
        let message =
            format!("the turn was interrupted {TURN_ATTEMPTS_MAX} times; steer the session to try again");
        return end_early(worker, &writer, RECOVERY_EXHAUSTED, message).await;
    }
    let prepared = match prepare(worker, lease.fence().tenant, session, turn, attempt).await? {
        Ok(prepared) => prepared,
        Err((code, message)) => return end_early(worker, &writer, code, message).await,
    };
    let (turn, tools) = prepared;
    let signals = signals(lease.state(), draining.clone(), writer.turn());
    let hands = Hands::new(worker.clone(), lease.fence(), writer.clone());
    let tools = LeasedTools::new(worker.catalogue.clone(), hands, tools.as_deref());
    let journal = LeasedJournal(writer);
    let origin = worker.journal.origin();
    let ports =
        harness::Ports { journal: &journal, tools: &tools, origin, signals: signals.receiver.clone() };
    tokio::select! {
        ended = harness::run(turn, ports) => ended,
        () = signals.follow() => unreachable!("signals are followed for ever"),
    }
}

/// The lease's state and the drain, as the harness reads them.
struct Follow {
    lease: watch::Receiver<State>,
    draining: watch::Receiver<bool>,
    turn: TurnId,
    sender: watch::Sender<Signals>,
    receiver: watch::Receiver<Signals>,
}

fn signals(lease: watch::Receiver<State>, draining: watch::Receiver<bool>, turn: TurnId) -> Follow {
    let (sender, receiver) = watch::channel(Signals::default());
    Follow { lease, draining, turn, sender, receiver }
}

impl Follow {
    async fn follow(&self) {
        let (mut lease, mut draining) = (self.lease.clone(), self.draining.clone());
        loop {
            let state = *lease.borrow_and_update();
            let signals = Signals {
                lost: state.lost,
                cancel: state.cancel_turn == Some(self.turn),
                drain: *draining.borrow_and_update(),
            };
            self.sender.send_if_modified(|held| std::mem::replace(held, signals) != signals);
            let changed = async {
                tokio::select! {
                    changed = lease.changed() => changed.is_ok(),
                    changed = draining.changed() => changed.is_ok(),
                }
            };
            if !changed.await {
                // The lease table is gone with the process; nothing more will come.
                std::future::pending::<()>().await;
            }
        }
    }
}

type Prepared = (harness::Turn, Option<Vec<String>>);

/// What the turn is run with, or why it cannot start.
async fn prepare(
    worker: &Worker,
    tenant: TenantId,
    session: &Session,
    turn: TurnId,
    attempt: i32,
) -> Result<Result<Prepared, (&'static str, String)>, Halt> {
    let Some(snapshot) = &session.created.agent_snapshot else {
        return Ok(Err(("no_agent", "the session has no agent".to_owned())));
    };
    let revision: Revision =
        worker.store.load_revision(tenant, snapshot.revision_id).await.map_err(unavailable)?;
    let name: ModelName = match snapshot.model.parse() {
        Ok(name) => name,
        Err(NoModel::BadName(reason) | NoModel::BadCredential(reason)) => {
            return Ok(Err(("model_unknown", reason)));
        }
        Err(NoModel::NoCredential { provider }) => return Ok(Err(("no_credential", provider))),
    };
    let credential = match session.created.credential_id {
        None => None,
        Some(credential) => match worker.store.open_credential(tenant, credential).await {
            Ok(open) => Some(connection(open)),
            Err(store::Error::NotFound) => {
                let message = "the credential that the session pinned was deleted".to_owned();
                return Ok(Err(("no_credential", message)));
            }
            Err(error) => return Err(unavailable(error)),
        },
    };
    let model: Arc<dyn Model> = match worker.providers.model(&name, credential.as_ref()) {
        Ok(model) => model,
        Err(NoModel::BadName(reason)) => return Ok(Err(("model_unknown", reason))),
        Err(error @ (NoModel::NoCredential { .. } | NoModel::BadCredential(_))) => {
            return Ok(Err(("no_credential", error.to_string())));
        }
    };
    let turn = harness::Turn {
        id: turn,
        attempt,
        objects: name.provider == "scripted",
        model,
        model_name: name.model,
        prompt: revision.prompt,
        options: snapshot.model_options.clone(),
    };
    Ok(Ok((turn, snapshot.tools.clone())))
}

fn connection(open: store::credential::OpenCredential) -> Connection {
    let key: SecretString = open.key;
    Connection { provider: open.provider, base_url: open.base_url.and_then(|url| url.parse().ok()), key }
}

/// The code of a turn that was given up after too many crashes.
const RECOVERY_EXHAUSTED: &str = "recovery_exhausted";

/// Ends a turn that cannot be run: what is open is settled, and the session is
/// steerable; failed, when nothing was done or trying again did not help.
async fn end_early(
    worker: &Worker,
    writer: &TurnWriter,
    code: &'static str,
    message: String,
) -> Result<(), Halt> {
    let journal = LeasedJournal(writer.clone());
    let log = journal.log().await?;
    let origin = worker.journal.origin();
    let draft = |body: Body| Draft {
        id: origin.id(),
        actor: Actor::system(),
        level: body.level(),
        turn_id: Some(writer.turn()),
        step_id: None,
        refs: Map::new(),
        body,
    };
    let open = harness::history::open_calls(&log, writer.turn());
    let hands = Hands::new(worker.clone(), writer.fence(), writer.clone());
    let tools = LeasedTools::new(worker.catalogue.clone(), hands, None);
    for call in &open {
        // A command that an earlier worker left must not go on beside the next turn.
        tools.cancel(call).await;
    }
    let mut drafts: Vec<_> = open
        .into_iter()
        .map(|call| {
            draft(Body::ToolResult {
                call_id: call.call_id,
                tool: call.tool,
                output: "The turn ended before this call could be settled; its outcome is unknown."
                    .to_owned(),
                is_error: true,
                outcome: Outcome::Unknown,
                duration_ms: 0,
            })
        })
        .collect();
    let own: Vec<_> = log.iter().filter(|event| event.draft.turn_id == Some(writer.turn())).collect();
    let did_something = own.iter().any(|event| matches!(event.draft.body, Body::StepCompleted(_)));
    drafts.push(draft(Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id: writer.turn(),
        yield_reason: YieldReason::Error,
        result_event_id: None,
        usage: crate::domain::delta::Delta::of(own.iter().map(|event| &event.draft)).usage,
        active_seconds: 0,
        error: Some(TurnError { code: code.to_owned(), message }),
        limit: None,
        failed: code == RECOVERY_EXHAUSTED || !did_something,
    }))));
    journal.record(drafts).await.map(drop)
}

pub(super) fn unavailable(error: store::Error) -> Halt {
    Halt::Unavailable(error.to_string())
}
