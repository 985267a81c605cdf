//! The way out of a session's sandbox, open for as long as its lease is worked under.
//!
//! Made by `slot` with the turn, by `operate` for callers; opened by `leased_sandbox` when a sandbox is attached. Its
//! decisions are written under the turn's lease, so a sandbox whose session rests, or
//! is held elsewhere, reaches nothing: nobody could say that it did.

use std::sync::Arc;

use async_trait::async_trait;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    base::Origin,
    domain::{Actor, Body, event::Draft},
    egress::{
        Authority, Decision, FetchFault, Fetched, Grant, Granted, Log, Lost, Parts, Policy, Proxy,
        Registries, Secrets, Verdict,
    },
    journal::Writer,
    net::Dialer,
    sandbox::{EgressSocket, Fault, Sandbox, SandboxFence},
};

/// The last part of the path that the sandbox's variables name.
const CERTIFICATES_FILE: &str = "certificates.pem";

/// How sandboxes reach the world from this process.
#[derive(Clone, Debug)]
pub struct Network {
    pub dialer: Dialer,
    /// What sandboxes trust beside the public roots: the operator's own authorities.
    pub extra_roots: Arc<[CertificateDer<'static>]>,
    /// Where packages come from.
    pub registries: Arc<Registries>,
}

/// What a session's environment lets out.
#[derive(Default)]
pub(crate) struct EgressPolicy {
    pub policy: Policy,
    pub secrets: Secrets,
}

/// The proxy of one lease.
pub(crate) struct EgressAttachment {
    proxy: Arc<Proxy>,
    network: Network,
    origin: Origin,
    opened: mpsc::Sender<(EgressSocket, Authority)>,
    listeners: Mutex<mpsc::Receiver<(EgressSocket, Authority)>>,
}

impl EgressAttachment {
    pub(crate) fn new(network: Network, writer: Writer, origin: &Origin, allowed: EgressPolicy) -> Self {
        let EgressPolicy { policy, secrets } = allowed;
        let log = Arc::new(TurnLog { writer, origin: origin.clone() });
        let parts = Parts { policy, secrets, dialer: network.dialer.clone(), log };
        let (opened, listeners) = mpsc::channel(1);
        let listeners = Mutex::new(listeners);
        let proxy = Proxy::new(parts, CancellationToken::new());
        Self { proxy, network, origin: origin.clone(), opened, listeners }
    }

    /// Joins a sandbox to the proxy, in place of one before it.
    pub(crate) async fn open(&self, sandbox: &dyn Sandbox, sandbox_fence: SandboxFence) -> Result<(), Fault> {
        let egress_socket = sandbox.egress_socket(sandbox_fence).await?;
        let failed =
            |error: std::io::Error| Fault::Unavailable(format!("its way out cannot be opened: {error}"));
        let authority = Authority::open(&egress_socket.private, &self.origin).map_err(failed)?;
        egress_socket
            .show(CERTIFICATES_FILE, &authority.bundle(&self.network.extra_roots))
            .map_err(failed)?;
        // Nobody serves any more when the turn is over: then nobody needs it either.
        let _ = self.opened.send((egress_socket, authority)).await;
        Ok(())
    }

    /// Serves the sandbox that was opened last, for ever.
    pub(crate) async fn run(&self) {
        let mut listeners = self.listeners.lock().await;
        let mut next = listeners.recv().await;
        while let Some((egress_socket, authority)) = next {
            tokio::select! {
                () = Arc::clone(&self.proxy).serve(egress_socket.listener, authority) => next = listeners.recv().await,
                another = listeners.recv() => next = another,
            }
        }
        std::future::pending().await
    }

    /// Lets a clone through, until the answer is dropped.
    pub(crate) fn allow(&self, grant: Grant) -> Granted {
        self.proxy.allow(grant)
    }

    /// Decisions that were counted and not written yet.
    pub(crate) fn take(&self) -> Taken {
        Taken(self.proxy.take())
    }

    pub(crate) fn restore(&self, taken: &Taken) {
        self.proxy.restore(&taken.0);
    }

    /// Fetches a page for a tool, under the rules of the sandbox.
    pub(crate) async fn fetch(&self, url: &str) -> Result<Fetched, FetchFault> {
        self.proxy.fetch(url).await
    }

    /// Lets nothing through any more; what was under way is written or refused.
    pub(crate) async fn close(&self) {
        self.proxy.close().await;
    }

    pub(crate) fn drafts(&self, taken: &Taken, writer: &Writer) -> Vec<Draft> {
        drafts(&taken.0, writer, &self.origin)
    }
}

impl Drop for EgressAttachment {
    fn drop(&mut self) {
        self.proxy.stop();
    }
}

/// What was taken from the counts, to be written or restored.
pub(crate) struct Taken(Vec<(Decision, u64)>);

struct TurnLog {
    writer: Writer,
    origin: Origin,
}

#[async_trait]
impl Log for TurnLog {
    async fn write(&self, decisions: Vec<(Decision, u64)>) -> Result<(), Lost> {
        let drafts = drafts(&decisions, &self.writer, &self.origin);
        self.writer.record(drafts).await.map(drop).map_err(|halted| {
            tracing::warn!(%halted, "a decision about egress could not be written; it is refused");
            Lost
        })
    }
}

fn drafts(decisions: &[(Decision, u64)], writer: &Writer, origin: &Origin) -> Vec<Draft> {
    let draft = |(decision, count): &(Decision, u64)| {
        let body = body(decision.clone(), *count);
        Draft {
            id: origin.id(),
            actor: Actor::system(),
            level: body.level(),
            turn_id: writer.turn(),
            step_id: None,
            refs: serde_json::Map::new(),
            body,
        }
    };
    decisions.iter().map(draft).collect()
}

fn body(decision: Decision, count: u64) -> Body {
    let Decision { host, port, method, verdict } = decision;
    match verdict {
        Verdict::Allowed { manner, secrets } => {
            Body::EgressAllowed { host, port, method, manner: manner.word().to_owned(), secrets, count }
        }
        Verdict::Denied(reason) => {
            Body::EgressDenied { host, port, method, reason: reason.word().to_owned(), count }
        }
    }
}
