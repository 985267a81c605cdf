//! The statement that admits a sandbox or notes that its session waits.

use std::time::Duration;

use sojourn::{
    domain::{
        SandboxId,
        decide::Input,
        environment::{NodeCapacity, Size},
    },
    store::{
        admission::{Admission, OrganizationMaxima, Shortage},
        record::Fence,
        sandbox::NewSandbox,
    },
};
use sqlx::AssertSqlSafe;
use tokio::time::timeout;
use uuid::Uuid;

use crate::turns::fold::World;

const NODES: [Uuid; 2] = [Uuid::from_u128(2), Uuid::from_u128(3)];
const SIZE: Size = Size { cpu_millis: 1_000, memory_bytes: 1 << 30, pids: 10, disk_bytes: 1 << 30 };

/// Sessions whose jobs are held.
struct Sessions {
    world: World,
    fences: Vec<Fence>,
}

impl Sessions {
    async fn open(sessions: usize) -> Self {
        let world = World::open().await;
        for _ in 0..sessions {
            world.create(Some(Input { text: "Go.".to_owned(), ..Input::default() })).await;
        }
        let fences: Vec<_> = world.claim(sessions).await.iter().map(|lease| lease.fence()).collect();
        assert_eq!(fences.len(), sessions);
        Self { world, fences }
    }

    /// A node with memory for `sandboxes` of `SIZE`.
    async fn add_node(&self, node: Uuid, sandboxes: u64) {
        let memory_bytes = sandboxes * SIZE.memory_bytes;
        let capacity = NodeCapacity { cpu_millis: 1 << 40, memory_bytes, pids: 1 << 40, disk_bytes: 1 << 60 };
        let silence = Duration::from_secs(60);
        let heartbeat = self.world.store.record_heartbeat(node, silence, Some(capacity), false);
        heartbeat.await.expect("a heartbeat");
    }

    async fn ask(
        &self,
        of: usize,
        node: Uuid,
        queue: &[Uuid],
        size: Size,
        maxima: OrganizationMaxima,
    ) -> (SandboxId, Admission) {
        let Fence { org, session, epoch, .. } = self.fences[of];
        let (sandbox, first_check_after) = (self.world.origin.id(), Duration::from_secs(60));
        let new = NewSandbox { org, session, sandbox, node, life: None, size, first_check_after };
        let decided = self.world.store.admit_sandbox(&new, epoch, &maxima, Some(queue)).await;
        (sandbox, decided.expect("an answer"))
    }

    async fn admit(&self, of: usize, node: Uuid, queue: &[Uuid]) -> Admission {
        self.ask(of, node, queue, SIZE, OrganizationMaxima::default()).await.1
    }

    async fn wait(&self, of: usize, node: Uuid, queue: &[Uuid]) -> (Shortage, u32, bool) {
        waiting(self.admit(of, node, queue).await)
    }

    async fn end_sandbox(&self, of: usize, sandbox: SandboxId) {
        let Fence { org, session, .. } = self.fences[of];
        self.world.store.end_sandbox(org, session, sandbox).await.expect("an end");
    }

    async fn execute(&self, sql: &str) {
        let mut superuser = self.world.database.superuser().await;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut superuser).await.expect("a change");
    }
}

/// Shortage and position of a wait, and whether its log is told.
fn waiting(decided: Admission) -> (Shortage, u32, bool) {
    match decided {
        Admission::Waiting(wait) => (wait.shortage, wait.queue_position, wait.is_news),
        decided => panic!("{decided:?}"),
    }
}

/// Each decided under a lock: the sum that a creation reads includes those before it.
#[tokio::test]
async fn creations_at_one_moment_never_exceed_the_node() {
    const CAPACITY: u64 = 5;
    let sessions = Sessions::open(4 * CAPACITY as usize).await;
    let [node, _] = NODES;
    sessions.add_node(node, CAPACITY).await;
    let admit = (0..sessions.fences.len()).map(|of| sessions.admit(of, node, &NODES[..1]));
    let decided = futures::future::join_all(admit).await;
    let admitted = decided.iter().filter(|decided| matches!(decided, Admission::Admitted(_))).count();
    assert_eq!(admitted as u64, CAPACITY, "{decided:?}");
    let waits = decided.into_iter().filter(|decided| matches!(decided, Admission::Waiting(_))).map(waiting);
    let (shortages, mut positions): (Vec<_>, Vec<_>) =
        waits.map(|(shortage, position, _)| (shortage, position)).unzip();
    assert!(shortages.iter().all(|shortage| *shortage == Shortage::NodeMemory), "{shortages:?}");
    positions.sort_unstable();
    let last = u32::try_from(3 * CAPACITY).expect("few");
    assert_eq!(positions, (1..=last).collect::<Vec<_>>());
    sessions.world.store.close().await;
}

