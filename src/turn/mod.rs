//! One leased turn: checks, preparation, the harness over the ports, its end.
//!
//! Called by `worker` with a lease; calls `harness` and implements its ports over the log writer,
//! the leased sandbox and the catalogue of tools.

mod child_sessions;
mod elicitation;
mod end_early;
mod halt;
mod journal;
mod kept_drafts;
mod long_result;
mod mcp;
mod mcp_access;
mod mcp_server;
mod mcp_tools;
mod models;
mod pinned_tools;
mod preflight;
mod services;
mod signals;
mod spans;
mod tools;

use std::sync::Arc;

use tokio::sync::watch;
use tracing::Instrument;

use crate::{
    domain::{
        OrgId, Session, TurnId,
        price::{SandboxSize, Tariff},
        skill,
        source::told,
    },
    harness::{self, Halt},
    journal::{ReadFold, Writer},
    lifecycle::{EgressPolicy, LeasedSandbox, SandboxSpec, Sandboxes},
    mcp::Clients,
    model::{Connection, ModelName, NoModel, Providers},
    net,
    store::{self, agent::Revision, credential::OpenCredential, job::LeaseState},
    tool::Catalog,
};

pub(crate) use halt::unavailable;
use journal::LeasedJournal;
pub(crate) use kept_drafts::KeptDrafts;
use pinned_tools::PinnedTools;
use signals::SignalSource;
use spans::TracedTools;
use tools::LeasedTools;

pub(crate) use end_early::{RECOVERY_EXHAUSTED, end_early};
pub(crate) use preflight::Refusal;

/// Sandboxes, model providers and tools of a worker's turns. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Runtime {
    pub sandboxes: Sandboxes,
    pub providers: Arc<Providers>,
    pub catalogue: Catalog,
    pub mcp: Clients,
}

/// A turn that is ready to run under a lease.
pub(crate) struct LeasedTurn {
    turn: harness::Turn,
    writer: Writer,
    kept: KeptDrafts,
    agent: PinnedTools,
    read: ReadFold,
    sandbox: Arc<LeasedSandbox>,
    /// Whether its `turn.started` is in the log.
    started: watch::Sender<bool>,
}

/// A turn and its attempt, from 1.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub turn: TurnId,
    pub number: i32,
    /// Receives the events of an append that failed.
    pub kept: KeptDrafts,
}

impl Runtime {
    /// Returns why the queued turn of `session` may not start, if a check fails.
    ///
    /// # Errors
    /// `Unavailable` when the database is unreachable.
    pub(crate) async fn refusal(&self, org: OrgId, session: &Session) -> Result<Option<Refusal>, Halt> {
        Ok(preflight::check(&self.sandboxes.store, org, session).await?.err())
    }

