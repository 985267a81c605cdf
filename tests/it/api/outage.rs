//! Postgres is away, or its disk is full: 503 with Retry-After, no 500, and full recovery afterwards.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use reqwest::Method;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{UnshareFlags, unshare_unsafe},
};
use serde_json::json;
use sojourn::{base::Origin, store::embedded::Embedded};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tokio::time::sleep;
use uuid::Uuid;

use super::{data, id, noop};
use crate::support::service::{Service, send};

/// A database server of this test only; its data directory is removed with it.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let home = TempDir::new().expect("a directory");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        Self(home)
    }

    async fn start(&self) -> Embedded {
        Embedded::start(self.0.path(), &Origin::system(), &|_| {}).await.expect("the database starts")
    }

    /// Starts the server with a tmpfs of 32 MiB at `small`, mounted in the server's own namespace.
    fn start_with_disk(&self, small: &Path) -> Embedded {
        fs::create_dir(small).expect("a directory");
        thread::scope(|scope| {
            let started = scope.spawn(|| {
                // SAFETY: the thread shares its table of descriptors with the others, as before.
                unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("a namespace of mounts, as root");
                mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
                    .expect("a change");
                mount("tmpfs", small, "tmpfs", MountFlags::empty(), c"size=32m,mode=777").expect("a mount");
                // Processes that this runtime starts have the mounts of this thread.
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(self.start())
            });
            started.join().expect("the server starts")
        })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // As root the data directory is elsewhere, behind a link.
        if let Ok(home) = self.0.path().join("postgres").canonicalize()
            && !home.starts_with(self.0.path())
        {
            let _gone = fs::remove_dir_all(home);
        }
    }
}

#[tokio::test]
async fn without_its_database_the_service_answers_503_and_recovers_afterwards() {
    let home = Home::new();
    let embedded = home.start().await;
    let data_dir = TempDir::new().expect("a directory");
    let service = Service::on(&embedded.urls(), data_dir.path(), &[]).await;
    let owner = service.owner();
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a", "input": "before" })).await.ok());
    owner.settled(&session, 1).await;
    assert!(embedded.stop().await.expect("it stops"), "nobody else uses it");
    let ready = owner.base.replace("/v3", "/readyz");
    for (method, path, body) in [
        (Method::GET, "/sessions".to_owned(), None),
        (Method::POST, "/sessions".to_owned(), Some(json!({ "agent": "a" }))),
        (Method::GET, format!("/sessions/{session}/events"), None),
        (Method::GET, format!("/sessions/{session}/stream"), None),
        (Method::POST, format!("/sessions/{session}/messages"), Some(json!({ "text": "x" }))),
    ] {
        let mut request = owner.request(method, &path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = send(request).await;
        assert!(answer.headers.contains_key("retry-after"), "{path}");
        assert_eq!(answer.error(503)["type"], "unavailable", "{path}");
    }
    let client = reqwest::Client::new();
    assert_eq!(send(client.get(&ready)).await.status, 503);
    assert_eq!(send(client.get(ready.replace("/readyz", "/healthz"))).await.status, 200, "the process lives");
    let embedded = home.start().await;
    assert_eq!(send(client.get(&ready)).await.status, 200, "lost connections are reopened");
    owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "after" })).await.ok();
    owner.settled(&session, 2).await;
    let messages = owner.get(&format!("/sessions/{session}/messages")).await.ok();
    let texts: Vec<_> = data(&messages).iter().map(|event| event["body"]["text"].clone()).collect();
    assert_eq!(texts, ["before", "done", "after", "done"]);
    service.stop().await;
    embedded.stop().await.expect("it stops");
}

/// Text that needs as many bytes in the database.
fn incompressible(bytes: usize) -> String {
    let ids = std::iter::repeat_with(|| Uuid::new_v4().simple().to_string());
    ids.take(bytes / 32).collect()
}

async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.map(|_| ())
}

/// Fills the disk of the tablespace `small`.
async fn fill(superuser: &mut PgConnection) {
    for rows in [100, 1] {
        let more = format!("insert into filler select repeat('x', 8000) from generate_series(1, {rows})");
        let full = loop {
            if let Err(error) = run(superuser, &more).await {
                break error;
            }
        };
        let code = full.as_database_error().and_then(sqlx::error::DatabaseError::code);
        assert_eq!(code.as_deref(), Some("53100"), "{full}");
    }
}

#[tokio::test]
async fn a_full_disk_of_the_database_is_answered_503_and_loses_nothing() {
    let home = Home::new();
    let small = home.0.path().join("small");
    let embedded = home.start_with_disk(&small);
    let urls = embedded.urls();
    let data_dir = TempDir::new().expect("a directory");
    let service = Service::on(&urls, data_dir.path(), &[]).await;
    let url = urls.owner.replace("sojourn_owner@", "postgres@");
    let mut superuser = PgConnection::connect(&url).await.expect("a connection");
    for sql in [
        format!("copy (select 1) to program 'mkdir -m 700 {}/data'", small.display()),
        format!("create tablespace small location '{}/data'", small.display()),
        "do $$ begin for n in 0..15 loop
             execute format('alter table event_%s set tablespace small', lpad(n::text, 2, '0'));
         end loop; end $$"
            .to_owned(),
        "create table filler (data text) with (autovacuum_enabled = off) tablespace small;
         alter table filler alter column data set storage plain"
            .to_owned(),
    ] {
        run(&mut superuser, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    let owner = service.owner();
    let text = incompressible(20_000);
    let session = owner.play(json!([])).await;
    owner.settled(&session, 1).await;
    // Of a turn that runs meanwhile, the answer does not fit.
    let running = owner.play(json!([{ "text": text, "delay_ms": 8_000 }])).await;
    owner.until(&format!("/sessions/{running}"), |session| session["status"] == "running").await;
    let begun = Instant::now();
    fill(&mut superuser).await;
    let message = |session: &str| {
        let request = owner.request(Method::POST, &format!("/sessions/{session}/messages"));
        request.header("Idempotency-Key", "once").json(&json!({ "text": text }))
    };
    let answer = send(message(&session)).await;
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    assert_eq!(answer.error(503)["type"], "unavailable");
    sleep(Duration::from_secs(10).saturating_sub(begun.elapsed())).await;
    let events = owner.get(&format!("/sessions/{running}/events?limit=200")).await.ok();
    assert!(data(&events).iter().all(|event| event["type"] != "turn.completed"), "it does not fit: {events}");

    run(&mut superuser, "drop table filler").await.expect("the disk has free space");
    let accepted = send(message(&session)).await.ok();
    assert_eq!(send(message(&session)).await.ok(), accepted);
    owner.settled(&session, 2).await;
    let log = owner.settled(&running, 1).await;
    assert_eq!(log.iter().filter(|event| event["type"] == "step.completed").count(), 1);
    let ends: Vec<_> = log.iter().filter(|event| event["type"] == "turn.completed").collect();
    assert_eq!((ends.len(), &ends[0]["body"]["yield_reason"]), (1, &json!("completed")), "{ends:?}");
    let messages = owner.get(&format!("/sessions/{session}/messages")).await.ok();
    let theirs = data(&messages).iter().filter(|event| event["body"]["text"] == text.as_str());
    assert_eq!(theirs.count(), 1, "the message is there once");
    superuser.close().await.expect("a clean end");
    service.stop().await;
    embedded.stop().await.expect("it stops");
}