#[tokio::test]
async fn a_session_that_waits_for_two_nodes_is_ahead_on_both() {
    let sessions = Sessions::open(4).await;
    for node in NODES {
        sessions.add_node(node, 1).await;
    }
    let store = &sessions.world.store;
    let [first, second] = NODES;
    let (held, admitted) = sessions.ask(0, first, &NODES, SIZE, OrganizationMaxima::default()).await;
    assert_eq!(admitted, Admission::Admitted(Duration::ZERO));
    let candidates = store.nodes_by_free_capacity(&NODES, SIZE).await.expect("an answer");
    let candidates: Vec<_> = candidates.iter().map(|one| (one.node_id, one.fits, one.has_capacity)).collect();
    assert_eq!(candidates, [(second, true, true), (first, true, false)]);
    let larger = Size { memory_bytes: 2 * SIZE.memory_bytes, ..SIZE };
    let candidates = store.nodes_by_free_capacity(&NODES, larger).await.expect("an answer");
    assert!(candidates.iter().all(|one| !one.fits), "{candidates:?}");
    assert!(matches!(sessions.admit(1, second, &NODES).await, Admission::Admitted(_)));
    // The second node says nothing new of the same wait.
    assert_eq!(sessions.wait(2, first, &NODES).await, (Shortage::NodeMemory, 1, true));
    assert_eq!(sessions.wait(2, second, &NODES).await, (Shortage::NodeMemory, 1, false));
    assert_eq!(sessions.wait(3, first, &NODES[..1]).await, (Shortage::NodeMemory, 2, true));
    sessions.end_sandbox(0, held).await;
    assert_eq!(sessions.wait(3, first, &NODES[..1]).await, (Shortage::Queue, 2, true));
    // It waits since it first asked, and the log is told every ten seconds.
    sessions
        .execute(
            "update sandbox_wait set since = since - interval '12 s', seen_at = seen_at - interval '9 s'",
        )
        .await;
    match sessions.admit(3, first, &NODES[..1]).await {
        Admission::Waiting(wait) => {
            assert!(wait.is_news && wait.waited >= Duration::from_secs(12), "{wait:?}")
        }
        decided => panic!("{decided:?}"),
    }
    // One that could not ask for a while has held up nobody, and keeps its time.
    let unseen = "update sandbox_wait set seen_at = seen_at - interval '40 s' where session_id =";
    sessions.execute(&format!("{unseen} '{}'", sessions.fences[2].session.uuid())).await;
    match sessions.admit(2, first, &NODES).await {
        Admission::Admitted(waited) => assert!(waited >= Duration::from_secs(12), "{waited:?}"),
        decided => panic!("{decided:?}"),
    }
    store.close().await;
}

/// Whichever worker asks next.
#[tokio::test]
async fn a_session_waits_for_the_nodes_of_every_worker_that_asked_for_it() {
    let sessions = Sessions::open(4).await;
    let [first, second] = NODES;
    for (of, node) in [first, second].into_iter().enumerate() {
        sessions.add_node(node, 1).await;
        assert!(matches!(sessions.admit(of, node, &[node]).await, Admission::Admitted(_)));
    }
    assert_eq!(sessions.wait(2, first, &[first]).await, (Shortage::NodeMemory, 1, true));
    assert_eq!(sessions.wait(2, second, &[second]).await, (Shortage::NodeMemory, 1, false));
    for node in NODES {
        assert_eq!(sessions.wait(3, node, &[node]).await.1, 2, "behind the one that asked first");
    }
    sessions.world.store.close().await;
}

#[tokio::test]
async fn a_session_behind_another_of_its_organization_holds_up_no_other() {
    let sessions = Sessions::open(4).await;
    let [node, _] = NODES;
    sessions.add_node(node, 10).await;
    let maxima = OrganizationMaxima { memory_bytes: Some(2 * SIZE.memory_bytes), ..Default::default() };
    let larger = Size { memory_bytes: 2 * SIZE.memory_bytes, ..SIZE };
    let ask = async |of, size| sessions.ask(of, node, &NODES[..1], size, maxima).await.1;
    assert!(matches!(ask(0, SIZE).await, Admission::Admitted(_)));
    assert_eq!(waiting(ask(1, larger).await), (Shortage::OrganizationMemory, 1, true));
    // Its organization has memory for this one, which asked later.
    assert_eq!(waiting(ask(2, SIZE).await), (Shortage::OrganizationMemory, 2, true));
    // To one without these maxima, as of another organization, no session is ahead on the node.
    assert!(matches!(sessions.admit(3, node, &NODES[..1]).await, Admission::Admitted(_)));
    sessions.world.store.close().await;
}

/// A process that is frozen in a transaction may hold the row of a session for seconds, and no lock of the node.
#[tokio::test]
async fn a_creation_that_waits_for_its_session_delays_no_other() {
    let sessions = Sessions::open(2).await;
    let [node, _] = NODES;
    let mut frozen = sessions.world.database.superuser().await;
    let lock = "begin; select from session where session_id = '";
    let lock = format!("{lock}{}' for update", sessions.fences[0].session.uuid());
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut frozen).await.expect("the lock");
    let mut waiting = std::pin::pin!(sessions.admit(0, node, &NODES[..1]));
    assert!(timeout(Duration::from_millis(500), waiting.as_mut()).await.is_err(), "its session is locked");
    let other = timeout(Duration::from_secs(5), sessions.admit(1, node, &NODES[..1])).await;
    assert_eq!(other.expect("it does not wait"), Admission::Admitted(Duration::ZERO));
    sqlx::raw_sql("rollback").execute(&mut frozen).await.expect("the end");
    assert_eq!(waiting.await, Admission::Admitted(Duration::ZERO));
    sessions.world.store.close().await;
}
