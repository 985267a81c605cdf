//! Credentials: keys are stored encrypted and never returned.

use reqwest::Method;
use serde_json::{Value, json};

use super::{World, data, id, noop};
use crate::support::service::send;

const SECRET: &str = "sk-ant-a-very-secret-value-ABCD";

#[tokio::test]
async fn a_key_never_comes_out_again() {
    let world = World::still().await;
    let owner = &world.owner;
    let created = owner.post("/credentials", json!({ "key": SECRET, "name": "mine" })).await;
    assert_eq!(created.status, 201);
    assert_eq!((&created.body["provider"], &created.body["last4"]), (&json!("anthropic"), &json!("ABCD")));
    let path = format!("/credentials/{}", id(&created.body));
    let agent = json!({ "name": "a", "prompt": "", "model": "anthropic/x", "key": SECRET });
    let answers = [
        created,
        owner.get(&path).await,
        owner.get("/credentials").await,
        owner.post("/agents", agent).await,
        owner.get("/agents").await,
        owner.post("/sessions", json!({ "agent": "a" })).await,
    ];
    for answer in answers {
        let headers = format!("{:?}", answer.headers);
        assert!(!answer.ok().to_string().contains(SECRET) && !headers.contains(SECRET));
    }
    world.end().await;
}

#[tokio::test]
async fn a_key_lies_sealed_in_its_table() {
    let world = World::still().await;
    world.owner.post("/credentials", json!({ "key": SECRET })).await.ok();
    let mut superuser = world.ground.database.superuser().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "select table_name::text from information_schema.tables where table_schema = 'public' and table_type = 'BASE TABLE'",
    )
    .fetch_all(&mut superuser)
    .await
    .expect("tables");
    for table in tables {
        let sql = format!("select coalesce(string_agg(t::text, ' '), '') from {table} t");
        let text: String =
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut superuser).await.expect("rows");
        assert!(!text.contains(SECRET), "{table} contains the key in clear text");
        // bytea is printed as hexadecimal.
        let hex = sojourn::base::text::hex(SECRET.as_bytes());
        assert!(!text.contains(&hex), "{table} contains the key as clear bytes");
    }
    let sealed: Vec<u8> = sqlx::query_scalar("select sealed_key from credential")
        .fetch_one(&mut superuser)
        .await
        .expect("a row");
    assert!(sealed.len() > SECRET.len());
    drop(superuser);
    world.end().await;
}

#[tokio::test]
async fn one_credential_of_a_provider_is_the_default() {
    let world = World::still().await;
    let owner = &world.owner;
    let make = |key: &str, is_default: bool| {
        owner.post("/credentials", json!({ "key": key, "is_default": is_default }))
    };
    let one = id(&make("sk-1111", true).await.ok());
    let two = id(&make("sk-2222", true).await.ok());
    let defaults = |list: Value| -> Vec<String> {
        data(&list).iter().filter(|row| row["is_default"] == true).map(id).collect()
    };
    assert_eq!(defaults(owner.get("/credentials").await.ok()), [two]);
    let body = json!({ "credential": one, "provider": "openai" });
    let error = put(owner, body).await.error(400);
    assert_eq!(error["param"], "provider");
    assert_eq!(put(owner, json!({ "credential": one })).await.ok()["is_default"], true);
    assert_eq!(defaults(owner.get("/credentials").await.ok()), [one]);
    world.end().await;
}

#[tokio::test]
async fn a_rotated_key_has_another_end_and_a_deleted_one_is_gone() {
    let world = World::still().await;
    let owner = &world.owner;
    let path = format!(
        "/credentials/{}",
        id(&owner.post("/credentials", json!({ "key": "sk-old-1111" })).await.ok())
    );
    assert_eq!(owner.patch(&path, json!({ "key": "sk-new-2222" })).await.ok()["last4"], "2222");
    assert_eq!(owner.get(&path).await.ok()["last4"], "2222");
    assert_eq!(owner.delete(&path).await.status, 204);
    owner.get(&path).await.error(404);
    owner.patch(&path, json!({ "key": "sk-newer" })).await.error(404);
    owner.delete(&path).await.error(404);
    let mut superuser = world.ground.database.superuser().await;
    let left: Vec<u8> = sqlx::query_scalar("select sealed_key from credential")
        .fetch_one(&mut superuser)
        .await
        .expect("a row");
    assert!(left.is_empty(), "the encrypted key was overwritten");
    drop(superuser);
    world.end().await;
}

#[tokio::test]
async fn a_session_without_a_key_for_its_model_is_refused() {
    let world = World::still().await;
    let owner = &world.owner;
    let agent = json!({ "name": "a", "prompt": "", "model": "anthropic/claude-sonnet-4-5" });
    owner.post("/agents", agent).await.ok();
    let error = owner.post("/sessions", json!({ "agent": "a", "input": "hi" })).await.error(422);
    assert_eq!(error["code"], "no_credential");
    assert!(data(&owner.get("/sessions").await.ok()).is_empty(), "nothing was made");
    // Another organization's default credential does not apply here.
    world.stranger.post("/credentials", json!({ "key": "sk-theirs", "is_default": true })).await.ok();
    owner.post("/sessions", json!({ "agent": "a" })).await.error(422);
    let credential = owner.post("/credentials", json!({ "key": "sk-mine", "is_default": true })).await.ok();
    let session = owner.post("/sessions", json!({ "agent": "a" })).await.ok();
    assert_eq!(session["session"]["credential_id"], credential["id"]);
    world.end().await;
}

