//! Stored files: how long they live, how many there may be, and what is refused.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use axum::{Router, body::Body, http::StatusCode, response::Redirect, routing::get};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    Scene,
    files::{by_id, create, inline},
    log, of,
};
use crate::{
    fake::file_parts::png,
    support::{
        service::{Caller, send},
        wait::wait_for,
    },
};

/// Number of objects of the blob store.
fn objects(data_dir: &Path) -> usize {
    let mut directories = vec![data_dir.join("blobs")];
    let mut count = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => directories.push(entry.path()),
                false => count += usize::from(entry.file_name() != "store-id"),
            }
        }
    }
    count
}

/// A server of files on this machine.
async fn files_server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let elsewhere = format!("http://127.0.0.2:{}/a.png", address.port());
    let large = || async { Body::from(vec![0; (30 << 20) + 1]) };
    let routes = Router::new()
        .route("/pictures/a.png", get(|| async { png(12, 10) }))
        .route("/moved", get(|| async { Redirect::temporary("/pictures/a.png") }))
        .route("/elsewhere", get(move || async move { Redirect::temporary(&elsewhere) }))
        .route("/circle", get(|| async { Redirect::temporary("/circle") }))
        .route("/missing", get(|| async { StatusCode::NOT_FOUND }))
        .route("/large", get(large));
    tokio::spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
    address
}

fn by_url(url: &str) -> Value {
    json!({ "type": "image", "source": { "type": "url", "url": url } })
}

#[tokio::test]
async fn a_file_is_fetched_from_its_address_and_each_redirect_is_checked() {
    let server = files_server().await;
    // Where a redirect leads to must not be connected to.
    let denied = std::net::TcpListener::bind(("127.0.0.2", server.port())).expect("the other address");
    denied.set_nonblocking(true).expect("a listener");
    let scene = Scene::open(&["--allow-private-egress=on", "--deny-cidrs=127.0.0.2/32"]).await;
    let owner = &scene.owner;
    let agent = owner.inline_agent().await;
    for path in ["pictures/a.png", "moved"] {
        let content = json!([by_url(&format!("http://{server}/{path}"))]);
        let input = json!({ "script": [{ "text": "Seen." }] });
        let id = create(owner, json!({ "agent": agent, "input": input, "content": content })).await;
        let events = owner.settled(&id, 1).await;
        let file = &of(&events, "user.message")[0]["body"]["content"][1];
        assert_eq!((&file["name"], &file["image"]["width"]), (&json!("a.png"), &json!(12)), "{path}");
    }
    for (path, words) in [
        ("elsewhere", "address"),
        ("circle", "redirects more than 5 times"),
        ("missing", "answered 404"),
        ("large", "more than 30 MiB"),
    ] {
        let body = json!({ "agent": agent, "content": [by_url(&format!("http://{server}/{path}"))] });
        let error = owner.post("/sessions", body).await.error(400);
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{path}: {error}");
        assert_eq!(error["param"], "content[0].source");
    }
    assert!(denied.accept().is_err(), "nothing connected");
    scene.close().await;
}

#[tokio::test]
async fn nothing_is_left_of_a_file_whose_request_was_refused_or_which_is_deleted() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let body = json!({ "agent": "unknown", "content": [inline("image", "wide.png", &png(2_100, 20))] });
    owner.post("/sessions", body).await.error(404);
    let kept = owner.upload("kept.txt", b"kept".to_vec()).await.ok();
    let count = async |query: &str| scene.ground.count(query).await;
    assert_eq!((count("select count(*) from file").await, objects(scene.ground.data_dir.path())), (2, 3));
    scene.ground.sql("update file set created_at = created_at - interval '25 hours'").await;
    wait_for("the deletion of the unused file", async || {
        (count("select count(*) from file").await == 1).then_some(())
    })
    .await;
    owner.delete(&format!("/files/{}", kept["id"].as_str().expect("an id"))).await.ok();
    assert_eq!(count("select count(*) from purged_session_blobs").await, 2);
    scene.ground.sql("update purged_session_blobs set created_at = created_at - interval '2 minutes'").await;
    wait_for("the removal of the blobs", async || (objects(scene.ground.data_dir.path()) == 0).then_some(()))
        .await;
    scene.close().await;
}

