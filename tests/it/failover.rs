//! Failover of the database, seen by one process: a standby, and a new primary that lacks the last commits.
//!
//! `tests/failover` moves a real cluster under load. Here the database is replaced by an earlier copy of itself.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sojourn::{
    base::{Origin, limit::NODE_HEARTBEAT_TIMEOUT, seal::MasterKey},
    queue::{Lease, Queue},
    store::{
        self, Store,
        job::Claimant,
        notification::Notifications,
        pool::PoolSizes,
        process::Process,
        record::{Fence, Record, Recorded},
    },
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::{
    support::{
        service::{Caller, Ground, send},
        wait::wait_for,
    },
    turns::{of, outputs, run, script},
};

/// A copy of a test's database, as a replica that receives nothing more.
struct Replica<'a> {
    ground: &'a Ground,
    admin: PgConnection,
}

impl<'a> Replica<'a> {
    /// Copies the database. Its connections are closed meanwhile.
    async fn of(ground: &'a Ground) -> Self {
        let name = &ground.database.name;
        let url = ground.database.superuser_url().replace(&format!("/{name}?"), "/postgres?");
        let admin = PgConnection::connect(&url).await.expect("the superuser may connect");
        let mut replica = Self { ground, admin };
        replica.refuse_connections().await;
        replica.run(format!("create database {name}_replica template {name} owner sojourn_owner")).await;
        // Privileges and settings of roles are not copied with a database.
        replica.run(format!("grant connect on database {name}_replica to sojourn_app, sojourn_system")).await;
        replica.run(format!("alter database {name} allow_connections true")).await;
        replica
    }

    /// Makes the copy the database. Everything since is lost.
    async fn promote(mut self) {
        let name = &self.ground.database.name;
        self.refuse_connections().await;
        self.run(format!("drop database {name} with (force)")).await;
        self.run(format!("alter database {name}_replica rename to {name}")).await;
        self.admin.close().await.expect("a clean end");
    }

    async fn refuse_connections(&mut self) {
        let name = &self.ground.database.name;
        self.run(format!("alter database {name} allow_connections false")).await;
        self.run(format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"))
            .await;
        let open = format!("select count(*) from pg_stat_activity where datname = '{name}'");
        wait_for("its connections end", async || {
            let open: i64 =
                sqlx::query_scalar(AssertSqlSafe(open.clone())).fetch_one(&mut self.admin).await.ok()?;
            (open == 0).then_some(())
        })
        .await;
    }

    async fn run(&mut self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut self.admin).await.expect(&sql);
    }
}

/// Sends a message until it is accepted; the database may be away for a moment.
async fn message(owner: &Caller, session: &str, key: &str) {
    play(owner, session, key, &script(json!([{ "text": format!("Answer to {key}.") }]))).await;
}

/// The same with a script.
async fn play(owner: &Caller, session: &str, key: &str, script: &str) {
    wait_for("the message is accepted", async || {
        let path = format!("/sessions/{session}/messages");
        let request = owner.request(Method::POST, &path).header("idempotency-key", key);
        let answer = send(request.json(&json!({ "text": script }))).await;
        assert!([202, 503].contains(&answer.status.as_u16()), "{answer:?}");
        (answer.status == StatusCode::ACCEPTED).then_some(())
    })
    .await;
}

/// Returns the log as stored. A stream that follows shows inputs as they were appended: not processed.
async fn page(owner: &Caller, session: &str) -> Vec<Value> {
    let page = owner.get(&format!("/sessions/{session}/events?limit=500")).await.ok();
    page["data"].as_array().expect("a page").clone()
}

#[tokio::test]
async fn after_a_loss_of_commits_a_session_goes_on_from_what_is_left() {
    loses_commits(Ground::new().await).await;
}

/// A pooler keeps the connections of its clients open when the server changes.
#[tokio::test]
async fn after_a_loss_of_commits_behind_a_pooler_a_session_goes_on_from_what_is_left() {
    loses_commits(Ground::new().await.pooled().await).await;
}

