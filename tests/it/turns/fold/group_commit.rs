//! Turns of one process that write concurrently share a commit, and each write is checked separately.

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use sojourn::{
    domain::{
        Body, SessionId, Status, TurnId, Usage,
        decide::{Command, InputMode},
        delta::Delta,
        event::Draft,
        turn::YieldReason,
    },
    journal::{Halted, Writer},
    queue::Lease,
};

use super::{World, draft, end, said, step};
use crate::support::wait::WAIT_MAX;

const SESSIONS: usize = 12;

/// A leased session whose turn is about to start.
struct Writing {
    session: SessionId,
    turn: TurnId,
    input_to_seq: i64,
    writer: Writer,
    _lease: Lease,
}

async fn lease(world: &World, count: usize) -> Vec<Writing> {
    for _ in 0..count {
        world.create(Some(said("first", InputMode::Queue))).await;
    }
    let mut writing = Vec::new();
    for lease in world.claim(count).await {
        let session = lease.claimed().session;
        let row = world.store.load_session(world.org, session).await.expect("a row");
        let turn = row.queued.expect("a turn");
        let writer = world.journal.writer(lease.fence(), Some(turn.id));
        writing.push(Writing {
            session,
            turn: turn.id,
            input_to_seq: turn.input_to_seq,
            writer,
            _lease: lease,
        });
    }
    assert_eq!(writing.len(), count);
    writing
}

impl Writing {
    async fn start(&self, world: &World) -> Result<(), Halted> {
        let body = Body::TurnStarted {
            turn_id: self.turn,
            input_from_seq: self.input_to_seq,
            input_to_seq: self.input_to_seq,
            attempt: 1,
            fee_micros: 0,
            is_retry: false,
            agent_seq: 0,
        };
        self.writer.record(vec![draft(world, self.turn, body)]).await.map(drop)
    }

    async fn step(&self, world: &World, place: usize) -> Result<(), Halted> {
        self.writer.record(self.drafts(world, place)).await.map(drop)
    }

    fn used_by_steps(&self, world: &World, places: [usize; 2]) -> Usage {
        let drafts: Vec<_> = places.into_iter().flat_map(|place| self.drafts(world, place)).collect();
        Delta::of(&drafts).usage
    }

    fn drafts(&self, world: &World, place: usize) -> Vec<Draft> {
        step(place, place % 3, 1).into_iter().map(|body| draft(world, self.turn, body)).collect()
    }

    async fn end(&self, world: &World, reason: YieldReason) -> Result<(), Halted> {
        let body = end(self.turn, reason, &[]);
        self.writer.record(vec![draft(world, self.turn, body)]).await.map(drop)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_write_at_once_share_commits_and_each_row_is_the_fold_of_its_log() {
    let world = World::open().await;
    let all = lease(&world, SESSIONS).await;
    for started in join_all(all.iter().map(|one| one.start(&world))).await {
        started.expect("a start");
    }
    // Another worker takes over some of them; others get more messages.
    for (at, one) in all.iter().enumerate() {
        match at % 4 {
            1 => {
                world
                    .command(one.session, Command::Steer(said("more", InputMode::Queue)))
                    .await
                    .expect("a message");
            }
            2 => {
                world.command(one.session, Command::Archive).await.expect("an end");
            }
            _ => {}
        }
    }
    let steps = all.iter().enumerate().map(|(at, one)| one.step(&world, at));
    for (at, written) in join_all(steps).await.into_iter().enumerate() {
        match at % 4 {
            2 => assert!(matches!(written, Err(Halted::Stale)), "{written:?}"),
            _ => written.expect("a step"),
        }
    }
    let reasons =
        [YieldReason::Completed, YieldReason::NeedsInput, YieldReason::Completed, YieldReason::Error];
    let ends = all.iter().enumerate().map(|(at, one)| one.end(&world, reasons[at % 4]));
    let ended = join_all(ends).await;
    for (at, (one, ended)) in all.iter().zip(ended).enumerate() {
        let session = world.compare(one.session).await;
        match at % 4 {
            1 => assert_eq!(session.status, Status::Queued),
            2 => {
                assert!(matches!(ended, Err(Halted::Stale)), "{ended:?}");
                assert_eq!(session.status, Status::Archived);
                continue;
            }
            _ => assert!(session.running.is_none() && session.queued.is_none()),
        }
        ended.expect("an end");
    }
    // No event is written for an ended turn, in a batch or alone.
    for late in join_all(all.iter().map(|one| one.step(&world, 1))).await {
        assert!(matches!(late, Err(Halted::Stale | Halted::Moved)), "{late:?}");
    }
    for kind in ["step.completed", "turn.completed"] {
        let (commits, events) = world.commits(kind).await;
        assert!(commits < events, "{events} of {kind} took {commits} commits");
    }
    // Usage was added in the same commits, each once, including the turns that were closed in the middle and
    // have no event for it.
    let mut used = Usage::default();
    for (at, one) in all.iter().enumerate() {
        used += world.compare(one.session).await.usage;
        used += if at % 4 == 2 { one.used_by_steps(&world, [at, 1]) } else { Usage::default() };
    }
    let sums = (used.input_tokens as i64, used.cost.model_micros as i64);
    assert!(sums.1 > 0 && world.ledger().await == sums, "{sums:?}");
    // The jobs of ended turns are removed; the others are ready.
    let left = world.claim(SESSIONS).await;
    let left: Vec<_> = left.iter().map(|lease| lease.claimed().session).collect();
    let waiting: Vec<_> = all.iter().skip(1).step_by(4).map(|one| one.session).collect();
    assert!(left.len() == waiting.len() && waiting.iter().all(|one| left.contains(one)), "{left:?}");
    world.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_a_caller_holds_delays_no_turn_but_its_own() {
    let world = World::open().await;
    let all = lease(&world, SESSIONS).await;
    let mut held = world.journal.begin(world.org).await.expect("a unit");
    held.tx().lock_session(all[0].session).await.expect("a row");
    let mut starts: FuturesUnordered<_> =
        all.iter().map(async |one| (one.session, one.start(&world).await)).collect();
    for _ in 1..SESSIONS {
        let started = tokio::time::timeout(WAIT_MAX, starts.next()).await;
        let (session, started) = started.expect("nobody else waits").expect("a start");
        started.expect("a start");
        assert_ne!(session, all[0].session);
    }
    drop(held);
    let (session, started) = starts.next().await.expect("the last one");
    started.expect("a start");
    assert_eq!(session, all[0].session);
    drop(starts);
    for one in &all {
        world.compare(one.session).await;
    }
    world.store.close().await;
}