#[tokio::test]
async fn the_files_of_an_organization_and_of_a_session_are_bounded() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let id = create(owner, json!({ "agent": owner.inline_agent().await })).await;
    let file = owner.upload("a.txt", b"a".to_vec()).await.ok();
    // 1,000 files of the session.
    scene
        .ground
        .sql(
            "insert into file (org_id, file_id, name, media_type, bytes, sha256, kept)
             select s.org_id, gen_random_uuid(), 'x', 'text/plain', 1, '', false
             from session s, generate_series(1, 1000);
             insert into session_file (org_id, session_id, file_id)
             select s.org_id, s.session_id, f.file_id from session s join file f using (org_id) where not f.kept",
        )
        .await;
    let path = format!("/sessions/{id}/messages");
    let error = owner.post(&path, json!({ "content": [by_id("document", &file)] })).await.error(409);
    assert_eq!(error["code"], "too_many_files");
    assert_eq!(of(&log(owner, &id).await, "user.message").len(), 0, "the message was not accepted");
    scene.ground.sql("update file set bytes = 10 * 1024::bigint ^ 3 where kept").await;
    assert_eq!(owner.upload("b.txt", b"b".to_vec()).await.error(409)["code"], "file_storage_full");
    let other = scene.service.caller(&scene.ground.organization("other").await);
    other.upload("b.txt", b"b".to_vec()).await.ok();
    scene.close().await;
}

#[tokio::test]
async fn an_upload_is_repeated_with_its_key_and_stores_one_file() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let upload = async |name: &str| {
        let request = owner.request(Method::POST, &format!("/files?name={name}"));
        send(request.header("idempotency-key", "once").body("a")).await
    };
    let first = upload("a.txt").await.ok();
    assert_eq!(upload("a.txt").await.ok()["id"], first["id"]);
    assert_eq!(upload("b.txt").await.error(422)["code"], "idempotency_mismatch");
    assert_eq!(scene.ground.count("select count(*) from file").await, 1);
    scene.close().await;
}

/// Starts an upload that sends its body when it is told to.
fn slow_upload(caller: &Caller) -> (tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<u16>) {
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let body = futures::stream::once(async {
        let _ = wait.await;
        Ok::<_, std::io::Error>("late")
    });
    let request = caller.request(Method::POST, "/files?name=slow").body(reqwest::Body::wrap_stream(body));
    (go, tokio::spawn(async { send(request).await.status.as_u16() }))
}

#[tokio::test]
async fn slow_uploads_of_one_organization_delay_only_its_own() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let (senders, uploads): (Vec<_>, Vec<_>) = (0..4).map(|_| slow_upload(owner)).unzip();
    wait_for("four places are taken", async || {
        let waiting = owner.upload("fifth", b"5".to_vec());
        tokio::time::timeout(std::time::Duration::from_millis(500), waiting).await.is_err().then_some(())
    })
    .await;
    let other = scene.service.caller(&scene.ground.organization("other").await);
    other.upload("b.txt", b"b".to_vec()).await.ok();
    let busy = owner.upload("fifth", b"5".to_vec()).await;
    assert_eq!(busy.error(503)["type"], "unavailable", "it waited for 10 s");
    senders.into_iter().for_each(|go| go.send(()).expect("the upload waits"));
    for upload in uploads {
        assert_eq!(upload.await.expect("an answer"), 201);
    }
    owner.upload("fifth", b"5".to_vec()).await.ok();
    scene.close().await;
}

