//! Every operation of openapi.yaml x every persona x every id that it takes.
//!
//! An operation without a row in the table fails the test. Add a row with its requirements; the checks are
//! generated.

mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU32, Ordering},
};

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

pub(super) use self::rows::table;
use self::rows::{Row, yearly};
use super::{World, data, id, noop};
use crate::support::{
    contract::{Operation, operations},
    folder::{archive, instructions},
    service::{Answer, Caller, send},
};

/// Ids of one organization's resources, by name of the path parameter.
pub(super) type Things = BTreeMap<&'static str, String>;

const SCOPES: [&str; 26] = [
    "skills:read",
    "skills:write",
    "files:read",
    "files:write",
    "sessions:approve",
    "usage:write",
    "usage:read",
    "sessions:read",
    "sessions:write",
    "agents:read",
    "agents:write",
    "schedules:read",
    "schedules:write",
    "triggers:read",
    "triggers:write",
    "credentials:read",
    "credentials:write",
    "environments:read",
    "environments:write",
    "webhooks:read",
    "webhooks:write",
    "keys:read",
    "keys:write",
    "organization:read",
    "organization:write",
    "audit:read",
];

/// Operations that need no key. A trigger message has its own authentication, which `triggers` tests.
pub(super) const OPEN: [&str; 3] = ["healthz", "readyz", "receiveTrigger"];

/// Whether an operation is for the operator of the service; `operator` tests those.
pub(super) fn is_operators(operation: &Operation) -> bool {
    operation.path.starts_with("/v3/admin/")
}

/// Refuses every connection; nothing is ever delivered.
pub const SINK: &str = "http://127.0.0.1:9/hook";

/// An export of a session without any activity.
fn file() -> String {
    let created = json!({
        "seq": 1, "ts": "2026-11-01T08:00:00Z", "id": never("evt"), "level": "progress", "actor": { "type": "human" },
        "type": "session.created",
        "body": { "agent_id": null, "credential_id": null, "agent_snapshot": null, "title": "t", "key": null,
                  "client_id": null, "metadata": {}, "limits": {}, "source": "api" },
    });
    let lines = format!("{}\n{created}\n", json!({ "format": "sojourn.session.v1" }));
    let hash = sojourn::base::text::hex(&sojourn::base::seal::sha256(lines.as_bytes()));
    format!("{lines}{}\n", json!({ "events": 1, "sha256": hash }))
}

/// A well-formed id that never existed.
pub(super) fn never(prefix: &str) -> String {
    format!("{prefix}_01jd0000000000000000000000")
}

/// Creates one resource of each kind.
pub(super) async fn things(caller: &Caller) -> Things {
    // Unique names: the previous operation may have changed the last resource.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("matrix {}", COUNT.fetch_add(1, Ordering::Relaxed));
    let agent = caller.post("/agents", noop(&name)).await.ok();
    let credential = caller.post("/credentials", json!({ "key": "sk-1" })).await.ok();
    let environment = caller.post("/environments", json!({ "name": name })).await.ok();
    let session = json!({ "agent": id(&agent), "input": "x", "destinations": [{ "url": SINK }] });
    let session = caller.post("/sessions", session).await.ok();
    let schedule = caller.post(&format!("/agents/{}/schedules", id(&agent)), yearly()).await.ok();
    let trigger = json!({ "kind": "generic" });
    let trigger = caller.post(&format!("/agents/{}/hooks", id(&agent)), trigger).await.ok();
    let token = json!({ "name": name });
    let token = caller.post(&format!("/agents/{}/invoke-tokens", id(&agent)), token).await.ok();
    let path = format!("/sessions/{}", id(&session));
    let first = |page: Answer| id(&data(&page.ok())[0]);
    // An organization may have few webhooks: one is reused until an operation removes it.
    let there = data(&caller.get("/webhooks").await.ok()).first().map(id);
    let webhook = match there {
        Some(webhook) => webhook,
        None => id(&caller.post("/webhooks", json!({ "url": SINK })).await.ok()),
    };
    let key = caller.post("/keys", json!({ "name": name, "scopes": ["keys:write"] })).await.ok();
    let exec = caller.request(Method::POST, &format!("{path}/exec")).header("prefer", "wait=0");
    let exec = send(exec.json(&json!({ "command": "true" }))).await.ok();
    let skill = archive(&[("SKILL.md", &instructions("thing", &Uuid::now_v7().to_string()))]);
    let told = caller.post(&format!("/webhooks/{webhook}/test"), json!({})).await.ok();
    Things::from([
        ("agent_id", id(&agent)),
        ("revision", id(&agent["active_revision"])),
        ("credential_id", id(&credential)),
        ("environment_id", id(&environment)),
        ("session_id", id(&session)),
        ("schedule_id", id(&schedule)),
        ("trigger_id", id(&trigger)),
        ("invoke_token_id", id(&token)),
        ("event_id", first(caller.get(&format!("{path}/messages")).await)),
        ("turn_id", first(caller.get(&format!("{path}/turns")).await)),
        ("destination_id", first(caller.get(&format!("{path}/destinations")).await)),
        ("delivery_id", first(caller.get(&format!("{path}/deliveries")).await)),
        ("action_id", never("act")),
        ("file_id", id(&caller.upload("x", b"x".to_vec()).await.ok())),
        ("skill_id", id(&send(caller.request(Method::POST, "/skills").body(skill)).await.ok())),
        ("exec_id", id(&exec)),
        ("key_id", id(&key)),
        ("webhook_id", webhook),
        ("webhook_delivery_id", id(&told)),
    ])
}

