//! Many processes on one database: which of them a notification reaches, and how many connections they open.

use std::{collections::HashSet, pin::pin, time::Duration};

use futures::{FutureExt, future::join_all};
use serde_json::json;
use sojourn::{
    base::{Origin, limit::DELIVERY_SHARDS},
    blob::Blobs,
    domain::{Actor, OrgId, SessionId, decide::Stamp},
    journal::Journal,
    queue::Queue,
    store::{
        Store,
        job::Claimant,
        notification::{Notification, Notifications},
        outbox::Capacity,
        process::Process,
    },
};
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{
    clock::MovedClock,
    service::Ground,
    wait::{WAIT_MAX, wait_for},
};

/// A process that only exchanges notifications.
struct Peer {
    id: Uuid,
    notifications: Notifications,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

fn store(ground: &Ground) -> Store {
    ground.store(4)
}

/// Waits for a notification: these processes do not poll.
async fn soon<T>(waits: impl Future<Output = T>) -> T {
    timeout(WAIT_MAX, waits).await.expect("a notification")
}

fn id() -> Uuid {
    SessionId::uuid(Origin::system().id())
}

impl Peer {
    /// Starts a process; `node` makes it a worker with free slots.
    fn start(store: &Store, node: Option<Uuid>, is_api: bool) -> Self {
        let id = id();
        let notifications = Notifications::new(Process { id, nodes: node.map(Into::into), is_api });
        notifications.set_free_slots(if node.is_some() { 100 } else { 0 });
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let parts = || (notifications.clone(), store.clone(), stop.clone());
        let (told, record, until) = parts();
        tasks.spawn(async move { told.publish(&record, until).await });
        let (told, record, until) = parts();
        tasks.spawn(async move { told.listen(&record, until).await });
        let (told, record, until) = parts();
        tasks.spawn(async move { told.keep_process(&record, until).await });
        Self { id, notifications, stop, tasks }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    /// Waits until each of `peers` has received everything that this process has sent before.
    async fn is_received(&self, peers: &[Peer]) {
        for peer in peers {
            self.notifications.send(Notification::Control(peer.id));
        }
        soon(join_all(peers.iter().map(|peer| peer.notifications.control()))).await;
    }

    /// Whether a wake-up for a job waits here. Takes it.
    fn has_job(&self) -> bool {
        self.notifications.job().now_or_never().is_some()
    }
}

/// A database whose roles have their rights: the first start of a process grants them.
async fn prepared() -> Ground {
    let ground = Ground::new().await;
    ground.serve(&["--role=api"]).await.stop().await;
    ground
}

/// Starts an API process and workers that all know of each other and have nothing to do.
async fn known(store: &Store, nodes: &[Uuid]) -> (Peer, Vec<Peer>) {
    let api = Peer::start(store, None, true);
    let workers: Vec<_> = nodes.iter().map(|node| Peer::start(store, Some(*node), false)).collect();
    // A process that begins to listen wakes all its waits once.
    for peer in workers.iter().chain([&api]) {
        soon(peer.notifications.delivery()).await;
        let _ = (peer.has_job(), peer.notifications.control().now_or_never());
    }
    // Until it knows of workers, a job wakes all of them; then one after the other.
    wait_for("the workers are known", async || {
        // What an attempt before it left.
        for worker in &workers {
            let _ = worker.notifications.control().now_or_never();
        }
        let mut woken = HashSet::new();
        for _ in 0..2 * workers.len() {
            api.notifications.send(Notification::Job { node: None });
            api.is_received(&workers).await;
            let places: Vec<_> = (0..workers.len()).filter(|place| workers[*place].has_job()).collect();
            let [place] = places[..] else { return None };
            woken.insert(place);
        }
        (woken.len() == workers.len()).then_some(())
    })
    .await;
    (api, workers)
}

#[tokio::test]
async fn a_job_wakes_one_worker_that_can_run_it() {
    let ground = prepared().await;
    let store = store(&ground);
    let nodes = [id(), id()];
    let (api, workers) = known(&store, &[nodes[0], nodes[0], nodes[0], nodes[1]]).await;
    for _ in 0..8 {
        api.notifications.send(Notification::Job { node: None });
        api.is_received(&workers).await;
        assert_eq!(workers.iter().filter(|worker| worker.has_job()).count(), 1);
        api.notifications.send(Notification::Job { node: Some(nodes[1]) });
        api.is_received(&workers).await;
        let woken: Vec<_> = workers.iter().map(Peer::has_job).collect();
        assert_eq!(woken, [false, false, false, true], "only the worker of the node");
    }
    api.notifications.send(Notification::Jobs);
    api.is_received(&workers).await;
    assert!(workers.iter().all(Peer::has_job));
    for peer in workers.into_iter().chain([api]) {
        peer.stop().await;
    }
    assert_eq!(ground.count("select count(*) from process").await, 0);
    store.close().await;
}

#[tokio::test]
async fn a_worker_without_a_free_slot_passes_a_job_on() {
    let ground = prepared().await;
    let store = store(&ground);
    let node = id();
    let (api, workers) = known(&store, &[node, node]).await;
    workers[0].notifications.set_free_slots(0);
    // The first worker receives one of two jobs, and passes it on when it knows the second worker.
    wait_for("the first worker knows the second", async || {
        for _ in 0..2 {
            api.notifications.send(Notification::Job { node: None });
            api.is_received(&workers).await;
            workers[0].is_received(&workers[1..]).await;
            workers[1].has_job().then_some(())?;
        }
        Some(())
    })
    .await;
    // It kept the jobs that it received before it knew the second.
    let _ = workers[0].has_job();
    for _ in 0..4 {
        api.notifications.send(Notification::Job { node: None });
        // The second worker is woken, whichever of the two was chosen.
        soon(workers[1].notifications.job()).await;
        api.is_received(&workers).await;
        assert!(!workers[0].has_job());
    }
    for peer in workers.into_iter().chain([api]) {
        peer.stop().await;
    }
    store.close().await;
}

#[tokio::test]
async fn a_watch_misses_nothing_that_is_appended_after_it_was_created() {
    let ground = prepared().await;
    let store = store(&ground);
    let (reader, writers) = known(&store, &[id()]).await;
    for _ in 0..50 {
        let session: SessionId = Origin::system().id();
        let mut watch = reader.notifications.watch(session);
        // Its process may not listen yet: then the watch is woken once it does.
        writers[0].notifications.grew(session, Vec::new);
        soon(watch.changed()).await;
        watch.seen();
        writers[0].is_received(std::slice::from_ref(&reader)).await;
        watch.seen();
        writers[0].notifications.grew(session, Vec::new);
        soon(watch.changed()).await;
    }
    for peer in writers.into_iter().chain([reader]) {
        peer.stop().await;
    }
    store.close().await;
}

#[tokio::test]
async fn a_process_sends_the_deliveries_of_its_shards_and_what_is_overdue() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let destination = json!([{ "url": "https://example.com/" }]);
    api.owner().post("/sessions", json!({ "destinations": destination })).await.ok();
    api.stop().await;
    ground
        .sql(
            "delete from delivery;
             insert into delivery (org_id, delivery_id, session_id, destination_id, event_id, event_seq, type,
                                   status, ready_at)
             select org_id, gen_random_uuid(), session_id, destination_id, gen_random_uuid(), 1, 'turn.completed',
                    'pending', now()
             from destination, generate_series(1, 4)",
        )
        .await;
    let mut clock = MovedClock::new(&ground).await;
    let store = store(&ground);
    let org: OrgId = store.first_org().await.expect("an answer").expect("an organization");
    let own = i32::from(org.uuid().as_bytes()[15] % DELIVERY_SHARDS);
    let others: Vec<_> = (0..i32::from(DELIVERY_SHARDS)).filter(|shard| *shard != own).collect();
    let capacity = Capacity { free: 2, ..Capacity::default() };
    let claim = async |shards: &[i32]| {
        store.claim_deliveries(&capacity, shards, None).await.expect("an answer").deliveries.len()
    };
    assert_eq!(claim(&others).await, 0, "another process has the shard");
    assert_eq!(claim(&[own]).await, 2);
    clock.advance(Duration::from_secs(60)).await;
    assert_eq!(claim(&others).await, 2, "its process did not send them in time");
    store.close().await;
}

#[tokio::test]
async fn processes_stay_within_their_connections_under_load() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api", "--database-connections=6"]).await;
    let worker = ground.serve(&["--role=worker", "--database-connections=5"]).await;
    let owner = api.owner();
    let agent = owner.inline_agent().await;
    let turns = (0..40).map(async |_| {
        let script = json!([{ "text": "One.", "delay_ms": 20 }]);
        let body = json!({ "agent": agent, "input": { "script": script } });
        let created = owner.post("/sessions", body).await.ok();
        let session = created["session"]["id"].as_str().expect("an id").to_owned();
        owner.until(&format!("/sessions/{session}"), |session| session["status"] == "idle").await;
    });
    let open = "select count(*) from pg_stat_activity
                where datname = current_database() and application_name like 'sojourn-%'";
    let (mut most, mut ended) = (0, pin!(join_all(turns)));
    loop {
        tokio::select! {
            _ = &mut ended => break,
            () = tokio::time::sleep(Duration::from_millis(10)) => most = most.max(ground.count(open).await),
        }
    }
    assert!((6..=11).contains(&most), "{most} connections");
    worker.stop().await;
    api.stop().await;
}