#[tokio::test]
async fn a_file_lives_until_it_is_deleted_or_until_its_last_session_is() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let kept = owner.upload("kept.txt", b"kept".to_vec()).await.ok();
    let agent = owner.inline_agent().await;
    let content = json!([by_id("document", &kept), inline("document", "own.txt", b"own")]);
    let script = json!({ "script": [{ "text": "Done." }] });
    let id = create(owner, json!({ "agent": agent, "input": script, "content": content })).await;
    let events = owner.settled(&id, 1).await;
    let own = of(&events, "user.message")[0]["body"]["content"][2]["file_id"].clone();
    let path = |file: &Value| format!("/files/{}", file.as_str().expect("an id"));
    assert_eq!(owner.get(&path(&own)).await.ok()["kept"], false);
    assert_eq!(owner.delete(&path(&kept["id"])).await.error(409)["code"], "in_use");
    let bytes =
        owner.request(Method::GET, &format!("{}/content", path(&kept["id"]))).send().await.expect("bytes");
    assert_eq!(bytes.headers()["x-content-type-options"], "nosniff");
    assert_eq!(bytes.text().await.expect("bytes"), "kept");
    let other = scene.service.caller(&scene.ground.organization("other").await);
    other.get(&path(&kept["id"])).await.error(404);
    other.delete(&path(&kept["id"])).await.error(404);
    let foreign = json!({ "agent": "none", "content": [by_id("document", &kept)] });
    assert_eq!(other.post("/sessions", foreign).await.error(400)["param"], "content[0].source");

    owner.post(&format!("/sessions/{id}/archive"), json!({})).await.ok();
    owner.delete(&format!("/sessions/{id}")).await.ok();
    owner.get(&path(&own)).await.error(404);
    assert_eq!(owner.get(&path(&kept["id"])).await.ok()["kept"], true);
    owner.delete(&path(&kept["id"])).await.ok();
    owner.get(&path(&kept["id"])).await.error(404);
    let files = owner.get("/files").await.ok();
    assert_eq!(files["data"], json!([]));
    scene.close().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_refused_when_it_is_sent() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let photo = png(400, 300);
    owner.upload("half.png", photo[..photo.len() / 2].to_vec()).await.error(400);
    owner.upload("empty", Vec::new()).await.error(400);
    let agent = owner.inline_agent().await;
    let refused = async |part: Value| {
        let body = json!({ "agent": agent, "content": [part] });
        let error = owner.post("/sessions", body).await.error(400);
        assert!(error["param"].as_str().is_some_and(|param| param.starts_with("content[0]")), "{error}");
        error["message"].as_str().expect("words").to_owned()
    };
    assert!(refused(inline("image", "a.png", b"no image")).await.contains("not a PNG"));
    refused(json!({ "type": "image", "source": { "type": "base64", "data": "%" } })).await;
    refused(
        json!({ "type": "image", "source": { "type": "file", "file_id": "fil_0000000000000000000000000m" } }),
    )
    .await;
    // No connection is tried to a private address.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    for url in [format!("https://127.0.0.1:{port}/a.png"), format!("http://127.0.0.1:{port}/a.png")] {
        refused(json!({ "type": "image", "source": { "type": "url", "url": url } })).await;
    }
    assert!(listener.accept().is_err(), "nothing connected");
    assert_eq!(owner.get("/files").await.ok()["data"], json!([]), "nothing is left of what was refused");
    scene.close().await;
}

#[tokio::test]
async fn a_client_token_sends_bytes_and_names_no_file_of_the_organization() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let kept = owner.upload("kept.txt", b"kept".to_vec()).await.ok();
    let body = json!({ "agent": owner.inline_agent().await, "input": { "script": [{ "text": "Done." }] } });
    let created = owner.post("/sessions", body).await.ok();
    let (id, token) = (created["session"]["id"].as_str().expect("an id"), created["client_token"].as_str());
    owner.settled(id, 1).await;
    let browser = scene.service.caller(token.expect("a token"));
    let path = format!("/sessions/{id}/messages");
    browser.post(&path, json!({ "content": [by_id("document", &kept)] })).await.error(403);
    let url = json!({ "type": "image", "source": { "type": "url", "url": "https://example.com/a.png" } });
    browser.post(&path, json!({ "content": [url] })).await.error(403);
    browser
        .post(
            &path,
            json!({ "text": super::script(json!([{ "text": "Yes." }])),
        "content": [inline("document", "own.txt", b"own")] }),
        )
        .await
        .ok();
    owner.settled(id, 2).await;
    assert_eq!(of(&log(owner, id).await, "user.message").len(), 2);
    browser.get(&format!("/files/{}", kept["id"].as_str().expect("an id"))).await.error(401);
    scene.close().await;
}
