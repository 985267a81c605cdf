//! Requirements of each operation, by its name in openapi.yaml.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};

use super::{SINK, never};
use crate::api::noop;

/// Requirements of an operation, and its response to the owner.
pub struct Row {
    pub scope: &'static str,
    /// Scopes that the key needs beside it for this body.
    pub also: &'static [&'static str],
    /// Scope with which a client token may call it.
    pub token: Option<&'static str>,
    pub status: u16,
    pub body: Option<fn() -> Value>,
}

/// A row whose body needs that the key also reads sessions.
fn and_read(row: Row) -> Row {
    Row { also: &["sessions:read"], ..row }
}

/// A row for each operation.
pub fn table() -> BTreeMap<&'static str, Row> {
    let row = |scope, status, body| Row { scope, also: &[], token: None, status, body };
    let by_token = |scope, token, status, body| Row { scope, also: &[], token: Some(token), status, body };
    let nothing: Option<fn() -> Value> = None;
    let empty: Option<fn() -> Value> = Some(|| json!({}));
    BTreeMap::from([
        ("listAgents", row("agents:read", 200, nothing)),
        ("createAgent", row("agents:write", 201, Some(|| noop("another")))),
        ("getAgent", row("agents:read", 200, nothing)),
        ("updateAgent", row("agents:write", 200, Some(|| json!({ "prompt": "x" })))),
        ("deleteAgent", row("agents:write", 204, nothing)),
        ("listRevisions", row("agents:read", 200, nothing)),
        ("activateRevision", row("agents:write", 200, empty)),
        ("listCredentials", row("credentials:read", 200, nothing)),
        ("createCredential", row("credentials:write", 201, Some(|| json!({ "key": "sk-2" })))),
        ("getCredential", row("credentials:read", 200, nothing)),
        ("rotateCredential", row("credentials:write", 200, Some(|| json!({ "key": "sk-3" })))),
        ("deleteCredential", row("credentials:write", 204, nothing)),
        // Its id is in the body; `ids_in_bodies_and_queries` tests it.
        (
            "setDefaultCredential",
            row("credentials:write", 404, Some(|| json!({ "credential": never("cred") }))),
        ),
        ("listEnvironments", row("environments:read", 200, nothing)),
        ("createEnvironment", row("environments:write", 201, Some(unnamed))),
        ("getEnvironment", row("environments:read", 200, nothing)),
        ("updateEnvironment", row("environments:write", 200, Some(|| json!({ "config": {} })))),
        ("deleteEnvironment", row("environments:write", 204, nothing)),
        ("listSessions", row("sessions:read", 200, nothing)),
        ("createSession", row("sessions:write", 201, empty)),
        ("getSession", row("sessions:read", 200, nothing)),
        ("updateSession", row("sessions:write", 200, Some(|| json!({ "title": "x" })))),
        ("steerSession", by_token("sessions:write", "steer", 202, Some(|| json!({ "text": "x" })))),
        // No model call was made.
        ("compactSession", row("sessions:write", 409, empty)),
        ("listMessages", by_token("sessions:read", "read", 200, nothing)),
        ("listEvents", by_token("sessions:read", "read", 200, nothing)),
        ("streamEvents", by_token("sessions:read", "read", 200, nothing)),
        // A WebSocket endpoint: a plain request with read access gets 400.
        ("connectEvents", by_token("sessions:read", "read", 400, nothing)),
        ("getEvent", by_token("sessions:read", "read", 200, nothing)),
        ("getEventContent", by_token("sessions:read", "read", 200, nothing)),
        ("getResult", row("sessions:read", 200, nothing)),
        ("listTurns", row("sessions:read", 200, nothing)),
        ("getTurn", row("sessions:read", 200, nothing)),
        ("listSteps", by_token("sessions:read", "read", 200, nothing)),
        ("cancelSession", row("sessions:write", 200, empty)),
        ("listCheckpoints", row("sessions:read", 200, nothing)),
        ("listSources", row("sessions:read", 200, nothing)),
        ("heartbeatSession", row("sessions:write", 200, empty)),
        ("archiveSession", row("sessions:write", 200, empty)),
        // One that reads needs `sessions:read`, too.
        ("mintClientToken", row("sessions:write", 201, Some(|| json!({ "scopes": ["steer"] })))),
        ("listDestinations", row("sessions:read", 200, nothing)),
        ("createDestination", and_read(row("sessions:write", 201, Some(|| json!({ "url": SINK }))))),
        ("getDestination", row("sessions:read", 200, nothing)),
        ("updateDestination", row("sessions:write", 200, Some(|| json!({ "enabled": false })))),
        ("deleteDestination", row("sessions:write", 204, nothing)),
        ("rotateDestinationSecret", row("sessions:write", 200, empty)),
        ("listDeliveries", row("sessions:read", 200, nothing)),
        ("getDelivery", row("sessions:read", 200, nothing)),
        ("getSessionAgent", row("agents:read", 200, nothing)),
        ("getSessionUsage", row("sessions:read", 200, nothing)),
        ("getUsage", row("usage:read", 200, nothing)),
        ("getBudget", row("usage:read", 200, nothing)),
        ("updateBudget", row("usage:write", 200, Some(|| json!({ "spend_caps": { "days_1": 1 } })))),
        ("getPrices", row("usage:read", 200, nothing)),
        ("getCapacity", row("usage:read", 200, nothing)),
        ("redeliver", row("sessions:write", 202, empty)),
    ])
    .into_iter()
    .chain(organization())
    .chain(actions())
    .chain(sandbox())
    .collect()
}