/// An operation that can be sent by any caller with any ids.
pub(super) struct Try<'a> {
    pub operation: &'a Operation,
    pub row: &'a Row,
    /// Its `Idempotency-Key` and the body sent with it; otherwise each request builds a new body.
    pub once: Option<(&'a str, Option<Value>)>,
}

impl Try<'_> {
    fn ids(&self) -> Vec<&str> {
        self.operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect()
    }

    pub(super) async fn by(&self, caller: &Caller, things: &Things) -> Answer {
        let mut path = self.operation.path.trim_start_matches("/v3").to_owned();
        for name in self.ids() {
            let id =
                things.get(name).unwrap_or_else(|| panic!("{name} of {} has no resource", self.operation.id));
            path = path.replace(&format!("{{{name}}}"), id);
        }
        if matches!(self.operation.id.as_str(), "readFile" | "writeFile") {
            path.push_str("?path=x");
        }
        if self.operation.id == "uploadFile" {
            path.push_str("?name=x");
        }
        let method: Method = self.operation.method.parse().expect("a method");
        let mut request = caller.request(method, &path).header("prefer", "wait=0");
        let body = match &self.once {
            Some((key, body)) => {
                request = request.header("Idempotency-Key", *key);
                body.clone()
            }
            None => self.row.body.map(|body| body()),
        };
        if let Some(body) = body {
            request = request.json(&body);
        }
        if self.operation.id == "importSession" {
            request = request.header("content-type", "application/x-ndjson").body(file());
        }
        if self.operation.id == "uploadFile" {
            request = request.header("content-type", "application/octet-stream").body("x");
        }
        if self.operation.id == "uploadSkill" {
            // Equal files are no new version.
            let content =
                self.once.as_ref().map_or_else(|| Uuid::now_v7().to_string(), |(key, _)| (*key).to_owned());
            let archive = archive(&[("SKILL.md", &instructions("x", &content))]);
            request = request.header("content-type", "application/x-tar").body(archive);
        }
        if self.operation.id == "writeArchive" {
            request = request.header("content-type", "application/x-tar").body(vec![0; 1_024]);
        }
        if self.operation.id == "streamEvents" {
            // A stream never ends: its head is enough.
            let response = request.send().await.expect("an answer");
            let (status, headers) = (response.status(), response.headers().clone());
            let body = if status == 200 { Value::Null } else { response.json().await.expect("an error") };
            return Answer { status, headers, body };
        }
        send(request).await
    }

    #[track_caller]
    fn is(&self, who: &str, answer: &Answer, status: u16) {
        assert_eq!(answer.status, status, "{} by {who}: {}", self.operation.id, answer.body);
    }
}

/// An error without the fields that differ between requests.
fn bare(answer: &Answer) -> (Value, BTreeSet<String>) {
    let mut body = answer.body.clone();
    body["error"]["request_id"] = Value::Null;
    (body, answer.headers.keys().map(ToString::to_string).collect())
}