async fn loses_commits(ground: Ground) {
    let service = ground.serve(&["--role=api"]).await;
    let worker = ground.serve(&["--role=worker"]).await;
    let owner = service.owner();
    let session = owner.play(json!([{ "text": "Answer to the first." }])).await;
    owner.settled(&session, 1).await;
    let kept = page(&owner, &session).await;
    let replica = Replica::of(&ground).await;
    message(&owner, &session, "lost").await;
    let lost = owner.settled(&session, 2).await;
    assert!(lost.len() > kept.len());
    // This reader has everything, and follows.
    let path = format!("/sessions/{session}/stream?after={}", lost.len());
    let reader = owner.request(Method::GET, &path).send().await.expect("an answer");
    assert_eq!(reader.status(), StatusCode::OK);
    replica.promote().await;

    // Its stream ends, and the next one is refused.
    reader.text().await.expect("a clean end");
    wait_for("the loss is told", async || {
        let answer = send(owner.request(Method::GET, &path)).await;
        if answer.status == StatusCode::SERVICE_UNAVAILABLE {
            return None;
        }
        assert_eq!(answer.error(409)["code"], "events_lost");
        Some(())
    })
    .await;
    // The same key again: its first use is lost, too.
    message(&owner, &session, "lost").await;
    // Inputs that wait share a turn, which plays the script of the newest.
    owner.settled(&session, 2).await;
    message(&owner, &session, "new").await;
    let log = wait_for("both turns end", async || {
        let log = page(&owner, &session).await;
        let has = |text: &str| {
            log.iter()
                .any(|event| event["type"] == "agent.message" && event["body"].to_string().contains(text))
        };
        (has("lost") && has("new") && log.last()?["type"] == "turn.completed").then_some(log)
    })
    .await;
    let seqs: Vec<_> = log.iter().map(|event| event["seq"].as_i64()).collect();
    assert_eq!(seqs, (1..=log.len() as i64).map(Some).collect::<Vec<_>>());
    assert_eq!(log[..kept.len()], kept);
    let inputs = log.iter().filter(|event| event["type"] == "user.message").count();
    assert_eq!(inputs, 3, "{log:#?}");
    worker.stop().await;
    service.stop().await;
}

#[tokio::test]
async fn a_connection_that_cannot_write_is_replaced() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let session = owner.play(json!([{ "text": "Before." }])).await;
    owner.settled(&session, 1).await;
    let name = &ground.database.name;
    let roles = "sojourn_app in database {} set default_transaction_read_only =";
    let set = |value: &str| format!("alter role {} {value}", roles.replace("{}", name));
    ground.sql(&set("on")).await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and usename = 'sojourn_app'";
    ground.sql(end).await;
    let path = format!("/sessions/{session}/messages");
    let answer = owner.post(&path, json!({ "text": "Now." })).await;
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    answer.error(503);
    // Connections that are open stay as they are, like those to a former primary.
    ground.sql(&set("off")).await;
    message(&owner, &session, "after").await;
    owner.settled(&session, 2).await;
    service.stop().await;
}

#[tokio::test]
async fn a_lease_from_before_a_failover_appends_only_after_it_read_the_log_again() {
    appends_late(Ground::new().await).await;
}

#[tokio::test]
async fn a_lease_from_before_a_failover_behind_a_pooler_appends_only_after_it_read_the_log_again() {
    appends_late(Ground::new().await.pooled().await).await;
}

/// A store of its own, with few connections.
fn store(ground: &Ground) -> Store {
    let master = MasterKey::parse("a passphrase that is long enough for tests").expect("a master key");
    Store::open(&ground.service_urls(), PoolSizes { app: 1, system: 1 }, master).expect("a store")
}

async fn appends_late(ground: Ground) {
    let service = ground.serve(&["--role=api"]).await;
    let owner = service.owner();
    let agent = owner.inline_agent().await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let made = owner.post("/sessions", json!({ "agent": agent })).await.ok();
        sessions.push(made["session"]["id"].as_str().expect("an id").parse().expect("an id"));
    }
    let store = store(&ground);
    let org = store.find_key(&owner.key).await.expect("the owner's key").expect("a key").org;
    service.stop().await;
    let origin = Origin::system();
    let record = |session, generation| {
        let fence = Fence { org, session, epoch: 0, worker: Uuid::from_u128(1), generation };
        Record {
            fence,
            turn: None,
            parent: None,
            ts: origin.now(),
            events: Vec::new(),
            actions_to: None,
            steers_to: None,
            snapshot: None,
        }
    };
    let all = |generation| sessions.iter().map(|id| record(*id, generation)).collect::<Vec<_>>();
    let is_after = |recorded: &Recorded| matches!(recorded, Recorded::After { .. });
    let before = store.generation();
    assert!(is_after(&store.record(&record(sessions[0], before)).await.expect("an answer")));
    let replica = Replica::of(&ground).await;
    replica.promote().await;

    let late =
        wait_for("the database answers", async || store.record(&record(sessions[0], before)).await.ok())
            .await;
    assert_eq!(late, Recorded::Late);
    assert_eq!(store.record_batch(&all(before)).await.expect("an answer"), vec![Some(Recorded::Late); 2]);
    let other = Fence { epoch: 7, ..record(sessions[0], before).fence };
    let other = Record { fence: other, ..record(sessions[0], before) };
    assert_eq!(store.record(&other).await.expect("an answer"), Recorded::Late);
    // A claim tells the generation, also over a connection from before.
    queue(&store).claim(1).await.expect("an answer");
    let now = store.generation();
    assert_ne!(now, before);
    assert!(is_after(&store.record(&record(sessions[0], now)).await.expect("an answer")));
    let recorded = store.record_batch(&all(now)).await.expect("an answer");
    assert!(recorded.iter().flatten().filter(|one| is_after(one)).count() == 2, "{recorded:?}");
    store.close().await;
}

