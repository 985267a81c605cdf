//! Archive: everything open is settled at once, and the remaining resources are removed.

use std::time::Duration;

use serde_json::json;
use sojourn::{
    domain::{
        decide::{Command, Input},
        environment::Size,
    },
    store::{
        admission::{Admission, OrganizationMaxima},
        sandbox::NewSandbox,
    },
};

use super::{
    Scene, appears, ask_model, assert_sound, ends, fold::World, log, of, outputs, processes, run, session,
    wait_until, workspace,
};
use crate::fake::{Fake, Step, anthropic::Anthropic};

#[tokio::test]
async fn an_archive_settles_a_running_tool_and_removes_the_sandbox_with_its_disk() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let mark = format!("archived-{}", std::process::id());
    let id = owner
        .play(json!([run(&format!("touch ready; exec -a {mark} sleep 600")), { "text": "Never." }]))
        .await;
    appears(&scene.ground, "ready").await;
    let disk = workspace(&scene.ground).parent().expect("the disk").to_owned();
    assert!(disk.exists());
    let archived = owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    assert_eq!(archived["status"], "archived");
    let settled = log(owner, &id).await;
    assert_sound(&settled);
    assert_eq!(ends(&settled), ["canceled"]);
    assert!(outputs(&settled)[0].contains("archived"));
    assert_eq!(of(&settled, "tool.result")[0]["body"]["outcome"], "unknown");
    assert_eq!(
        of(&settled, "session.status_changed")[0]["body"],
        json!({ "from": "running", "to": "archived" })
    );

    wait_until("the command and the disk are gone", || processes(&mark) == 0 && !disk.exists()).await;
    let mut superuser = scene.ground.database.superuser().await;
    let left: i64 = sqlx::query_scalar(
        "select (select count(*) from job) + (select count(*) from sandbox where state <> 'ended')",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("a count");
    // The disk is removed before its row is.
    assert!(left <= 2);
    // The worker's own end of the turn comes too late and is refused.
    assert_eq!(log(owner, &id).await, settled);
    let refused = owner.post(&format!("/sessions/{id}/messages"), json!({ "text": "More." })).await;
    assert_eq!(refused.error(409)["code"], "archived");
    assert_eq!(session(owner, &id).await["last_turn"]["yield_reason"], "canceled");
    scene.close().await;
}

#[tokio::test]
async fn an_archive_settles_calls_that_no_column_can_hold() {
    // U+0000 is valid in JSON, and invalid in Postgres text. Callers may not send it; models may.
    let odd = json!({ "path": "odd", "content": "a\u{0}b" });
    let step = Step::default()
        .and_tool("write", odd)
        .and_tool("bash", json!({ "command": "touch ready; sleep 600" }));
    let fake = Fake::script(Anthropic::default(), [step]).await;
    let scene = Scene::open(&[&format!("--anthropic-base-url={}", fake.base_url)]).await;
    let owner = &scene.owner;
    let id = ask_model(owner, "Go.").await;
    appears(&scene.ground, "ready").await;
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    let settled = log(owner, &id).await;
    assert_sound(&settled);
    assert_eq!(of(&settled, "tool.result").len(), 2);
    scene.close().await;
}

#[tokio::test]
async fn an_archive_ends_what_waits_too() {
    let scene = Scene::open(&["--role=api"]).await;
    let owner = &scene.owner;
    let id = owner.play(json!([{ "text": "Never." }])).await;
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    let settled = log(owner, &id).await;
    assert_sound(&settled);
    assert_eq!(ends(&settled), ["canceled"]);
    // A worker that starts later finds nothing to do.
    let worker = scene.ground.serve(&["--role=worker"]).await;
    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    worker.stop().await;
    assert_eq!(log(owner, &id).await, settled);
    scene.close().await;
}

#[tokio::test]
async fn no_sandbox_is_begun_for_a_session_that_is_closed_or_lost() {
    let world = World::open().await;
    let id = world.create(Some(Input { text: "Go.".to_owned(), ..Input::default() })).await;
    let first = world.claim(1).await.pop().expect("a job").fence().epoch;
    let second = world.claim(1).await.pop().expect("a job").fence().epoch;
    let row = || NewSandbox {
        org: world.org,
        session: id,
        sandbox: world.origin.id(),
        node: uuid::Uuid::from_u128(2),
        life: None,
        size: Size { cpu_millis: 0, memory_bytes: 0, pids: 0, disk_bytes: 0 },
        first_check_after: Duration::from_secs(60),
    };
    let admit = async |row: &NewSandbox, epoch| {
        let maxima = OrganizationMaxima::default();
        world.store.admit_sandbox(row, epoch, &maxima, Some(&[row.node])).await.expect("an answer")
    };
    assert_eq!(admit(&row(), first).await, Admission::Stale);
    let held = row();
    assert_eq!(admit(&held, second).await, Admission::Admitted(Duration::ZERO));
    world.store.end_sandbox(held.org, held.session, held.sandbox).await.expect("an end");
    world.command(id, Command::Archive).await.expect("an archive");
    assert_eq!(admit(&row(), second).await, Admission::Stale);
    world.store.close().await;
}