#[tokio::test]
async fn every_operation_is_its_owners_alone() {
    let world = World::still().await;
    let table = table();
    let orgs: Vec<_> = operations().into_iter().filter(|operation| !is_operators(operation)).collect();
    let described: BTreeSet<_> = orgs.iter().map(|operation| operation.id.clone()).collect();
    let rows: BTreeSet<_> = table.keys().chain(&OPEN).map(|id| (*id).to_owned()).collect();
    assert_eq!(described, rows, "each operation has a row here and each row an operation");
    let expired = world.key(&["*"], Some(-1)).await;
    let revoked = world.key(&["*"], None).await;
    world.revoke(&revoked).await;
    let theirs = things(&world.stranger).await;
    for operation in orgs.iter().filter(|operation| !OPEN.contains(&operation.id.as_str())) {
        let row = &table[operation.id.as_str()];
        let needs = json!([{ "bearer": [row.scope] }, { "api_key": [row.scope] }]);
        assert_eq!(operation.description["security"], needs, "{} as documented", operation.id);
        let a_try = Try { operation, row, once: None };
        let mine = things(&world.owner).await;
        for (who, caller) in [("nobody", &world.anonymous), ("expired", &expired), ("revoked", &revoked)] {
            a_try.is(who, &a_try.by(caller, &mine).await, 401);
        }
        let others: Vec<_> = SCOPES.into_iter().filter(|scope| *scope != row.scope).collect();
        a_try.is("wrong scope", &a_try.by(&world.key(&others, None).await, &mine).await, 403);
        foreign_ids(&world, &a_try, &mine, &theirs).await;
        client_tokens(&world, &a_try, &mine).await;
        let exact = world.key(&[&[row.scope], row.also].concat(), None).await;
        let created = operation.id == "createAgent"
            && world.owner.get("/agents").await.ok().to_string().contains("another");
        assert!(!created, "only the owner's request succeeded");
        a_try.is("the owner", &a_try.by(&exact, &mine).await, row.status);
    }
    world.end().await;
}

/// Replaces each id by a stranger's and by an unknown one: the response is the same 404.
async fn foreign_ids(world: &World, a_try: &Try<'_>, mine: &Things, theirs: &Things) {
    let names = a_try.ids();
    if names.is_empty() {
        return;
    }
    let prefix = |name: &str| theirs[name].split('_').next().expect("a prefix").to_owned();
    let mut all_unknown = mine.clone();
    for &name in &names {
        let place = all_unknown.get_mut(name).expect("an id");
        *place = never(&prefix(name));
        let (mut foreign, mut unknown) = (mine.clone(), mine.clone());
        *foreign.get_mut(name).expect("an id") = theirs[name].clone();
        *unknown.get_mut(name).expect("an id") = never(&prefix(name));
        let (foreign, unknown) =
            (a_try.by(&world.owner, &foreign).await, a_try.by(&world.owner, &unknown).await);
        a_try.is(&format!("the owner with another's {name}"), &foreign, 404);
        assert_eq!(bare(&foreign), bare(&unknown), "{} with another's {name}", a_try.operation.id);
    }
    let foreign = a_try.by(&world.stranger, mine).await;
    a_try.is("a stranger", &foreign, 404);
    let unknown = a_try.by(&world.stranger, &all_unknown).await;
    assert_eq!(bare(&foreign), bare(&unknown), "{} by a stranger", a_try.operation.id);
}

/// Client tokens of this session and of another one.
async fn client_tokens(world: &World, a_try: &Try<'_>, mine: &Things) {
    let path = |session: &str| format!("/sessions/{session}/client-tokens");
    let session = &mine["session_id"];
    let mint = async |session: &str, scope: &str| {
        let body = json!({ "scopes": [scope], "level": "internal" });
        let token = world.owner.post(&path(session), body).await.ok();
        world.service.caller(token["token"].as_str().expect("a token"))
    };
    let another = id(&world.owner.post("/sessions", json!({})).await.ok());
    for scope in ["read", "steer", "answer", "approve"] {
        let own = a_try.by(&mint(session, scope).await, mine).await;
        let expected = match a_try.row.token {
            None => 401,
            Some(needed) if needed == scope => a_try.row.status,
            Some(_) => 403,
        };
        a_try.is(&format!("a {scope} token"), &own, expected);
        let other = a_try.by(&mint(&another, scope).await, mine).await;
        a_try.is("another session's token", &other, if a_try.row.token.is_some() { 404 } else { 401 });
    }
}