/// One worker, whose leases end at once.
fn queue(store: &Store) -> Queue {
    let (worker, node) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let claimant =
        Claimant { worker, nodes: node.into(), lease: Duration::ZERO, node_silence: NODE_HEARTBEAT_TIMEOUT };
    Queue::new(store.clone(), Notifications::new(Process::alone(worker)), Origin::system(), claimant)
}

/// Claims the only job, also after its lease ended; the database may be away for a moment.
async fn claim(queue: &Queue) -> Lease {
    wait_for("the job is claimed", async || {
        queue.ready_due_jobs().await.ok()?;
        queue.claim(1).await.ok()?.leases.pop()
    })
    .await
}

#[tokio::test]
async fn a_delivery_does_not_carry_the_event_that_took_the_seq_of_a_lost_one() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let owner = service.owner();
    let id = owner.play(json!([{ "text": "Never." }])).await;
    let first = &page(&owner, &id).await[0];
    let session = id.parse().expect("an id");
    let event = first["id"].as_str().expect("an id").parse().expect("an id");
    let store = store(&ground);
    let org = store.find_key(&owner.key).await.expect("the owner's key").expect("a key").org;
    assert_eq!(store.event_at(org, session, 1, event).await.expect("an event").id, event);
    let other = store.event_at(org, session, 1, Origin::system().id()).await;
    assert!(matches!(other, Err(store::Error::NotFound)), "{other:?}");
    store.close().await;
    service.stop().await;
}

#[tokio::test]
async fn a_lease_whose_claim_is_lost_does_not_go_on_as_an_earlier_one_of_its_worker() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    service.owner().play(json!([{ "text": "Never." }])).await;
    service.stop().await;
    let store = store(&ground);
    let queue = queue(&store);
    let kept = claim(&queue).await;
    let replica = Replica::of(&ground).await;
    // Without a takeover, only the epochs tell the two claims apart.
    wait_for("the database answers", async || kept.release(Duration::ZERO).await.ok()).await;
    let mut lost = claim(&queue).await;
    assert!(lost.refence().await.expect("an answer"), "its claim is there");
    assert_eq!(lost.claimed().takeovers, kept.claimed().takeovers);
    let epoch = lost.fence().epoch;
    replica.promote().await;
    // The job of the copy belongs to this worker, by its earlier claim.
    let held = "select count(*) from job where worker_id is not null";
    assert_eq!(ground.count(held).await, 1);
    let goes_on = wait_for("the database answers", async || lost.refence().await.ok()).await;
    assert!(!goes_on);
    let next = claim(&queue).await.fence().epoch;
    assert!(next > epoch && epoch > kept.fence().epoch, "{next} follows {epoch}, which is lost");
    store.close().await;
}

#[tokio::test]
async fn a_sandbox_obeys_the_next_lease_when_those_that_it_obeyed_are_lost() {
    let ground = Ground::new().await;
    let never = ["--sandbox-freeze-after-seconds=600", "--sandbox-hibernate-after-seconds=600"];
    let service = ground.serve(&never).await;
    let owner = service.owner();
    let session = owner.play(json!([run("echo kept"), { "text": "Done." }])).await;
    owner.settled(&session, 1).await;
    let replica = Replica::of(&ground).await;
    for turn in 2..=4 {
        let command = format!("echo {turn} >> lost");
        let lost = script(json!([run(&command), { "text": "Done." }]));
        play(&owner, &session, &command, &lost).await;
        owner.settled(&session, turn).await;
    }
    replica.promote().await;
    // The scripted model would give its call the id of a lost one, whose command has run.
    let mut cat = run("cat lost");
    cat["new_ids"] = json!(true);
    let new = script(json!([cat, { "text": "Done." }]));
    play(&owner, &session, "new", &new).await;
    let log = owner.settled(&session, 2).await;
    // What commands did is not undone.
    assert_eq!(outputs(&log), ["kept\n", "2\n3\n4\n"]);
    let attempts: Vec<_> =
        of(&log, "turn.started").iter().map(|event| event["body"]["attempt"].as_i64()).collect();
    assert_eq!(attempts, [Some(1), Some(1)]);
    assert_eq!(of(&log, "sandbox.created").len(), 1);
    service.stop().await;
}
