//! Leased turns in this process: real sessions, real leases and the real path to the log, without a model or
//! a caller.

use std::{sync::Arc, time::Duration};

use serde_json::Map;
use sojourn::{
    base::{Origin, limit::NODE_HEARTBEAT_TIMEOUT},
    blob::Blobs,
    domain::{
        Actor, Body, OrgId, SessionId,
        context::ContextChange,
        conversation::ModelOptions,
        decide::{Input, NewSession, Stamp},
        event::Draft,
        session::{AgentSnapshot, Created, Limits, Source},
    },
    journal::{Journal, Writer},
    queue::{Lease, Queue},
    store::{Store, job::Claimant, notification::Notifications, pool::PoolSizes, process::Process},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{Bench, anchor::BODY_BYTES, ground};

/// Modules that a leased turn uses.
pub struct Rig {
    pub store: Store,
    pub journal: Journal,
    pub notifications: Notifications,
    pub org: OrgId,
    queue: Queue,
    origin: Origin,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    leases: Vec<Lease>,
}

/// A session whose turn runs under a lease of this process.
#[derive(Clone)]
pub struct Busy {
    pub session: SessionId,
    pub writer: Writer,
    origin: Origin,
}

impl Rig {
    /// Opens a rig with its own organization.
    pub async fn open(bench: &Bench) -> anyhow::Result<Self> {
        let store = store(bench)?;
        let org = Origin::system().id();
        store.create_org(org, "bench", &Origin::system()).await?;
        bench.ground.unbind().await?;
        Self::on(bench, store, org)
    }

    /// Opens a rig on the organization that the service's processes serve.
    pub async fn beside(bench: &Bench) -> anyhow::Result<Self> {
        let store = store(bench)?;
        let org = store.first_org().await?;
        let org = org.ok_or_else(|| anyhow::anyhow!("no process has created its organization"))?;
        Self::on(bench, store, org)
    }

    fn on(bench: &Bench, store: Store, org: OrgId) -> anyhow::Result<Self> {
        let origin = Origin::system();
        let process = Uuid::from_bytes(origin.bytes());
        let node = Uuid::from_bytes(origin.bytes());
        let notifications =
            Notifications::new(Process { id: process, nodes: Some(node.into()), is_api: false });
        let blobs = Blobs::local(&bench.ground.data_dir.join("blobs"))?;
        let journal = Journal::new(store.clone(), blobs, notifications.clone(), origin.clone());
        let claimant = Claimant {
            worker: process,
            nodes: node.into(),
            lease: Duration::from_secs(15),
            node_silence: NODE_HEARTBEAT_TIMEOUT,
        };
        let queue = Queue::new(store.clone(), notifications.clone(), origin.clone(), claimant);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (kept, until) = (queue.clone(), stop.clone());
        tasks.spawn(async move { kept.keep(until).await });
        let (told, record, until) = (notifications.clone(), store.clone(), stop.clone());
        tasks.spawn(async move { told.publish(&record, until).await });
        let (told, record, until) = (notifications.clone(), store.clone(), stop.clone());
        tasks.spawn(async move { told.keep_process(&record, until).await });
        let (told, record, until) = (notifications.clone(), store.clone(), stop.clone());
        tasks.spawn(async move { told.listen(&record, until).await });
        Ok(Self { store, journal, notifications, org, queue, origin, tasks, stop, leases: Vec::new() })
    }

    /// Creates `count` sessions and starts their turns.
    pub async fn busy(&mut self, count: usize) -> anyhow::Result<Vec<Busy>> {
        for _ in 0..count {
            self.create().await?;
        }
        self.claim(count).await
    }

    /// Claims `count` waiting sessions and starts their turns.
    pub async fn claim(&mut self, count: usize) -> anyhow::Result<Vec<Busy>> {
        let mut busy = Vec::with_capacity(count);
        while busy.len() < count {
            let leases = self.queue.claim((count - busy.len()).min(10) as i64).await?.leases;
            anyhow::ensure!(!leases.is_empty(), "there is nothing more to claim");
            for lease in leases {
                busy.push(self.begin(&lease).await?);
                self.leases.push(lease);
            }
        }
        Ok(busy)
    }

    /// Polls an empty queue.
    pub async fn poll(&self) -> anyhow::Result<()> {
        let claimed = self.queue.claim(10).await?;
        anyhow::ensure!(claimed.leases.is_empty(), "the queue is not empty");
        Ok(())
    }

    /// Closes its sessions, so that no worker finds them.
    pub async fn close(mut self) -> anyhow::Result<()> {
        let stamp = Stamp { actor: Actor::system(), origin: self.origin.clone() };
        for lease in std::mem::take(&mut self.leases) {
            let mut unit = self.journal.begin(self.org).await?;
            unit.archive(lease.claimed().session, &stamp).await?;
            unit.commit().await?;
        }
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.store.close().await;
        Ok(())
    }

    async fn begin(&self, lease: &Lease) -> anyhow::Result<Busy> {
        let claimed = lease.claimed();
        let session = self.store.load_session(claimed.org, claimed.session).await?;
        let turn = session.queued.ok_or_else(|| anyhow::anyhow!("a session without a queued turn"))?;
        let writer = self.journal.writer(lease.fence(), Some(turn.id));
        let busy = Busy { session: session.id, writer, origin: self.origin.clone() };
        let body = Body::TurnStarted {
            turn_id: turn.id,
            input_from_seq: turn.input_from_seq,
            input_to_seq: turn.input_to_seq,
            attempt: 1,
            fee_micros: 0,
            is_retry: false,
            agent_seq: 0,
        };
        busy.writer.record(vec![busy.draft(body)]).await?;
        Ok(busy)
    }

    async fn create(&self) -> anyhow::Result<SessionId> {
        let snapshot = AgentSnapshot {
            revision_id: self.origin.id(),
            revision: 1,
            name: "bench".to_owned(),
            prompt_hash: String::new(),
            model: "scripted/inline".to_owned(),
            model_options: ModelOptions::default(),
            runtime: "builtin".to_owned(),
            tools: None,
            permissions: Default::default(),
            settings: Default::default(),
            pinned_skills: Vec::new(),
        };
        let created = Created {
            agent_id: Some(self.origin.id()),
            credential_id: None,
            agent_snapshot: Some(snapshot),
            environment: None,
            sources: Vec::new(),
            title: None,
            key: None,
            slug: None,
            client_id: None,
            metadata: Map::new(),
            limits: Limits::default(),
            source: Source::Api,
            parent_session_id: None,
        };
        let stamp = Stamp { actor: Actor::system(), origin: self.origin.clone() };
        let input = Some(Input { text: "begin".to_owned(), ..Input::default() });
        let id = self.origin.id();
        let mut unit = self.journal.begin(self.org).await?;
        let new = NewSession { created, context: ContextChange::default(), input };
        let creation = unit.decide_session(id, new, &stamp)?;
        unit.create(creation).await?;
        unit.commit().await?;
        Ok(id)
    }
}

impl Busy {
    /// Appends this many events at once; returns the `seq` of the last.
    pub async fn append(&self, events: usize) -> anyhow::Result<i64> {
        let drafts = (0..events).map(|_| self.draft(thought())).collect();
        let events = self.writer.record(drafts).await?;
        Ok(events.last().map_or(0, |event| event.seq))
    }

    fn draft(&self, body: Body) -> Draft {
        Draft {
            id: self.origin.id(),
            actor: Actor::agent(),
            level: body.level(),
            turn_id: self.writer.turn(),
            step_id: None,
            refs: Map::new(),
            body,
        }
    }
}

/// A body of as many bytes as an anchor's.
fn thought() -> Body {
    Body::AgentThinking { text: "x".repeat(BODY_BYTES - r#"{"text":""}"#.len()) }
}

fn store(bench: &Bench) -> anyhow::Result<Store> {
    Ok(Store::open(&bench.ground.urls, PoolSizes { app: 4, system: 24 }, ground::master())?)
}

/// All sessions append for `span` as fast as they can; returns events per second.
pub async fn drive(busy: &[Busy], events: usize, span: Duration) -> anyhow::Result<f64> {
    use std::sync::atomic::{AtomicU64, Ordering};
    let (done, began) = (Arc::new(AtomicU64::new(0)), tokio::time::Instant::now());
    let mut writers = JoinSet::new();
    for busy in busy {
        let (busy, done) = (busy.clone(), done.clone());
        writers.spawn(async move {
            while began.elapsed() < span {
                busy.append(events).await?;
                done.fetch_add(events as u64, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}
