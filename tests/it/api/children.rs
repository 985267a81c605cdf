//! Child sessions: which sessions may be a parent, and the effects on both.

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::{World, data, id, noop};
use crate::support::service::Caller;

async fn under(owner: &Caller, parent: &str) -> String {
    id(&owner.post("/sessions", json!({ "parent_session_id": parent })).await.ok()["session"])
}

fn ids(page: &Value) -> Vec<String> {
    data(page).iter().map(id).collect()
}

#[tokio::test]
async fn a_child_names_its_parent_and_the_list_finds_it() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let limits = json!({ "limits": { "cost_micros": 7 }, "agent": "a", "title": "above" });
    let parent = id(&owner.post("/sessions", limits).await.ok()["session"]);
    let child = under(owner, &parent).await;
    let grandchild = under(owner, &child).await;
    under(owner, &grandchild).await;
    let seen = owner.get(&format!("/sessions/{child}")).await.ok();
    assert_eq!(seen["parent_session_id"], parent.as_str());
    // The child inherits nothing else.
    assert_eq!(
        (&seen["limits"], &seen["agent_id"], &seen["title"]),
        (&json!({}), &json!(null), &json!(null))
    );
    let above = owner.get(&format!("/sessions/{parent}")).await.ok();
    assert_eq!(above["parent_session_id"], json!(null));
    assert_eq!(above["budget_consumed"]["children"]["sessions"], 3);
    assert_eq!(
        ids(&owner.get(&format!("/sessions?parent_session_id={parent}")).await.ok()),
        std::slice::from_ref(&child)
    );
    let list = owner.get("/sessions").await.ok();
    let of_list = data(&list).iter().find(|one| id(one) == parent).expect("the parent");
    assert_eq!(*of_list, above);
    let created = owner.get(&format!("/sessions/{child}/events?type=session.created")).await.ok();
    assert_eq!(data(&created)[0]["body"]["parent_session_id"], parent.as_str());
    owner.get("/sessions?parent_session_id=me").await.error(404);
    // An export contains the parent; an import has no parent.
    let path = format!("/sessions/{child}/export");
    let file = owner.request(reqwest::Method::GET, &path).send().await.expect("an answer");
    let file = file.text().await.expect("lines");
    assert!(file.contains(&parent));
    let request = owner.request(reqwest::Method::POST, "/sessions/import");
    let request = request.header("Content-Type", "application/x-ndjson").body(file);
    let imported = crate::support::service::send(request).await.ok();
    assert_eq!(imported["session"]["parent_session_id"], json!(null));
    world.end().await;
}

#[tokio::test]
async fn only_an_open_session_of_the_organization_can_be_a_parent() {
    let world = World::still().await;
    let owner = &world.owner;
    let body = |parent: &str| json!({ "parent_session_id": parent });
    let strangers = id(&world.stranger.post("/sessions", json!({})).await.ok()["session"]);
    let missing = "ses_01m8160kajfq2acft0mdekddsy";
    for unknown in [strangers.as_str(), missing, "another"] {
        let error = owner.post("/sessions", body(unknown)).await.error(404);
        assert_eq!(error["param"], "parent_session_id");
    }
    let parent = id(&owner.post("/sessions", json!({})).await.ok()["session"]);
    let child = under(owner, &parent).await;
    owner.post(&format!("/sessions/{parent}/cancel"), json!({})).await.ok();
    owner.post(&format!("/sessions/{parent}/archive"), json!({})).await.ok();
    assert_eq!(owner.post("/sessions", body(&parent)).await.error(409)["code"], "parent_archived");
    // Neither of them propagates to the child.
    let seen = owner.get(&format!("/sessions/{child}")).await.ok();
    assert_eq!((&seen["status"], &seen["stopped"]), (&json!("idle"), &json!(null)));
    // A parent with an open child cannot be deleted; a closed child outlives its parent.
    let path = format!("/sessions/{parent}");
    assert_eq!(owner.delete(&path).await.error(409)["code"], "open_sessions_below");
    owner.post(&format!("/sessions/{child}/archive"), json!({})).await.ok();
    assert_eq!(owner.delete(&path).await.status, 204);
    let seen = owner.get(&format!("/sessions/{child}")).await.ok();
    assert_eq!(seen["parent_session_id"], parent.as_str());
    assert_eq!(ids(&owner.get(&format!("/sessions?parent_session_id={parent}")).await.ok()), [child]);
    world.end().await;
}

#[tokio::test]
async fn a_tree_is_bounded_in_height_and_number() {
    let world = World::still().await;
    let owner = &world.owner;
    let top = id(&owner.post("/sessions", json!({})).await.ok()["session"]);
    let mut lowest = top.clone();
    for _ in 0..8 {
        lowest = under(owner, &lowest).await;
    }
    let error = owner.post("/sessions", json!({ "parent_session_id": lowest })).await.error(409);
    assert_eq!(error["code"], "too_deep");
    // 991 more rows, as if started under the topmost session.
    let mut superuser = world.ground.database.superuser().await;
    let columns: String = sqlx::query_scalar(
        "select string_agg(quote_ident(column_name), ', ') from information_schema.columns
         where table_name = 'session'
           and column_name not in ('session_id', 'parent_session_id') and is_generated = 'NEVER'",
    )
    .fetch_one(&mut superuser)
    .await
    .expect("the columns");
    let fill = format!(
        "insert into session (session_id, parent_session_id, {columns})
         select gen_random_uuid(), s.parent_session_id, {}
         from session s cross join generate_series(1, 991)
         where s.parent_session_id = (select session_id from session where parent_session_id is null)",
        columns.split(", ").map(|name| format!("s.{name}")).collect::<Vec<_>>().join(", ")
    );
    sqlx::raw_sql(AssertSqlSafe(fill)).execute(&mut superuser).await.expect("rows");
    let under_top = json!({ "parent_session_id": top });
    owner.post("/sessions", under_top.clone()).await.ok();
    let error = owner.post("/sessions", under_top).await.error(409);
    assert_eq!(error["code"], "too_many_sessions_below");
    world.end().await;
}