    /// Prepares a turn of `session`: checks, agent, model, sandbox and the fold of the log. The inner `Err` refuses it.
    ///
    /// # Errors
    /// `Unavailable` when the database or a blob is unreachable.
    pub(crate) async fn prepare(
        &self,
        session: &Session,
        writer: &Writer,
        attempt: &Attempt,
    ) -> Result<Result<LeasedTurn, Refusal>, Halt> {
        // Both reads at once: the request to the model leaves one round trip sooner.
        let (prepared, read) = tokio::join!(
            self.prepare_parts(writer.fence().org, session, attempt),
            writer.fold(reads_objects(session))
        );
        let read: ReadFold = read.map_err(unavailable)?;
        let Parts { turn, agent, spec, policy } = match prepared? {
            Ok(parts) => parts,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let sandbox = self.sandboxes.lease(writer.clone(), spec, policy);
        let (writer, kept) = (writer.clone(), attempt.kept.clone());
        let is_started = session.running.as_ref().is_some_and(|running| running.id == attempt.turn);
        let started = watch::Sender::new(is_started);
        Ok(Ok(LeasedTurn { turn, writer, kept, agent, read, sandbox, started }))
    }

    async fn prepare_parts(
        &self,
        org: OrgId,
        session: &Session,
        attempt: &Attempt,
    ) -> Result<Result<Parts, Refusal>, Halt> {
        let store = &self.sandboxes.store;
        let Some(snapshot) = &session.created.agent_snapshot else {
            return Ok(Err(Refusal::error("no_agent", "the session has no agent")));
        };
        let credential = async {
            match session.created.credential_id {
                None => Ok(None),
                Some(credential) => store.open_credential(org, credential).await.map(Some),
            }
        };
        let revision = store.load_revision(org, snapshot.revision_id);
        let (checked, revision, credential) =
            tokio::join!(preflight::check(store, org, session), revision, credential);
        let checked = match checked? {
            Ok(checked) => checked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let revision: Revision = revision.map_err(unavailable)?;
        let name: ModelName = match snapshot.model.parse() {
            Ok(name) => name,
            Err(NoModel::BadName(reason) | NoModel::BadCredential(reason)) => {
                return Ok(Err(Refusal::error("model_unknown", reason)));
            }
            Err(NoModel::NoCredential { provider }) => {
                return Ok(Err(Refusal {
                    rejects: session.running.is_none(),
                    ..Refusal::error("no_credential", provider)
                }));
            }
        };
        let credential = match credential {
            Ok(open) => open.map(connection),
            Err(store::Error::NotFound) => {
                let message = "the credential that the session pinned was deleted";
                return Ok(Err(Refusal {
                    rejects: session.running.is_none(),
                    ..Refusal::error("no_credential", message)
                }));
            }
            Err(error) => return Err(unavailable(error)),
        };
        let models =
            match self.models(org, snapshot, &name, credential.as_ref(), checked.prices.as_ref()).await? {
                Ok(models) => models,
                Err(refusal) => return Ok(Err(refusal)),
            };
        let (spec, policy) =
            match SandboxSpec::read(&self.sandboxes, org, session).await.map_err(unavailable)? {
                Ok(read) => read,
                Err((code, message)) => return Ok(Err(Refusal::error(code, message))),
            };
        let turn = harness::Turn {
            id: attempt.turn,
            attempt: attempt.number,
            models,
            prompt: revision.prompt + &told(&session.created.sources) + &skill::told(&snapshot.pinned_skills),
            loops: snapshot.settings.doom_loop.unwrap_or_default(),
            output_repairs: None,
            compaction: snapshot.settings.compaction.clone().unwrap_or_default(),
            agent_seq: session.agent_head,
            size: size_of(&spec),
            is_unbound: checked.is_unbound,
        };
        Ok(Ok(Parts { turn, agent: PinnedTools::of(snapshot, session), spec, policy }))
    }
}

impl Runtime {
    /// What the tools of a turn need beside its sandbox.
    fn tool_parts(&self) -> (Catalog, Clients) {
        (self.catalogue.clone(), self.mcp.clone())
    }
}

/// Parts of a prepared turn.
struct Parts {
    turn: harness::Turn,
    agent: PinnedTools,
    spec: SandboxSpec,
    policy: EgressPolicy,
}

impl LeasedTurn {
    /// The sandbox of the lease; callers' operations are served in it beside the turn.
    pub(crate) fn sandbox(&self) -> Arc<LeasedSandbox> {
        Arc::clone(&self.sandbox)
    }

    /// Waits until `turn.started` is in the log. Nothing that carries the id of the turn is recorded before it.
    pub(crate) fn started(&self) -> impl Future<Output = ()> + use<> {
        let mut started = self.started.subscribe();
        async move {
            if started.wait_for(|is_started| *is_started).await.is_err() {
                // It ended without a start.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The tariff of the turn.
    pub(crate) fn tariff(&self) -> &Tariff {
        &self.turn.models[0].tariff
    }

    /// Runs the turn until it yields.
    ///
    /// # Errors
    /// Every [`Halt`] leaves the turn open for the next worker that leases the session.
    pub(crate) async fn run(
        self,
        runtime: &Runtime,
        session: &Session,
        lease: watch::Receiver<LeaseState>,
        draining: watch::Receiver<bool>,
    ) -> Result<(), Halt> {
        let Self { mut turn, writer, kept, mut agent, read, sandbox, started } = self;
        if let Some(schema) = read.fold.turn(turn.id).and_then(|own| own.output_schema.clone()) {
            agent.settings.output_schema = Some(schema);
        }
        let needs_output = agent.settings.output_schema.is_some();
        turn.output_repairs = needs_output.then(|| agent.settings.output_repairs());
        let org = writer.fence().org;
        let signals = SignalSource::new(lease, draining, turn.id);
        let leased = LeasedTools::new(
            runtime.tool_parts(),
            &runtime.sandboxes,
            &writer,
            Arc::clone(&sandbox),
            agent,
            (&read.fold, turn.id),
        );
        let tools = TracedTools(&leased);
        let agent = session.created.agent_id;
        let journal =
            LeasedJournal { writer, sandbox, agent, kept, started, files: runtime.sandboxes.files.clone() };
        let origin = runtime.sandboxes.journal.origin();
        let ports =
            harness::Ports { journal: &journal, tools: &tools, origin, signals: signals.receiver.clone() };
        let span = spans::turn(session, &turn);
        let ReadFold { fold, stored_to } = read;
        let ended = tokio::select! {
            ended = net::for_org(org, harness::run(turn, ports, session.clone(), fold)).instrument(span) => ended,
            () = signals.follow() => unreachable!("signals are followed forever"),
        };
        leased.close().await;
        let fold = ended?;
        journal.writer.keep_fold(ReadFold { fold, stored_to }).await;
        Ok(())
    }
}

/// The priced resources of a sandbox.
fn size_of(spec: &SandboxSpec) -> SandboxSize {
    SandboxSize { cpu_millis: spec.limits.cpu_millis, memory_bytes: spec.limits.memory_bytes }
}

/// Whether the session's model reads input objects as JSON.
fn reads_objects(session: &Session) -> bool {
    let snapshot = session.created.agent_snapshot.as_ref();
    snapshot
        .and_then(|agent| agent.model.parse().ok())
        .is_some_and(|name: ModelName| name.provider == "scripted")
}

fn connection(open: OpenCredential) -> Connection {
    let OpenCredential { provider, base_url, key, key_header, headers, .. } = open;
    Connection { provider, base_url: base_url.and_then(|url| url.parse().ok()), key, key_header, headers }
}