#[tokio::test]
async fn a_credential_that_makes_no_sense_is_refused() {
    let world = World::with(&["--role=api", "--allow-private-models=off"]).await;
    let owner = &world.owner;
    for (param, body) in [
        ("key", json!({})),
        ("key", json!({ "key": "" })),
        ("provider", json!({ "key": "x", "provider": "No Such" })),
        ("base_url", json!({ "key": "x", "provider": "groq" })),
        ("base_url", json!({ "key": "x", "provider": "groq", "base_url": "http://10.0.0.1/v1" })),
        ("base_url", json!({ "key": "x", "provider": "groq", "base_url": "https://169.254.169.254/" })),
        ("base_url", json!({ "key": "x", "provider": "groq", "base_url": "not a url" })),
        ("secret", json!({ "key": "x", "secret": "y" })),
    ] {
        let error = owner.post("/credentials", body.clone()).await.error(400);
        let message = error["message"].as_str().unwrap_or_default();
        assert!(error["param"] == param || message.contains(param), "{body}: {error}");
    }
    world.end().await;
}

async fn put(owner: &crate::support::service::Caller, body: Value) -> crate::support::service::Answer {
    let request = owner.request(reqwest::Method::PUT, "/credentials/default").json(&body);
    crate::support::service::send(request).await
}

#[tokio::test]
async fn the_only_credential_of_a_name_is_found_by_it() {
    let world = World::still().await;
    let (owner, stranger) = (&world.owner, &world.stranger);
    let make = |name: &str| owner.post("/credentials", json!({ "key": "sk-1", "name": name }));
    let credential = id(&make("billing team").await.ok());
    assert_eq!(owner.get("/credentials/billing%20team").await.ok()["id"], credential);
    owner.patch("/credentials/billing%20team", json!({ "key": "sk-2" })).await.ok();
    assert_eq!(put(owner, json!({ "credential": "billing team" })).await.ok()["id"], credential);
    let mut body = noop("a");
    body["credential"] = json!("billing team");
    let agent = owner.post("/agents", body.clone()).await.ok();
    assert_eq!(agent["credential_id"], credential);
    assert_eq!(owner.post("/agents", body.clone()).await.status, 200, "the same agent");
    let path = format!("/agents/{}", id(&agent));
    owner.patch(&path, json!({ "credential": null })).await.ok();
    owner.post("/agents", body.clone()).await.error(409);
    let renamed = owner.patch(&path, json!({ "credential": "billing team" })).await.ok();
    assert_eq!(renamed["credential_id"], credential);
    // Another organization's name, an unknown one, and one that several credentials have.
    make("twice").await.ok();
    make("twice").await.ok();
    for (caller, name) in [(stranger, "billing team"), (owner, "nobody"), (owner, "twice"), (owner, "a\0")] {
        body["credential"] = json!(name);
        body["name"] = json!(format!("another {}", name.len()));
        assert_eq!(caller.post("/agents", body.clone()).await.error(400)["param"], "credential", "{name}");
        put(caller, json!({ "credential": name })).await.error(404);
        caller
            .get(&format!("/credentials/{}", name.replace(' ', "%20").replace('\0', "%00")))
            .await
            .error(404);
    }
    let git = json!({ "provider": "git", "key": "a-git-token", "name": "git", "base_url": "https://github.com/acme" });
    let git = id(&owner.post("/credentials", git).await.ok());
    let source = json!([{ "url": "https://github.com/acme/app", "credential": "git" }]);
    let session = owner.post("/sessions", json!({ "sources": source })).await.ok();
    assert_eq!(session["session"]["sources"][0]["credential_id"], git);
    let hook = json!({ "kind": "github", "mention": "bot", "source": { "credential": "git" } });
    let hook = owner.post(&format!("{path}/hooks"), hook).await.ok();
    assert_eq!(hook["source"]["credential"], "git");
    owner.delete("/credentials/billing%20team").await.ok();
    owner.get("/credentials/billing%20team").await.error(404);
    world.end().await;
}

#[tokio::test]
async fn an_input_accepts_the_field_names_of_the_answer() {
    let world = World::still().await;
    let owner = &world.owner;
    let credential = id(&owner.post("/credentials", json!({ "key": "sk-1" })).await.ok());
    for field in ["credential", "credential_id"] {
        let mut agent = noop(field);
        agent[field] = json!(credential);
        let agent = owner.post("/agents", agent).await.ok();
        assert_eq!(agent["credential_id"], credential, "{field}");
        let path = format!("/agents/{}", id(&agent));
        let removed = owner.patch(&path, json!({ field: null })).await.ok();
        assert_eq!(removed["credential_id"], json!(null), "{field}");
        let default = owner.request(Method::PUT, "/credentials/default");
        send(default.json(&json!({ field: credential }))).await.ok();
    }
    let agent = id(&owner.post("/agents", noop("a")).await.ok());
    for field in ["agent", "agent_id"] {
        let session = owner.post("/sessions", json!({ field: agent })).await.ok();
        assert_eq!(session["session"]["agent_id"], agent, "{field}");
        assert!(!data(&owner.get(&format!("/sessions?{field}={agent}")).await.ok()).is_empty());
        owner.get(&format!("/usage?{field}={agent}")).await.ok();
    }
    let both = json!({ "agent": agent, "agent_id": agent });
    assert_eq!(owner.post("/sessions", both).await.error(400)["param"], "agent");
    world.end().await;
}