/// Requests on own resources with foreign ids in bodies and queries.
fn naming(mine: &Things, ids: &Things) -> Vec<(Method, String, Option<Value>)> {
    let session = &mine["session_id"];
    let (agent, schedule, trigger) = (&mine["agent_id"], &mine["schedule_id"], &mine["trigger_id"]);
    let get = |path: String| (Method::GET, path, None::<Value>);
    let id = |name: &str| ids[name].clone();
    vec![
        (Method::POST, "/sessions".to_owned(), Some(json!({ "agent": id("agent_id") }))),
        (Method::POST, "/sessions".to_owned(), Some(json!({ "environment": id("environment_id") }))),
        (Method::POST, "/sessions".to_owned(), Some(json!({ "agent": agent, "revision": id("revision") }))),
        (
            Method::POST,
            "/agents".to_owned(),
            Some(
                json!({ "name": "n", "prompt": "", "model": "scripted/noop", "credential": id("credential_id") }),
            ),
        ),
        (Method::PATCH, format!("/agents/{agent}"), Some(json!({ "credential": id("credential_id") }))),
        (Method::PUT, "/credentials/default".to_owned(), Some(json!({ "credential": id("credential_id") }))),
        (
            Method::POST,
            format!("/agents/{agent}/schedules"),
            Some(json!({ "cron": "0 0 1 1 *", "input": "x", "session_id": id("session_id") })),
        ),
        (
            Method::POST,
            format!("/agents/{agent}/schedules"),
            Some(json!({ "cron": "0 0 1 1 *", "input": "x", "environment": id("environment_id") })),
        ),
        (
            Method::POST,
            format!("/agents/{agent}/hooks"),
            Some(json!({ "kind": "generic", "environment": id("environment_id") })),
        ),
        (
            Method::POST,
            format!("/agents/{agent}/invoke-tokens"),
            Some(json!({ "name": "n", "environment": id("environment_id") })),
        ),
        (
            Method::PATCH,
            format!("/agents/{agent}/schedules/{schedule}"),
            Some(json!({ "environment": id("environment_id") })),
        ),
        (
            Method::PATCH,
            format!("/agents/{agent}/hooks/{trigger}"),
            Some(json!({ "environment": id("environment_id") })),
        ),
        (Method::PATCH, format!("/agents/{agent}"), Some(json!({ "environment": id("environment_id") }))),
        (Method::POST, format!("/agents/{agent}/revisions/{}/activate", id("revision")), Some(json!({}))),
        get(format!("/usage?by=agent&agent={}", id("agent_id"))),
        get(format!("/audit?target={}", id("session_id"))),
        get(format!("/sessions?agent={}", id("agent_id"))),
        get(format!("/sessions?parent_session_id={}", id("session_id"))),
        (Method::POST, "/sessions".to_owned(), Some(json!({ "parent_session_id": id("session_id") }))),
        get(format!("/sessions/{session}/events?turn_id={}", id("turn_id"))),
        get(format!("/sessions/{session}/deliveries?destination={}", id("destination_id"))),
    ]
}

#[tokio::test]
async fn foreign_ids_in_bodies_and_queries_reveal_nothing() {
    let world = World::still().await;
    let (mine, theirs) = (things(&world.owner).await, things(&world.stranger).await);
    let requests = |ids: &Things| naming(&mine, ids);
    let unknown: Things =
        theirs.iter().map(|(name, id)| (*name, never(id.split('_').next().expect("a prefix")))).collect();
    for (foreign, unknown) in requests(&theirs).into_iter().zip(requests(&unknown)) {
        let what = format!("{foreign:?}");
        let (foreign, unknown) = (ask(&world, foreign).await, ask(&world, unknown).await);
        assert_eq!(foreign.status, unknown.status, "{what}");
        assert_eq!(bare_list(&foreign), bare_list(&unknown), "{what}");
    }
    world.end().await;
}

