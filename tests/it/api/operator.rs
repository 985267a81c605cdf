//! The operator API: only the operator key opens it, and it does the same as `sojourn admin`.

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    World, data, id,
    matrix::{OPEN, Things, Try, is_operators, never, table, things},
};
use crate::support::{
    contract::{Operation, operations},
    service::{Answer, Caller, send},
};

const KEY: &str = "the operator's own key, which is long enough";

/// Calls an operation with the organization's id in its path.
async fn call(caller: &Caller, operation: &Operation, organization: &str) -> Answer {
    let mut path = operation.path.trim_start_matches("/v3").replace("{organization_id}", organization);
    if operation.id == "deleteOrganization" {
        path = format!("{path}?confirm={organization}");
    }
    let body = match operation.id.as_str() {
        "createOrganization" => json!({ "name": "by a test" }),
        "limitOrganization" => json!({ "weight": 2 }),
        "topUpOrganization" => json!({ "micros": 5 }),
        "setOrganizationBalance" => json!({ "balance_micros": null }),
        "setOrganizationPrices" => json!({ "prices": null }),
        _ => Value::Null,
    };
    let request = caller.request(operation.method.parse::<Method>().expect("a method"), &path);
    send(if body.is_null() { request } else { request.json(&body) }).await
}

#[tokio::test]
async fn no_key_of_an_organization_opens_it_and_it_opens_no_organization() {
    let key = format!("--operator-key={KEY}");
    let world = World::with(&["--role=api", &key]).await;
    let organization = id(&world.owner.get("/organization").await.ok());
    let session = id(&world.owner.post("/sessions", json!({})).await.ok());
    let token = world.owner.post(&format!("/sessions/{session}/client-tokens"), json!({})).await.ok();
    let others = [
        world.anonymous.clone(),
        world.owner.clone(),
        world.stranger.clone(),
        world.service.caller(token["token"].as_str().expect("a token")),
        world.service.caller(&KEY.replace("own", "old")),
    ];
    let operator = world.service.caller(KEY);
    let operations = operations();
    let own: Vec<_> = operations.iter().filter(|operation| is_operators(operation)).collect();
    assert!(own.len() >= 9, "{own:?}");
    for operation in &own {
        assert_eq!(operation.description["security"], json!([{ "operator": [] }]), "{}", operation.id);
        for (at, caller) in others.iter().enumerate() {
            let answer = call(caller, operation, &organization).await;
            assert_eq!(answer.status, 401, "{} by {at}: {}", operation.id, answer.body);
        }
        if operation.path.contains('{') {
            call(&operator, operation, &never("org")).await.error(404);
            call(&operator, operation, "org_x").await.error(404);
        }
    }
    let (table, mine): (_, Things) = (table(), things(&world.owner).await);
    for operation in operations.iter().filter(|one| !is_operators(one) && !OPEN.contains(&one.id.as_str())) {
        let a_try = Try { operation, row: &table[operation.id.as_str()], once: None };
        let answer = a_try.by(&operator, &mine).await;
        assert_eq!(answer.status, 401, "{}: {}", operation.id, answer.body);
    }
    world.end().await;
}

#[tokio::test]
async fn without_the_setting_nobody_is_the_operator() {
    let world = World::still().await;
    world.service.caller(KEY).get("/admin/organizations").await.error(401);
    world.service.caller("").get("/admin/organizations").await.error(401);
    world.end().await;
}

#[tokio::test]
async fn an_operator_makes_limits_suspends_and_destroys_organizations() {
    let key = format!("--operator-key={KEY}");
    let world = World::with(&["--role=api", &key]).await;
    let operator = world.service.caller(KEY);
    let post = async |path: &str, key: &str, body: Value| {
        let request = operator.request(Method::POST, path).header("Idempotency-Key", key);
        send(request.json(&body)).await
    };
    let name = json!({ "name": "customers" });
    let (made, again) = (
        post("/admin/organizations", "one", name.clone()).await,
        post("/admin/organizations", "one", name).await,
    );
    assert_eq!((made.status.as_u16(), again.status.as_u16(), &made.body), (201, 200, &again.body));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    post("/admin/organizations", "one", json!({ "name": "others" })).await.error(422);
    let made = made.ok();
    let customer = world.service.caller(made["key"].as_str().expect("a key"));
    assert_eq!(customer.get("/organization").await.ok()["id"], made["id"]);
    let path = format!("/admin/organizations/{}", id(&made));
    let listed = operator.get("/admin/organizations?limit=2").await.ok();
    let cursor = listed["next_cursor"].as_str().expect("there are three").to_owned();
    let rest = operator.get(&format!("/admin/organizations?limit=2&cursor={cursor}")).await.ok();
    assert_eq!((data(&listed).len(), data(&rest).len()), (2, 1));

    let limits = json!({ "concurrency": 7, "weight": 3 });
    let limited = operator.patch(&path, limits).await.ok();
    assert_eq!((&limited["concurrency"], &limited["weight"]), (&json!(7), &json!(3)));
    assert_eq!(operator.patch(&path, json!({ "concurrency": null })).await.ok()["weight"], 3);
    operator.patch(&path, json!({ "weight": 101 })).await.error(400);

    for _ in 0..2 {
        let left = post(&format!("{path}/balance"), "two", json!({ "micros": 5_000 })).await.ok();
        assert_eq!(left["balance_micros"], 5_000, "once");
    }
    assert_eq!(customer.get("/budget").await.ok()["balance_micros"], 5_000);
    let put = async |what: &str, body: Value| {
        send(operator.request(Method::PUT, &format!("{path}/{what}")).json(&body)).await
    };
    put("balance", json!({ "balance_micros": null })).await.ok();
    assert_eq!(customer.get("/budget").await.ok()["balance_micros"], Value::Null);
    assert_eq!(put("prices", json!({ "prices": { "version": "ours" } })).await.status, 204);
    assert_eq!(customer.get("/prices").await.ok()["own"]["version"], "ours");
    put("prices", json!({ "prices": { "version": "" } })).await.error(400);

    assert_eq!(operator.post(&format!("{path}/suspend"), json!({})).await.ok()["state"], "suspended");
    assert_eq!(operator.post(&format!("{path}/resume"), json!({})).await.ok()["state"], "active");
    let acts = customer.get("/audit").await.ok();
    let mut acts: Vec<_> = data(&acts).iter().map(|row| row["action"].as_str().expect("a word")).collect();
    acts.reverse();
    let expected = [
        "organization.created",
        "key.created",
        "organization.limits_changed",
        "organization.limits_changed",
        "balance.changed",
        "balance.changed",
        "prices.changed",
        "organization.suspended",
        "organization.resumed",
    ];
    assert_eq!(acts, expected);
    operator.delete(&format!("{path}?confirm={}", never("org"))).await.error(400);
    assert_eq!(operator.delete(&format!("{path}?confirm={}", id(&made))).await.status, 204);
    assert_eq!(operator.get(&path).await.ok()["state"], "deleted");
    operator.post(&format!("{path}/suspend"), json!({})).await.error(404);
    operator.delete(&format!("{path}?confirm={}", id(&made))).await.error(404);
    world.end().await;
}