/// Operations on stored files and skills.
fn files() -> BTreeMap<&'static str, Row> {
    let row = |scope, status| Row { scope, also: &[], token: None, status, body: None };
    BTreeMap::from([
        ("uploadFile", row("files:write", 201)),
        ("listStoredFiles", row("files:read", 200)),
        ("getFile", row("files:read", 200)),
        ("readStoredFile", row("files:read", 200)),
        ("deleteFile", row("files:write", 204)),
        ("uploadSkill", row("skills:write", 201)),
        ("listSkills", row("skills:read", 200)),
        ("getSkill", row("skills:read", 200)),
        ("readSkill", row("skills:read", 200)),
        ("deleteSkill", row("skills:write", 204)),
    ])
}

/// Operations on actions, failed turns and files. No worker runs here, so no turn needs anything.
fn actions() -> BTreeMap<&'static str, Row> {
    let row = |scope, token, status, body| Row { scope, also: &[], token, status, body };
    BTreeMap::from([
        ("sendEvents", row("sessions:write", Some("answer"), 404, Some(unknown_answer as fn() -> Value))),
        ("listPending", row("sessions:read", Some("read"), 200, None)),
        ("listAllPending", row("sessions:read", None, 200, None)),
        ("getPermissions", row("sessions:read", None, 200, None)),
        ("revokePermission", row("sessions:approve", None, 404, None)),
        ("claimAction", row("sessions:write", Some("answer"), 404, Some(|| json!({})))),
        // It did not fail.
        ("retryTurn", row("sessions:write", None, 409, None)),
    ])
    .into_iter()
    .chain(files())
    .collect()
}

/// Operations on the sandbox of a session and on its image. No worker runs here: a request that does not wait
/// fails immediately.
fn sandbox() -> BTreeMap<&'static str, Row> {
    let row = |scope, status, body| Row { scope, also: &[], token: None, status, body };
    let nothing: Option<fn() -> Value> = None;
    let empty: Option<fn() -> Value> = Some(|| json!({}));
    BTreeMap::from([
        ("buildEnvironment", row("environments:write", 202, nothing)),
        ("execInSession", row("sessions:write", 202, Some(|| json!({ "command": "true" })))),
        ("getExec", row("sessions:read", 200, nothing)),
        ("readFile", row("sessions:read", 409, nothing)),
        ("writeFile", row("sessions:write", 409, Some(|| json!({})))),
        // It is queued, so it ends at once.
        ("killExec", row("sessions:write", 200, empty)),
        ("createCheckpoint", row("sessions:write", 409, empty)),
        // The checkpoint is in the body: no session here has one.
        ("restoreSession", row("sessions:write", 404, Some(|| json!({ "checkpoint_id": never("ckp") })))),
        ("startSession", row("sessions:write", 202, empty)),
        ("stopSession", row("sessions:write", 202, Some(|| json!({ "reason": "x" })))),
        ("pauseSession", row("sessions:write", 200, empty)),
        ("resumeSession", row("sessions:write", 200, empty)),
        ("wakeSession", row("sessions:write", 200, empty)),
        ("reattachSession", row("sessions:write", 200, Some(|| json!({ "client_id": "x" })))),
        ("getContext", row("sessions:read", 200, nothing)),
        ("updateContext", row("sessions:write", 200, Some(|| json!({ "custom_state": { "x": 1 } })))),
        ("listTools", row("sessions:read", 200, nothing)),
        ("registerTool", row("sessions:write", 200, Some(|| json!({ "name": "x" })))),
        ("listFiles", row("sessions:read", 409, nothing)),
        ("readArchive", row("sessions:read", 409, nothing)),
        // Its body is an archive, built by the sender.
        ("writeArchive", row("sessions:write", 409, nothing)),
    ])
}

