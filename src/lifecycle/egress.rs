//! Egress attachment of a session's sandbox, open while the session is leased.
//!
//! Created with the [`LeasedSandbox`](super::LeasedSandbox) of a lease, for a turn or for callers'
//! operations; opened when a sandbox is attached. Its decisions are recorded under the lease, so a
//! sandbox whose session is idle or leased elsewhere has no network: its traffic could not be recorded.

use std::sync::Arc;

use async_trait::async_trait;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    base::{Origin, seal::DataKey, shares::Shares},
    domain::{Actor, Body, OrgId, event::Draft},
    egress::{
        Authority, Decision, FetchFault, Fetched, Grant, Granted, Log, Lost, Parts, Policy, Proxy,
        Registries, Secrets, Verdict,
    },
    journal::Writer,
    net::Dialer,
    sandbox::{EgressSocket, Fault, Sandbox, SandboxFence},
};

/// Network access of sandboxes from this process.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub dialer: Dialer,
    /// Certificates of the operator's own authorities, trusted in addition to the public roots.
    pub extra_roots: Arc<[CertificateDer<'static>]>,
    /// Package registries.
    pub registries: Arc<Registries>,
    /// Connections of this process's sandboxes.
    pub connections: Arc<Shares<OrgId>>,
}

/// Network policy and secrets of a session's environment.
#[derive(Default)]
pub(crate) struct EgressPolicy {
    pub policy: Policy,
    pub secrets: Secrets,
}

/// An attached sandbox: its connections, and the authority that it trusts.
type Opened = (EgressSocket, Authority);

/// The proxy of one lease.
pub(crate) struct EgressAttachment {
    proxy: Arc<Proxy>,
    network: Network,
    origin: Origin,
    opened: mpsc::Sender<Opened>,
    listeners: Mutex<mpsc::Receiver<Opened>>,
}

impl EgressAttachment {
    pub(crate) fn new(network: Network, writer: Writer, origin: &Origin, allowed: EgressPolicy) -> Self {
        let EgressPolicy { policy, secrets } = allowed;
        let org = Some(writer.fence().org);
        let log = Arc::new(TurnLog { writer, origin: origin.clone() });
        let connections = Arc::clone(&network.connections);
        let parts = Parts { org, policy, secrets, dialer: network.dialer.clone(), connections, log };
        let (opened, listeners) = mpsc::channel(1);
        let listeners = Mutex::new(listeners);
        let proxy = Proxy::new(parts, CancellationToken::new());
        Self { proxy, network, origin: origin.clone(), opened, listeners }
    }

    /// Attaches a sandbox to the proxy, in place of the previous one. The key of its authority is derived from
    /// `key`, the organization's.
    pub(crate) async fn open(
        &self,
        sandbox: &dyn Sandbox,
        sandbox_fence: SandboxFence,
        key: &DataKey,
    ) -> Result<(), Fault> {
        let secret = key.derive(&format!("egress authority of {}", sandbox_fence.sandbox));
        let authority = Authority::of(&secret, &self.origin)
            .map_err(|error| Fault::Unavailable(format!("its certificates cannot be made: {error}")))?;
        let certificates = authority.bundle(&self.network.extra_roots);
        let egress_socket = sandbox.egress_socket(sandbox_fence, &certificates).await?;
        // A closed channel means that the turn is over: egress is not needed either.
        let _ = self.opened.send((egress_socket, authority)).await;
        Ok(())
    }

    /// Serves the sandbox that was attached last. Never returns.
    pub(crate) async fn run(&self) {
        let mut listeners = self.listeners.lock().await;
        let mut next = listeners.recv().await;
        while let Some((egress_socket, authority)) = next {
            tokio::select! {
                () = Arc::clone(&self.proxy).serve(egress_socket, authority) => next = listeners.recv().await,
                another = listeners.recv() => next = another,
            }
        }
        std::future::pending().await
    }

    /// Allows the requests of a clone until the returned guard is dropped.
    pub(crate) fn allow(&self, grant: Grant) -> Granted {
        self.proxy.allow(grant)
    }

    /// Takes the decisions that were counted and not recorded yet.
    pub(crate) fn take(&self) -> Taken {
        Taken(self.proxy.take())
    }

    /// Puts decisions back that could not be recorded.
    pub(crate) fn restore(&self, taken: &Taken) {
        self.proxy.restore(&taken.0);
    }

    /// Fetches a page for a tool, under the network policy of the sandbox.
    pub(crate) async fn fetch(&self, url: &str) -> Result<Fetched, FetchFault> {
        self.proxy.fetch(url).await
    }

    /// Refuses all further requests; those in progress are recorded or refused.
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

/// Counted decisions, to be recorded or restored.
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
            tracing::warn!(%halted, "an egress decision could not be recorded; the request is refused");
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