async fn ask(world: &World, (method, path, body): (Method, String, Option<Value>)) -> Answer {
    let request = world.owner.request(method, &path);
    send(match body {
        Some(body) => request.json(&body),
        None => request,
    })
    .await
}

/// Asserts an empty list or an error; other contents would be another organization's.
#[track_caller]
fn bare_list(answer: &Answer) -> Value {
    if answer.status == 200 {
        assert_eq!(answer.body, json!({ "data": [], "next_cursor": null }));
        return answer.body.clone();
    }
    assert!(answer.status.is_client_error(), "{}", answer.body);
    bare(answer).0
}

#[tokio::test]
async fn a_list_shows_no_row_of_another() {
    let world = World::still().await;
    let theirs = things(&world.stranger).await;
    let used = "insert into usage_hour
                select org_id, date_trunc('hour', now(), 'UTC'), agent_id, 'm', 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1
                from agent";
    let mut superuser = world.ground.database.superuser().await;
    sqlx::query(used).execute(&mut superuser).await.expect("a row");
    // No worker runs here, so no turn opens an action.
    let ids = (never("act"), never("evt"));
    let action = json!({ "id": ids.0, "kind": "tool_result", "call_id": "c", "call_event_id": ids.1, "tool": "t",
                         "expires_at": "2100-01-01T00:00:00Z" });
    let opened = "with opened as (
                      insert into event (org_id, session_id, seq, event_id, ts, type, level, actor, body, body_bytes)
                      select org_id, session_id, 1000, gen_random_uuid(), now(), 'action.required', 1, '{}', $1::json, 1
                      from session
                      returning org_id, session_id, event_id, seq
                  )
                  insert into action (org_id, session_id, action_id, turn_id, kind, seq, expires_at)
                  select org_id, session_id, event_id, gen_random_uuid(), 'tool_result', seq, 'infinity' from opened";
    sqlx::query(opened).bind(action.to_string()).execute(&mut superuser).await.expect("a row");
    let is_list = |operation: &Operation| {
        let parameters = operation.description["parameters"].as_array();
        // A stream never ends; the matrix requests only its head.
        operation.method == "GET"
            && operation.id != "streamEvents"
            && parameters.is_some_and(|all| all.iter().any(|parameter| parameter["name"] == "limit"))
    };
    let lists: Vec<_> =
        operations().into_iter().filter(|list| !is_operators(list) && is_list(list)).collect();
    assert!(lists.len() > 15, "{lists:?}");
    for list in lists.iter().filter(|list| !list.path.contains('{')) {
        let by = if list.id == "getUsage" { "?by=agent" } else { "" };
        let path = format!("{}{by}", list.path.trim_start_matches("/v3"));
        let rows = world.stranger.get(&path).await.ok();
        assert!(!data(&rows).is_empty(), "{path} is empty for its owner");
        let shown = world.owner.get(&path).await.ok().to_string();
        let leaked: Vec<_> = theirs.values().filter(|id| shown.contains(*id)).collect();
        assert!(leaked.is_empty(), "{path} shows {leaked:?}");
        // Every organization has keys and audit records of its own.
        if !["listKeys", "listAudit"].contains(&list.id.as_str()) {
            assert_eq!(shown, json!({ "data": [], "next_cursor": null }).to_string(), "{path}");
        }
    }
    let mine = things(&world.owner).await;
    for list in lists.iter().filter(|list| list.path.contains('{')) {
        let fill = |things: &Things| {
            things.iter().fold(list.path.trim_start_matches("/v3").to_owned(), |path, (name, id)| {
                path.replace(&format!("{{{name}}}"), id)
            })
        };
        // Requests that need a sandbox do not wait: no worker runs here.
        let get = |path: String| world.owner.request(Method::GET, &path).header("prefer", "wait=0");
        send(get(fill(&theirs))).await.error(404);
        let shown = send(get(fill(&mine))).await.ok().to_string();
        let leaked: Vec<_> = theirs.values().filter(|id| shown.contains(*id)).collect();
        assert!(leaked.is_empty(), "{} shows {leaked:?}", list.path);
    }
    world.end().await;
}
