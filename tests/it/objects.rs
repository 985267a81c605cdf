//! Snapshots are stored with their event or not at all; their objects stay while something needs them, and then go.

use std::{path::PathBuf, pin::pin, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use serde_json::{Map, json};
use sojourn::{
    base::{Origin, seal::sha256},
    blob::Blobs,
    domain::{
        EventId, OrgId, SessionId,
        event::{Actor, Body, Draft, Level},
        tree::{Place, SnapshotId},
    },
    journal::{Halted, Journal, Writer},
    snapshot::put_object,
    store::{
        Store,
        notification::Notifications,
        object,
        process::Process,
        record::Fence,
        snapshot::{NewSnapshot, SnapshotPack},
    },
};
use sqlx::Connection;
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::{service::Ground, wait::wait_for};

const OBJECTS: &str = "select count(*) from object";
const REFERENCES: &str = "select count(*) from object_ref";
const PACKS: &str = "select count(*) from snapshot_pack";
const SNAPSHOTS: &str = "select count(*) from snapshot";
const EVENTS: &str = "select count(*) from event";

/// Time after which something counts as waiting.
const WAITS: Duration = Duration::from_millis(500);

/// A database with sessions, without a service.
struct Scene {
    ground: Ground,
    store: Store,
    blobs: Blobs,
    journal: Journal,
    origin: Origin,
    org: OrgId,
    sessions: Vec<SessionId>,
}

impl Scene {
    async fn open(sessions: usize) -> Self {
        let ground = Ground::new().await;
        let api = ground.serve(&["--role=api"]).await;
        let owner = api.owner();
        let agent = owner.inline_agent().await;
        let mut ids = Vec::new();
        for _ in 0..sessions {
            let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
            ids.push(made["session"]["id"].as_str().expect("an id").parse().expect("an id"));
        }
        api.stop().await;
        let store = ground.store(3);
        let org = store.find_key(&owner.key).await.expect("the owner's key").expect("a key").org;
        let blobs = Blobs::local(&ground.data_dir.path().join("blobs")).expect("a blob store");
        let (origin, process) = (Origin::system(), Process::alone(Uuid::from_u128(1)));
        let journal = Journal::new(store.clone(), blobs.clone(), Notifications::new(process), origin.clone());
        Self { ground, store, blobs, journal, origin, org, sessions: ids }
    }

    /// A writer under the lease with this epoch; that of a new session is 0.
    fn writer(&self, session: SessionId, epoch: i64) -> Writer {
        let (worker, generation) = (Uuid::from_u128(1), self.store.generation());
        self.journal.writer(Fence { org: self.org, session, epoch, worker, generation }, None)
    }

    fn draft(&self) -> Draft {
        Draft {
            id: self.origin.id(),
            actor: Actor::system(),
            level: Level::Progress,
            turn_id: None,
            step_id: Some(self.origin.id()),
            refs: Map::new(),
            body: Body::SandboxThawed { sandbox_id: self.origin.id() },
        }
    }

    async fn put(&self, bytes: &'static str) -> [u8; 32] {
        let stored = put_object(&self.store, &self.blobs, self.org, Bytes::from_static(bytes.as_bytes()));
        stored.await.expect("an object")
    }

    /// Stores a pack with these bytes.
    async fn pack(&self, number: u32, bytes: &'static str) -> SnapshotPack {
        SnapshotPack { number, digest: self.put(bytes).await, bytes: bytes.len() as u64 }
    }

    /// Appends an event with a snapshot; returns its `seq`.
    async fn append(&self, session: SessionId, packs: &[SnapshotPack]) -> Result<i64, Halted> {
        let draft = self.draft();
        let new = snapshot(draft.id, packs);
        let events = self.writer(session, 0).record_snapshot(vec![draft], new).await?;
        Ok(events[0].seq)
    }

    async fn refused(&self, session: SessionId, packs: &[SnapshotPack], constraint: &str) {
        let error = self.append(session, packs).await.expect_err("a refusal");
        assert!(matches!(error, Halted::Failed(_)) && error.to_string().contains(constraint), "{error}");
    }

    async fn counts(&self) -> [i64; 4] {
        let mut counts = [0; 4];
        for (count, query) in counts.iter_mut().zip([EVENTS, SNAPSHOTS, PACKS, REFERENCES]) {
            *count = self.ground.count(query).await;
        }
        counts
    }

    fn blob(&self, digest: &[u8; 32]) -> PathBuf {
        self.ground.data_dir.path().join("blobs").join(object::key(self.org, digest))
    }

    async fn let_unused_go(&self) {
        self.ground.sql("update object set kept_until = now() - interval '1 second' where not used").await;
    }

    async fn close(self) {
        self.journal.drained().await;
        self.store.close().await;
    }
}

fn snapshot(event: EventId, packs: &[SnapshotPack]) -> NewSnapshot {
    NewSnapshot {
        event,
        snapshot: SnapshotId::of(&[7; 32]),
        root: Place { pack: packs.last().map_or(0, |pack| pack.number), offset: 1 << 33, bytes: 20 },
        files: 2,
        bytes: 1 << 34,
        packs: packs.to_vec(),
    }
}

#[tokio::test]
async fn a_snapshot_is_stored_with_its_event_or_not_at_all() {
    let scene = Scene::open(1).await;
    let (store, org, session) = (&scene.store, scene.org, scene.sessions[0]);
    assert_eq!(store.newest_snapshot(org, session).await.expect("an answer"), None);
    let packs = [scene.pack(0, "first").await, scene.pack(1, "second").await];
    let (draft, other) = (scene.draft(), scene.draft());
    let (id, step, new) = (draft.id, draft.step_id, snapshot(draft.id, &packs));
    let writer = scene.writer(session, 0);
    let events = writer.record_snapshot(vec![other, draft], new.clone()).await.expect("an append");
    assert_eq!(events[1].draft.id, id);
    let first = store.newest_snapshot(org, session).await.expect("an answer").expect("a snapshot");
    assert_eq!((first.seq, first.turn, first.step), (events[1].seq, None, step));
    assert_eq!((&first.snapshot, first.root), (&new.snapshot, new.root));
    assert_eq!((first.files, first.bytes), (new.files, new.bytes));
    assert_eq!(store.snapshot_packs(org, session).await.expect("an answer"), packs);
    let before = scene.counts().await;
    assert_eq!(before[1..], [1, 2, 2]);

    let next = scene.pack(2, "third").await;
    let stale = scene.draft();
    let new = snapshot(stale.id, &[next]);
    let stale = scene.writer(session, 7).record_snapshot(vec![stale], new.clone()).await;
    assert!(matches!(stale, Err(Halted::Stale)), "{stale:?}");
    let unknown = scene.writer(session, 0).record_snapshot(vec![scene.draft()], new).await;
    assert!(matches!(unknown, Err(Halted::Failed(_))), "{unknown:?}");
    let missing = SnapshotPack { digest: [1; 32], ..next };
    scene.refused(session, &[missing], "object_ref_object").await;
    // As if the append of the pack before were lost, or written.
    for number in [1, 3] {
        scene.refused(session, &[SnapshotPack { number, ..next }], "snapshot_pack_number").await;
    }
    assert_eq!(scene.counts().await, before, "nothing of them is written");

    let seq = scene.append(session, &[next]).await.expect("an append");
    let unchanged = scene.append(session, &[]).await.expect("an append without a pack");
    for (at, expected) in
        [(first.seq - 1, None), (first.seq, Some(first.seq)), (seq - 1, Some(first.seq)), (seq, Some(seq))]
    {
        let found = store.snapshot_at(org, session, at).await.expect("an answer");
        assert_eq!(found.map(|found| found.seq), expected, "at {at}");
    }
    assert_eq!(scene.counts().await[1..], [3, 3, 3]);

    // An organization sees its own.
    for (org, expected) in [(org, Some(unchanged)), (scene.origin.id(), None)] {
        let mut tx = store.begin(org).await.expect("a transaction");
        let newest = tx.newest_snapshot(session).await.expect("an answer");
        assert_eq!(newest.map(|newest| newest.seq), expected);
        let found = tx.snapshot_at(session, first.seq).await.expect("an answer");
        assert_eq!(found, expected.map(|_| first.clone()));
        let packs = tx.snapshot_packs(session).await.expect("an answer");
        assert_eq!(packs.len(), expected.map_or(0, |_| 3));
    }
    scene.close().await;
}

#[tokio::test]
async fn sessions_append_snapshots_and_other_events_at_the_same_time() {
    let scene = Scene::open(8).await;
    let pack = scene.pack(0, "shared").await;
    let appends = scene.sessions.iter().map(|session| {
        let (scene, packs) = (&scene, [pack]);
        async move {
            let plain = scene.writer(*session, 0);
            tokio::join!(plain.record(vec![scene.draft()]), scene.append(*session, &packs))
        }
    });
    for (plain, with_snapshot) in join_all(appends).await {
        plain.expect("an append");
        with_snapshot.expect("an append");
    }
    assert_eq!(scene.counts().await[1..], [8, 8, 8]);
    assert_eq!(scene.ground.count(OBJECTS).await, 1);
    scene.close().await;
}

#[tokio::test]
async fn an_object_goes_with_the_last_session_that_needs_it() {
    let scene = Scene::open(2).await;
    let (one, other) = (scene.sessions[0], scene.sessions[1]);
    let (shared, own) = (scene.pack(0, "shared").await, scene.pack(1, "own").await);
    scene.append(one, &[shared, own]).await.expect("an append");
    // The same bytes twice: the session needs them until both are gone.
    scene.append(one, &[SnapshotPack { number: 2, ..own }]).await.expect("an append");
    scene.append(other, &[shared]).await.expect("an append");
    let uploaded = scene.put("uploaded just now").await;
    scene.ground.sql("delete from snapshot_pack where number = 1").await;
    assert_eq!(scene.ground.count(REFERENCES).await, 3);

    let service = scene.ground.serve(&[]).await;
    let owner = service.owner();
    let left = async |count: i64| {
        wait_for("the deletion", async || (scene.ground.count(OBJECTS).await == count).then_some(())).await;
    };
    assert_eq!(owner.delete(&format!("/sessions/{one}")).await.status, 204);
    assert_eq!((scene.ground.count(REFERENCES).await, scene.ground.count(SNAPSHOTS).await), (1, 1));
    left(2).await;
    assert!(!scene.blob(&own.digest).exists());
    assert!(scene.blob(&shared.digest).exists() && scene.blob(&uploaded).exists());
    scene.let_unused_go().await;
    left(1).await;
    assert!(scene.blob(&shared.digest).exists() && !scene.blob(&uploaded).exists());
    assert_eq!(owner.delete(&format!("/sessions/{other}")).await.status, 204);
    left(0).await;
    assert!(!scene.blob(&shared.digest).exists());
    service.stop().await;
    scene.close().await;
}

#[tokio::test]
async fn an_upload_waits_for_the_deletion_of_the_same_bytes() {
    let scene = Scene::open(1).await;
    let (store, content) = (&scene.store, "content");
    let claim = async || store.claim_unused_objects(10).await.expect("an answer");
    let digest = scene.put(content).await;
    assert_eq!(digest, sha256(content.as_bytes()));
    assert!(claim().await.is_empty(), "it is new");
    scene.let_unused_go().await;
    let claimed = claim().await;
    assert_eq!(claimed.iter().map(|one| (one.org, one.digest)).collect::<Vec<_>>(), [(scene.org, digest)]);
    assert!(claim().await.is_empty(), "it is claimed");
    let pack = SnapshotPack { number: 0, digest, bytes: 7 };
    scene.refused(scene.sessions[0], &[pack], "object_ref_object").await;
    {
        let mut upload = pin!(scene.put(content));
        assert!(timeout(WAITS, &mut upload).await.is_err(), "it waits");
        scene.blobs.delete(&object::key(scene.org, &digest)).await.expect("a deletion");
        assert!(store.delete_object(&claimed[0]).await.expect("an answer"));
        assert_eq!(upload.await, digest);
    }
    assert!(scene.blob(&digest).exists());

    // The worker is gone, or frozen: its claim ends, and an upload takes the object before another worker does.
    scene.let_unused_go().await;
    let claimed = claim().await;
    scene.ground.sql("update object set removing_at = removing_at - interval '61 seconds'").await;
    assert!(claim().await.is_empty());
    scene.put(content).await;
    assert!(!store.delete_object(&claimed[0]).await.expect("an answer"), "the upload has it");
    scene.append(scene.sessions[0], &[pack]).await.expect("an append");
    assert!(claim().await.is_empty(), "it is used");
    // Without an upload another worker claims it.
    scene.put("other content").await;
    scene.let_unused_go().await;
    assert_eq!(claim().await.len(), 1);
    scene.ground.sql("update object set removing_at = removing_at - interval '121 seconds'").await;
    assert_eq!(claim().await.len(), 1);
    scene.close().await;
}

#[tokio::test]
async fn references_and_deletions_at_the_same_time_see_each_other() {
    let scene = Scene::open(1).await;
    let digest = scene.put("content").await;
    scene.let_unused_go().await;
    let (mut one, mut other) =
        (scene.ground.database.superuser().await, scene.ground.database.superuser().await);
    let add = "insert into object_ref (org_id, digest, holder) select org_id, digest, $1 from object";
    let delete = "delete from object_ref where holder = $1";
    let claimed = async || scene.store.claim_unused_objects(10).await.expect("an answer").len();

    // A reference that is being added.
    let mut adding = one.begin().await.expect("a transaction");
    sqlx::query(add).bind("a").execute(&mut *adding).await.expect("a reference");
    assert_eq!(claimed().await, 0);
    adding.commit().await.expect("a commit");
    assert_eq!(claimed().await, 0);

    // Two that are deleted: the second deletion waits, and sees that the first one is gone.
    sqlx::query(add).bind("b").execute(&mut one).await.expect("a reference");
    let mut deleting = one.begin().await.expect("a transaction");
    sqlx::query(delete).bind("a").execute(&mut *deleting).await.expect("a deletion");
    {
        let mut second = pin!(sqlx::query(delete).bind("b").execute(&mut other));
        assert!(timeout(WAITS, &mut second).await.is_err(), "it waits");
        deleting.commit().await.expect("a commit");
        second.await.expect("a deletion");
    }
    assert_eq!(scene.ground.count("select count(*) from object where used").await, 0);

    // A claim that is being made.
    let mut claiming = one.begin().await.expect("a transaction");
    for statement in ["select from object for update", "update object set removing_at = now()"] {
        sqlx::query(statement).execute(&mut *claiming).await.expect(statement);
    }
    {
        let packs = [SnapshotPack { number: 0, digest, bytes: 7 }];
        let mut append = pin!(scene.append(scene.sessions[0], &packs));
        assert!(timeout(WAITS, &mut append).await.is_err(), "it waits");
        claiming.commit().await.expect("a commit");
        let error = append.await.expect_err("a refusal");
        assert!(error.to_string().contains("object_ref_object"), "{error}");
    }
    assert_eq!((scene.ground.count(REFERENCES).await, scene.ground.count(SNAPSHOTS).await), (0, 0));
    one.close().await.expect("a clean end");
    other.close().await.expect("a clean end");
    scene.close().await;
}
