//! A long session costs a process no more memory than a short one: its turns, its pages, its streams, its export.

use std::{fs, time::Instant};

use reqwest::Method;
use serde_json::json;
use sojourn::{base::limit, domain::SessionId};
use sqlx::Connection;

use crate::{
    fake::{Fake, Request, Step, anthropic::Anthropic},
    support::{
        program::Program,
        service::{Caller, Ground, KEY},
        wait::wait_for,
    },
    turns::ask_model,
};

/// Memory that a long session may cost beyond a short one, in KiB.
const MORE_KIB: i64 = 24 << 10;

/// Events of the long session.
fn events() -> i64 {
    if std::env::var_os("SOJOURN_TEST_FULL").is_some() { 1_000_000 } else { 50_000 }
}

/// Appends events to the log of an idle session, as a long life would: thoughts of 400 bytes, and in every
/// thousand events a turn with one question and one answer.
const AGE: &str = "
    with s as materialized (select org_id, session_id, head, updated_at from session where session_id = $1),
    numbered as (
        select s.*, head + n as seq, n % 1000 as place, (n / 1000 + 1)::integer as turn
        from s, generate_series(1, $2) n
    ),
    named as (
        select numbered.*, lpad(to_hex(turn), 32, '0')::uuid as turn_id,
               'trn_' || repeat('0', 23) || substr(alphabet, turn / 1024 + 1, 1)
                      || substr(alphabet, turn / 32 % 32 + 1, 1) || substr(alphabet, turn % 32 + 1, 1) as name
        from numbered, (select '0123456789abcdefghjkmnpqrstvwxyz' as alphabet) a
    ),
    written as (
        insert into event (org_id, session_id, seq, ts, event_id, type, level, actor, turn_id, body, body_bytes)
        select org_id, session_id, seq, updated_at, gen_random_uuid(),
               case place when 1 then 'user.message' when 2 then 'turn.started' when 3 then 'step.completed'
                          when 4 then 'turn.completed' else 'agent.thinking' end,
               case place when 1 then 1 when 3 then 3 when 4 then 1 else 2 end,
               '{\"type\":\"agent\"}', turn_id,
               (case place
                when 1 then json_build_object('text', 'What comes next?')
                when 2 then json_build_object('turn_id', name, 'input_from_seq', seq - 1, 'input_to_seq', seq - 1,
                                              'attempt', 1, 'fee_micros', 0)
                when 3 then json_build_object(
                    'index', 1, 'provider', 'anthropic', 'model', 'm-1',
                    'raw', json_build_array(json_build_object('type', 'text', 'text', 'More.')),
                    'blocks', json_build_array(json_build_object('type', 'text', 'text', 'More.')),
                    'stop', 'end_turn', 'usage', json_build_object(), 'cost_micros', 0, 'attempt', 1,
                    'duration_ms', 1)
                when 4 then json_build_object('turn_id', name, 'yield_reason', 'completed',
                                              'usage', json_build_object(), 'active_seconds', 0)
                else json_build_object('text', repeat('Hm. ', 100)) end)::json,
               400
        from named
    )
    update session set head = head + $2 where session_id = $1";

async fn age(ground: &Ground, session: &str, events: i64) {
    let uuid = session.parse::<SessionId>().expect("an id").uuid();
    let mut superuser = ground.database.superuser().await;
    sqlx::query(AGE).bind(uuid).bind(events).execute(&mut superuser).await.expect("events");
    sqlx::raw_sql("analyze event").execute(&mut superuser).await.expect("an analyze");
    superuser.close().await.expect("a clean end");
}

fn path(session: &str) -> String {
    format!("/sessions/{session}/messages")
}

/// Waits until a session that got a message is idle again.
async fn idle(owner: &Caller, session: &str) {
    let settled = async || {
        let session = owner.get(&format!("/sessions/{session}")).await.ok();
        (session["status"] == "idle").then_some(())
    };
    wait_for("the turn ends", settled).await;
}

/// A process and its peak memory.
struct Measured {
    program: Program,
    owner: Caller,
}

impl Measured {
    fn start(ground: &Ground, base_url: &str) -> Self {
        let program = Program::start(ground, &[&format!("--anthropic-base-url={base_url}")]);
        let owner = Caller::new(&program.base, KEY);
        Self { program, owner }
    }

