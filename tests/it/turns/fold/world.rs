//! A journal on its own database, and the comparison of row and fold.

use std::time::Duration;

use serde_json::Map;
use sojourn::{
    base::{Origin, limit::NODE_HEARTBEAT_TIMEOUT, seal::MasterKey},
    blob::Blobs,
    domain::{
        Actor, AgentId, Event, OrgId, Session, SessionId, Turn,
        apply::fold,
        context::ContextChange,
        conversation::ModelOptions,
        decide::{Command, Input, NewSession, Stamp},
        session::{AgentSnapshot, Created, Limits, Source},
    },
    journal::{Error, Journal},
    queue::{Lease, Queue},
    store::{
        Store, Urls, job::Claimant, migrate, notification::Notifications, pool::PoolSizes, process::Process,
        start::StartWait,
    },
};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::database::Database;

/// A journal without a service around it.
pub struct World {
    pub journal: Journal,
    pub store: Store,
    pub queue: Queue,
    pub origin: Origin,
    pub org: OrgId,
    _blobs: TempDir,
    pub database: Database,
}

impl World {
    pub async fn open() -> Self {
        let database = Database::create().await;
        let origin = Origin::system();
        let urls = Urls {
            owner: database.owner_url.clone(),
            app: database.app_url.clone(),
            system: database.system_url.clone(),
        };
        let master = MasterKey::generate(&origin);
        migrate::migrate(&urls, master.clone(), StartWait::NONE).await.expect("a schema");
        let store = Store::open(&urls, PoolSizes { app: 4, system: 4 }, master).expect("two pools");
        let blobs = tempfile::tempdir().expect("a directory");
        let notifications = Notifications::new(Process::alone(Uuid::from_u128(1)));
        let place = Blobs::local(blobs.path()).expect("a blob store");
        let journal = Journal::new(store.clone(), place, notifications.clone(), origin.clone());
        let claimant = Claimant {
            worker: Uuid::from_u128(1),
            nodes: Uuid::from_u128(2).into(),
            // Expires at once: the next claim takes over.
            lease: Duration::ZERO,
            node_silence: NODE_HEARTBEAT_TIMEOUT,
        };
        let queue = Queue::new(store.clone(), notifications, origin.clone(), claimant);
        let org = origin.id();
        store.create_org(org, "test", &origin).await.expect("an organization");
        Self { journal, store, queue, origin, org, _blobs: blobs, database }
    }

    /// Claims jobs, also those whose lease has expired.
    pub async fn claim(&self, jobs_max: usize) -> Vec<Lease> {
        self.queue.ready_due_jobs().await.expect("a look");
        self.queue.claim(jobs_max as i64).await.expect("a claim").leases
    }

    pub fn stamp(&self) -> Stamp {
        Stamp { actor: Actor::system(), origin: self.origin.clone() }
    }

    pub async fn create(&self, input: Option<Input>) -> SessionId {
        let id = self.origin.id();
        let snapshot = AgentSnapshot {
            revision_id: self.origin.id(),
            revision: 1,
            name: "test".to_owned(),
            prompt_hash: String::new(),
            model: "scripted/noop".to_owned(),
            model_options: ModelOptions::default(),
            runtime: "builtin".to_owned(),
            tools: None,
            permissions: Default::default(),
            settings: Default::default(),
            pinned_skills: Vec::new(),
        };
        let agent: AgentId = self.origin.id();
        let created = Created {
            agent_id: Some(agent),
            credential_id: None,
            agent_snapshot: Some(snapshot),
            environment: None,
            sources: Vec::new(),
            title: None,
            key: None,
            client_id: None,
            slug: None,
            metadata: Map::new(),
            limits: Limits::default(),
            source: Source::Api,
            parent_session_id: None,
        };
        let mut unit = self.journal.begin(self.org).await.expect("a unit");
        let new = NewSession { created, context: ContextChange::default(), input };
        let creation = unit.decide_session(id, new, &self.stamp()).expect("a decision");
        unit.create(creation).await.expect("its first events");
        unit.commit().await.expect("a commit");
        id
    }

    pub async fn command(&self, id: SessionId, command: Command) -> Result<(), Error> {
        let mut unit = self.journal.begin(self.org).await?;
        match command {
            Command::Archive => unit.archive(id, &self.stamp()).await?,
            command => unit.execute(id, command, &self.stamp()).await?,
        };
        unit.commit().await
    }

    pub async fn log(&self, id: SessionId) -> Vec<Event> {
        let session = self.store.load_session(self.org, id).await.expect("a row");
        let (mut export, mut text) = (self.journal.export(self.org, session), String::new());
        while let Some(lines) = export.next().await.expect("lines") {
            text.push_str(std::str::from_utf8(&lines).expect("UTF-8"));
        }
        let lines: Vec<_> = text.lines().collect();
        let events = &lines[1..lines.len() - 1];
        events.iter().map(|line| serde_json::from_str(line).expect("an event")).collect()
    }

    /// Number of commits that wrote events of this type, and number of these events.
    pub async fn commits(&self, kind: &str) -> (i64, i64) {
        let mut connection = PgConnection::connect(&self.database.system_url).await.expect("a connection");
        let counts = sqlx::query_as("select count(distinct xmin::text), count(*) from event where type = $1")
            .bind(kind)
            .fetch_one(&mut connection)
            .await
            .expect("two counts");
        connection.close().await.expect("a clean end");
        counts
    }

    /// Input tokens and micro-USD of all models and sessions, from the usage rows of the sessions.
    pub async fn ledger(&self) -> (i64, i64) {
        let mut connection = PgConnection::connect(&self.database.system_url).await.expect("a connection");
        let text = "select sum(input_tokens)::bigint, sum(model_micros)::bigint from session_model";
        let sums = sqlx::query_as(text).fetch_one(&mut connection).await.expect("two sums");
        connection.close().await.expect("a clean end");
        sums
    }

    /// The property: session row and turn rows equal the fold of the log, without a gap.
    pub async fn compare(&self, id: SessionId) -> Session {
        let log = self.log(id).await;
        let seqs: Vec<_> = log.iter().map(|event| event.seq).collect();
        assert_eq!(seqs, (1..=log.len() as i64).collect::<Vec<_>>());
        let (session, mut turns) = fold(id, &log).expect("it begins with session.created");
        let row = self.store.load_session(self.org, id).await.expect("a row");
        assert_eq!(row, session, "the row is not the fold of its log");
        turns.extend(session.running.iter().chain(&session.queued).cloned());
        let mut tx = self.store.begin(self.org).await.expect("a transaction");
        let mut rows = tx.turns(id, None, 1_000).await.expect("turns");
        let by_id = |turn: &Turn| turn.id.uuid();
        turns.sort_by_key(by_id);
        rows.sort_by_key(by_id);
        assert_eq!(rows, turns, "the turns are not the fold of the log");
        session
    }
}