/// Operations on the organization, and on whole sessions.
fn organization() -> BTreeMap<&'static str, Row> {
    let row = |scope, status, body| Row { scope, also: &[], token: None, status, body };
    let nothing: Option<fn() -> Value> = None;
    let empty: Option<fn() -> Value> = Some(|| json!({}));
    BTreeMap::from([
        ("listKeys", row("keys:read", 200, nothing)),
        ("createKey", row("keys:write", 201, Some(|| json!({ "name": "x", "scopes": ["keys:write"] })))),
        ("getKey", row("keys:read", 200, nothing)),
        ("rotateKey", row("keys:write", 201, empty)),
        ("revokeKey", row("keys:write", 204, nothing)),
        ("getOrganization", row("organization:read", 200, nothing)),
        ("updateOrganization", row("organization:write", 200, Some(|| json!({ "name": "x" })))),
        ("listAudit", row("audit:read", 200, nothing)),
        ("exportAudit", row("audit:read", 200, nothing)),
        ("deleteSession", row("sessions:write", 204, nothing)),
        ("exportSession", row("sessions:read", 200, nothing)),
        // Its body is a file, built by the sender.
        ("importSession", row("sessions:write", 201, nothing)),
        ("listSchedules", row("schedules:read", 200, nothing)),
        ("createSchedule", row("schedules:write", 201, Some(yearly))),
        ("getSchedule", row("schedules:read", 200, nothing)),
        ("updateSchedule", row("schedules:write", 200, Some(|| json!({ "enabled": false })))),
        ("deleteSchedule", row("schedules:write", 204, nothing)),
        ("fireSchedule", row("schedules:write", 202, empty)),
        ("listScheduleRuns", row("schedules:read", 200, nothing)),
        ("listTriggers", row("triggers:read", 200, nothing)),
        ("createTrigger", row("triggers:write", 201, Some(|| json!({ "kind": "generic" })))),
        ("getTrigger", row("triggers:read", 200, nothing)),
        ("updateTrigger", row("triggers:write", 200, Some(|| json!({ "enabled": false })))),
        ("deleteTrigger", row("triggers:write", 204, nothing)),
        ("rotateTriggerSecret", row("triggers:write", 200, empty)),
        ("invokeAgent", row("sessions:write", 201, Some(|| json!({ "input": "x" })))),
        ("listInvokeTokens", row("triggers:read", 200, nothing)),
        ("createInvokeToken", row("triggers:write", 201, Some(|| json!({ "name": "x" })))),
        ("revokeInvokeToken", row("triggers:write", 204, nothing)),
        ("listWebhooks", row("webhooks:read", 200, nothing)),
        ("createWebhook", row("webhooks:write", 201, Some(|| json!({ "url": SINK })))),
        ("getWebhook", row("webhooks:read", 200, nothing)),
        ("updateWebhook", row("webhooks:write", 200, Some(|| json!({ "level": "progress" })))),
        ("deleteWebhook", row("webhooks:write", 204, nothing)),
        ("rotateWebhookSecret", row("webhooks:write", 200, empty)),
        ("testWebhook", row("webhooks:write", 202, empty)),
        ("listWebhookDeliveries", row("webhooks:read", 200, nothing)),
        ("getWebhookDelivery", row("webhooks:read", 200, nothing)),
        ("redeliverToWebhook", row("webhooks:write", 202, empty)),
    ])
}

/// An environment with a unique name: each request may be the one that creates it.
fn unnamed() -> Value {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    json!({ "name": format!("unnamed {}", COUNT.fetch_add(1, Ordering::Relaxed)) })
}

/// A schedule that never runs during a test.
pub fn yearly() -> Value {
    json!({ "cron": "0 0 1 1 *", "input": "x" })
}

/// A result of an action that never existed.
fn unknown_answer() -> Value {
    let content = json!([{ "type": "text", "text": "x" }]);
    let result = json!({ "type": "user.custom_tool_result", "action_id": never("act"), "content": content });
    json!({ "events": [result] })
}
