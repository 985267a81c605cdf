//! Callers and a turn that write to one session at the same time.

use std::time::Duration;

use sojourn::{
    domain::{
        Body, Level,
        decide::{Change, Command, InputMode, Rejection},
        turn::YieldReason,
    },
    journal::{Error, Halted},
};
use sqlx::Connection;

use super::{World, draft, end, said, step};
use crate::support::wait::wait_for;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_and_a_turn_that_write_at_once_leave_one_log_without_a_gap() {
    let world = World::open().await;
    let id = world.create(Some(said("first", InputMode::Queue))).await;
    let caller = async {
        for at in 0..40u64 {
            let command = match at % 4 {
                3 => Command::Patch(Change { title: Some(Some(format!("{at}"))), ..Change::default() }),
                _ => Command::Steer(said("more", InputMode::Queue)),
            };
            world.command(id, command).await.expect("a command");
        }
    };
    let worker = async {
        let mut ended = 0;
        while ended < 8 {
            let mut leases = world.claim(1).await;
            let Some(lease) = leases.pop() else { continue };
            let session = world.store.load_session(world.org, id).await.expect("a row");
            let Some(turn) = session.queued.as_ref() else {
                lease.finish().await.expect("an end");
                continue;
            };
            let writer = world.journal.writer(lease.fence(), Some(turn.id));
            let start = Body::TurnStarted {
                turn_id: turn.id,
                input_from_seq: turn.input_from_seq,
                input_to_seq: turn.input_to_seq,
                attempt: 1,
                fee_micros: 0,
                is_retry: false,
                agent_seq: 0,
            };
            match writer.record(vec![draft(&world, turn.id, start)]).await {
                Ok(_) => {}
                // A message came in between: read again.
                Err(Halted::Moved) => {
                    lease.release(Duration::ZERO).await.expect("a release");
                    continue;
                }
                Err(halted) => panic!("{halted}"),
            }
            for place in 0..5 {
                let bodies = step(place, 0, 1);
                let drafts = bodies.into_iter().map(|body| draft(&world, turn.id, body)).collect();
                writer.record(drafts).await.expect("a step");
            }
            let done = end(turn.id, YieldReason::Completed, &[]);
            writer.record(vec![draft(&world, turn.id, done)]).await.expect("an end");
            ended += 1;
            if ended < 8 {
                world
                    .command(id, Command::Steer(said("and more", InputMode::Queue)))
                    .await
                    .expect("a command");
            }
        }
    };
    tokio::join!(caller, worker);
    let session = world.compare(id).await;
    assert_eq!((session.turns, session.usage.steps), (8, 40));
    let log = world.log(id).await;
    assert_eq!(log.iter().filter(|event| matches!(event.draft.body, Body::UserMessage { .. })).count(), 38);
    assert!(log.iter().all(|event| event.draft.level <= Level::Internal));
    world.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_waits_while_a_destination_is_created_is_delivered_to_it() {
    let world = World::open().await;
    let id = world.create(Some(said("first", InputMode::Queue))).await;
    let lease = world.claim(1).await.pop().expect("a job");
    let session = world.store.load_session(world.org, id).await.expect("a row");
    let turn = session.queued.as_ref().expect("a turn");
    let writer = world.journal.writer(lease.fence(), Some(turn.id));
    let start = Body::TurnStarted {
        turn_id: turn.id,
        input_from_seq: turn.input_from_seq,
        input_to_seq: turn.input_to_seq,
        attempt: 1,
        fee_micros: 0,
        is_retry: false,
        agent_seq: 0,
    };
    let of_log_only = Body::SandboxFrozen { sandbox_id: world.origin.id(), memory_bytes: 1 };
    for (place, body) in [start, of_log_only].into_iter().enumerate() {
        // As a request that creates a destination: it locks the session, and has not committed yet.
        let mut request = world.database.superuser().await;
        let sql = "begin;
                   update session set destination_changes = destination_changes + 1;
                   insert into destination (
                       org_id, destination_id, session_id, url, sealed_secret, level, include_raw, enabled,
                       created_after_seq
                   )
                   select org_id, gen_random_uuid(), session_id, 'https://receiver.example', '', 3, false, true, head
                   from session";
        sqlx::raw_sql(sql).execute(&mut request).await.expect("a request");
        let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
        let mut watcher = world.database.superuser().await;
        let waiting = async || {
            let count: i64 = sqlx::query_scalar(waits).fetch_one(&mut watcher).await.expect("a count");
            (count > 0).then_some(())
        };
        let commit = async {
            wait_for("the append waits for the row", waiting).await;
            sqlx::raw_sql("commit").execute(&mut request).await.expect("a commit");
        };
        let (recorded, ()) = tokio::join!(writer.record(vec![draft(&world, turn.id, body)]), commit);
        recorded.expect("an append");
        let missing = "select count(*)
                       from destination d
                       where not exists (
                           select from delivery v
                           where v.destination_id = d.destination_id and v.event_seq = d.created_after_seq + 1
                       )";
        let missing: i64 = sqlx::query_scalar(missing).fetch_one(&mut watcher).await.expect("a count");
        assert_eq!(missing, 0, "destinations without the event after them, append {place}");
        request.close().await.expect("a clean end");
        watcher.close().await.expect("a clean end");
    }
    drop(lease);
    world.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_does_not_start_with_an_agent_that_has_changed() {
    let world = World::open().await;
    let id = world.create(Some(said("first", InputMode::Queue))).await;
    let lease = world.claim(1).await.pop().expect("a job");
    let session = world.store.load_session(world.org, id).await.expect("a row");
    let turn = session.queued.as_ref().expect("a turn");
    let mut agent = session.created.agent_snapshot.clone().expect("an agent");
    agent.tools = Some(Vec::new());
    let change = Change { agent_snapshot: Some(Box::new(agent)), ..Change::default() };
    world.command(id, Command::Patch(change.clone())).await.expect("a change");

    let writer = world.journal.writer(lease.fence(), Some(turn.id));
    let start = |agent_seq| Body::TurnStarted {
        turn_id: turn.id,
        input_from_seq: turn.input_from_seq,
        input_to_seq: turn.input_to_seq,
        attempt: 1,
        fee_micros: 0,
        is_retry: false,
        agent_seq,
    };
    let stale = writer.record(vec![draft(&world, turn.id, start(session.agent_head))]).await;
    assert!(matches!(stale, Err(Halted::Moved)), "{stale:?}");
    let changed = world.compare(id).await;
    assert_eq!(changed.agent_head, changed.head);
    writer.record(vec![draft(&world, turn.id, start(changed.agent_head))]).await.expect("a start");
    // It keeps its agent until it ends.
    let mut again = changed.created.agent_snapshot.expect("an agent");
    again.tools = None;
    let change = Change { agent_snapshot: Some(Box::new(again)), ..Change::default() };
    let refused = world.command(id, Command::Patch(change)).await;
    assert!(matches!(refused, Err(Error::Rejected(Rejection::TurnRunning))), "{refused:?}");
    world.compare(id).await;
    world.store.close().await;
}