    /// Peak memory since the last call, in KiB.
    fn peak_kib(&self) -> i64 {
        let process = format!("/proc/{}", self.program.id());
        let status = fs::read_to_string(format!("{process}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        let kib = line.trim().trim_end_matches(" kB").parse().expect("a number");
        // 5 resets the peak to what is used now.
        fs::write(format!("{process}/clear_refs"), "5").expect("it runs");
        kib
    }

    /// Does what a caller does with a session, and returns the peak of each.
    async fn use_session(&self, id: &str, turns: usize) -> Vec<(&'static str, i64)> {
        let owner = &self.owner;
        let mut peaks = Vec::new();
        let mut begun = Instant::now();
        let mut peak = |what: &'static str| {
            let kib = self.peak_kib();
            println!("{what}: {kib} KiB, {} ms", begun.elapsed().as_millis());
            peaks.push((what, kib));
            begun = Instant::now();
        };
        let head = owner.get(&format!("/sessions/{id}")).await.ok()["head"].as_i64().expect("a head");
        owner.get(&format!("/sessions/{id}/events")).await.ok();
        owner.get(&format!("/sessions/{id}/messages")).await.ok();
        peak("open");
        for _ in 0..turns {
            owner.post(&path(id), json!({ "text": "Go on." })).await.ok();
            idle(owner, id).await;
        }
        peak("turns");
        let mut export =
            owner.request(Method::GET, &format!("/sessions/{id}/export")).send().await.expect("an export");
        let mut lines = 0;
        while let Some(chunk) = export.chunk().await.expect("all of it") {
            lines += chunk.iter().filter(|byte| **byte == b'\n').count() as i64;
        }
        assert!(lines >= head, "{lines} lines");
        peak("export");
        let path = format!("/sessions/{id}/stream?after=0");
        let mut stream = owner.request(Method::GET, &path).send().await.expect("a stream");
        let (mut frames, mut before) = (0, b'\n');
        while frames < head {
            for byte in stream.chunk().await.expect("a chunk").expect("a stream does not end") {
                // Of a frame's lines, only that of the id begins with an i.
                frames += i64::from((before, byte) == (b'\n', b'i'));
                before = byte;
            }
        }
        peak("stream");
        peaks
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_session_needs_no_more_memory_than_a_short_one() {
    let ground = Ground::new().await;
    let fake = Fake::decide(Anthropic::default(), |_| Step::text("Done.")).await;
    let first = Measured::start(&ground, &fake.base_url);
    let agent =
        json!({ "name": "fake", "prompt": "", "model": "anthropic/m-1", "key": "sk-a-key-of-the-test" });
    first.owner.post("/agents", agent).await.ok();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let created = first.owner.post("/sessions", json!({ "agent": "fake", "input": "Go." })).await.ok();
        let id = created["session"]["id"].as_str().expect("an id").to_owned();
        first.owner.settled(&id, 1).await;
        sessions.push(id);
    }
    first.program.kill();
    age(&ground, &sessions[1], events()).await;
    // A process that has nothing of either session in memory.
    let second = Measured::start(&ground, &fake.base_url);
    let short = second.use_session(&sessions[0], 2).await;
    let long = second.use_session(&sessions[1], 2).await;
    for ((what, short), (_, long)) in short.iter().zip(&long) {
        assert!(long - short < MORE_KIB, "{what}: {long} KiB instead of {short} KiB");
    }
    let asked = fake.requests();
    assert_eq!(
        messages(&asked[asked.len() - 1]),
        2 * (events() / 1_000) + 5,
        "a question and an answer a turn"
    );
    second.program.kill();
}

/// Number of messages in a request to the model.
fn messages(request: &Request) -> i64 {
    request.body["messages"].as_array().expect("messages").len() as i64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_fold_is_used_and_one_that_is_not_of_the_log_is_ignored() {
    let ground = Ground::new().await;
    let fake = Fake::decide(Anthropic::default(), |_| Step::text("Done.")).await;
    let base_url = format!("--anthropic-base-url={}", fake.base_url);
    let service = ground.serve(&[&base_url]).await;
    let id = ask_model(&service.owner(), "Go.").await;
    service.owner().settled(&id, 1).await;
    service.stop().await;
    assert_eq!(ground.count("select count(*) from log_fold").await, 0, "a short log is read");
    age(&ground, &id, 2_000).await;
    let mut expected = 2 + 2 * 2 + 1;
    for change in [
        "select 1",
        "update log_fold set fold = '\\x00'",
        "update log_fold set fold = substr(fold, 1, length(fold) - 40)",
        "update log_fold set version = 99",
        // The database lost the last events of the fold, and has others in their place.
        "update event e set event_id = gen_random_uuid() from log_fold f where e.session_id = f.session_id and e.seq = f.seq",
        // Without the fold, the conversation would begin late.
        "delete from event where seq < 1000",
    ] {
        ground.sql(change).await;
        let service = ground.serve(&[&base_url]).await;
        service.owner().post(&path(&id), json!({ "text": "Go on." })).await.ok();
        idle(&service.owner(), &id).await;
        service.stop().await;
        let asked = fake.requests();
        assert_eq!(messages(&asked[asked.len() - 1]), expected, "after: {change}");
        let (stored, head) = (
            ground.count("select coalesce(max(seq), 0) from log_fold").await,
            ground.count("select head from session").await,
        );
        assert!(head - stored < limit::FOLD_STORE_EVENTS, "{stored} of {head}, after: {change}");
        expected += 2;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_no_model_can_read_ends_the_turn() {
    let ground = Ground::new().await;
    let fake = Fake::decide(Anthropic::default(), |_| Step::text("Done.")).await;
    let base_url = format!("--anthropic-base-url={}", fake.base_url);
    let service = ground.serve(&[&base_url]).await;
    let owner = service.owner();
    let id = ask_model(&owner, "Go.").await;
    owner.settled(&id, 1).await;
    service.stop().await;
    let input = "
        insert into event (org_id, session_id, seq, ts, event_id, type, level, actor, turn_id, body, body_bytes)
        select org_id, session_id, head + n, updated_at, gen_random_uuid(), 'tool.result', 2,
               '{\"type\":\"system\"}', gen_random_uuid(), json_build_object('call_id', 'toolu_' || n, 'tool', 'bash',
               'output', repeat('x', 200000), 'is_error', false, 'outcome', 'ran', 'duration_ms', 1), 200000
        from session, generate_series(1, 100) n;
        update session set head = head + 100";
    const { assert!(limit::CONVERSATION_BYTES_MAX < 100 * 200_000) };
    ground.sql(input).await;
    let service = ground.serve(&[&base_url]).await;
    let owner = service.owner();
    let head = owner.get(&format!("/sessions/{id}")).await.ok()["head"].as_i64().expect("a head");
    owner.post(&path(&id), json!({ "text": "Go on." })).await.ok();
    let log = owner.follow_from(&id, head, |event| event["type"] == "turn.completed").await;
    let end = &log[log.len() - 1]["body"];
    assert_eq!((&end["yield_reason"], &end["error"]["code"]), (&json!("error"), &json!("context_exhausted")));
    assert_eq!(fake.calls(), 1, "no model is asked");
    service.stop().await;
}