#[tokio::test]
async fn a_request_to_a_running_turn_reaches_the_worker_that_holds_it() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let session = service.owner().play(json!([{ "text": "Never played." }])).await;
    service.stop().await;
    let store = store(&ground);
    let node = id();
    let (api, workers) = known(&store, &[node, node]).await;
    let lease = Duration::from_secs(60);
    let claimant = Claimant { worker: workers[0].id, nodes: node.into(), lease, node_silence: lease };
    let queue = Queue::new(store.clone(), workers[0].notifications.clone(), Origin::system(), claimant);
    let held = queue.claim(1).await.expect("an answer").leases;
    assert_eq!(held.len(), 1);

    let blobs = Blobs::local(&ground.data_dir.path().join("blobs")).expect("a directory");
    let journal = Journal::new(store.clone(), blobs, api.notifications.clone(), Origin::system());
    let stamp = Stamp { actor: Actor::system(), origin: Origin::system() };
    let mut unit = journal.begin(held[0].claimed().org).await.expect("a transaction");
    unit.archive(session.parse().expect("an id"), &stamp).await.expect("it is open");
    unit.commit().await.expect("a commit");
    soon(workers[0].notifications.control()).await;
    // Whatever was sent to the other one arrived before this.
    api.notifications.send(Notification::Jobs);
    soon(workers[1].notifications.job()).await;
    assert!(workers[1].notifications.control().now_or_never().is_none());
    drop(held);
    for peer in workers.into_iter().chain([api]) {
        peer.stop().await;
    }
    store.close().await;
}
