//! The log as pages: filters, single events, large bodies, results, turns, steps.

use serde_json::{Map, Value, json};

use super::{World, data, id, noop};

#[tokio::test]
async fn a_log_is_filtered_by_seq_level_type_and_turn() {
    let world = World::new().await;
    let owner = &world.owner;
    let session = owner.play(json!([{ "text": "one", "thinking": "hm" }])).await;
    owner.settled(&session, 1).await;
    owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "again" })).await.ok();
    let log = owner.settled(&session, 2).await;
    let path = format!("/sessions/{session}/events");
    let read = async |query: &str| -> Vec<Value> {
        data(&owner.get(&format!("{path}?limit=500{query}")).await.ok()).clone()
    };
    let seqs = |events: &[Value]| -> Vec<i64> {
        events.iter().map(|event| event["seq"].as_i64().expect("a seq")).collect()
    };
    let kept = |wanted: &dyn Fn(&Value) -> bool| {
        seqs(&log.iter().filter(|event| wanted(event)).cloned().collect::<Vec<_>>())
    };
    assert_eq!(seqs(&read("").await), kept(&|_| true));
    assert_eq!(seqs(&read("&after=3").await), kept(&|event| event["seq"].as_i64() > Some(3)));
    assert!(read("&after=9223372036854775807").await.is_empty());
    assert_eq!(seqs(&read("&level=user").await), kept(&|event| event["level"] == "user"));
    assert_eq!(seqs(&read("&level=progress").await), kept(&|event| event["level"] != "internal"));
    assert_eq!(seqs(&read("&type=turn.started").await), kept(&|event| event["type"] == "turn.started"));
    let of_turns = kept(&|event| event["type"].as_str().is_some_and(|kind| kind.starts_with("turn.")));
    assert_eq!(seqs(&read("&type=turn.*").await), of_turns);
    assert!(read("&type=turn").await.is_empty(), "an exact type, not a prefix");
    let turn = log.last().expect("an event")["turn_id"].clone();
    assert_eq!(
        seqs(&read(&format!("&turn_id={}", turn.as_str().expect("an id"))).await),
        kept(&|event| event["turn_id"] == turn)
    );
    assert!(of_turns.len() == 4 && read("&type=agent.thinking").await.len() == 1);
    for (query, param) in [
        ("after=-1", "after"),
        ("level=secret", "level"),
        ("limit=501", "limit"),
        ("x=1", "x"),
        ("stream=ws", "stream"),
    ] {
        let error = owner.get(&format!("{path}?{query}")).await.error(400);
        assert_eq!(error["param"], param, "{query}: {error}");
    }
    owner.get(&format!("{path}?turn_id=trn_x")).await.error(404);
    world.end().await;
}

#[tokio::test]
async fn input_says_when_a_turn_took_it() {
    let world = World::new().await;
    let owner = &world.owner;
    let session = owner.play(json!([{ "text": "x" }])).await;
    // A live stream sends an input before its turn starts, and again when it is read later.
    let live = owner.settled(&session, 1).await;
    let sent = live.iter().find(|event| event["type"] == "user.message").expect("the input");
    assert!(sent.get("processed_at").is_some(), "{sent}");
    let steered = owner.post(&format!("/sessions/{session}/messages"), json!({ "text": "y" })).await.ok();
    assert_eq!(steered["event"]["processed_at"], json!(null), "{steered}");
    assert!(steered["event"].get("processed_at").is_some());
    owner.settled(&session, 2).await;
    let path = format!("/sessions/{session}/events/{}", steered["event"]["id"].as_str().expect("an id"));
    let turn = owner.get(&format!("/sessions/{session}/turns")).await.ok()["data"][0].clone();
    let one = owner.get(&path).await.ok();
    assert_eq!(one["processed_at"], turn["started_at"]);
    let messages = owner.get(&format!("/sessions/{session}/messages")).await.ok();
    assert!(data(&messages).contains(&one), "{messages}");
    let log = owner.get(&format!("/sessions/{session}/events")).await.ok();
    let find = |kind: &str| data(&log).iter().find(|event| event["type"] == kind).cloned().expect(kind);
    assert_eq!(find("user.message")["processed_at"], find("turn.started")["ts"]);
    assert_eq!(find("turn.started").get("processed_at"), None, "it is no input");
    world.end().await;
}

#[tokio::test]
async fn a_large_body_is_complete_in_its_content() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    let path = format!("/sessions/{session}");
    // Characters of two bytes: truncation must not split one.
    let long = "é".repeat(40_000);
    let sent = owner.post(&format!("{path}/messages"), json!({ "text": long })).await.ok();
    let event = format!("{path}/events/{}", sent["event"]["id"].as_str().expect("an id"));
    let cut = owner.get(&event).await.ok();
    assert_eq!(
        (&cut["body_truncated"], &cut["content_ref"]),
        (&json!(true), &json!(format!("/v3{event}/content")))
    );
    let kept = cut["body"]["text"].as_str().expect("a text");
    assert!(kept.len() <= 32 << 10 && long.starts_with(kept));
    let whole = owner.get(&format!("{event}/content")).await;
    assert_eq!(whole.headers["content-disposition"], "attachment");
    assert_eq!(whole.headers["x-content-type-options"], "nosniff");
    assert_eq!(whole.headers["content-security-policy"], "sandbox");
    assert_eq!(whole.body["text"], long.as_str());
    assert_eq!(cut["body_bytes"], json!(whole.body.to_string().len()));
    // An object that is too large with short strings is dropped; the rest of the body stays.
    let fields: Map<_, _> = (0..2_000).map(|at| (format!("field {at}"), json!("some text"))).collect();
    let input = json!({ "text": "a form", "fields": fields });
    let asked = id(&owner.post("/sessions", json!({ "agent": "a", "input": input })).await.ok());
    let events = owner.get(&format!("/sessions/{asked}/messages")).await.ok();
    let cut = &data(&events)[0];
    assert_eq!((&cut["body"], &cut["body_truncated"]), (&json!({ "text": "a form" }), &json!(true)));
    // A body that fits is complete in both places, without a truncation mark.
    let fits = "x".repeat(30_000);
    let sent = owner.post(&format!("{path}/messages"), json!({ "text": fits })).await.ok();
    let event = format!("{path}/events/{}", sent["event"]["id"].as_str().expect("an id"));
    let plain = owner.get(&event).await.ok();
    assert_eq!((plain.get("content_ref"), plain["body"]["text"].as_str()), (None, Some(fits.as_str())));
    assert_eq!(owner.get(&format!("{event}/content")).await.ok(), plain["body"]);
    world.end().await;
}

#[tokio::test]
async fn a_result_is_the_last_turns_last_word() {
    let world = World::new().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let idle = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    let nothing = owner.get(&format!("/sessions/{idle}/result")).await.ok();
    let expected = json!({ "last_turn": null, "result": null, "output": null, "output_repairs": 0 });
    assert_eq!(nothing, expected);
    let session = owner.play(json!([{ "text": "first word" }])).await;
    let log = owner.settled(&session, 1).await;
    let result = owner.get(&format!("/sessions/{session}/result")).await.ok();
    assert_eq!(result["result"]["body"]["text"], "first word");
    assert_eq!(result["result"]["id"], result["last_turn"]["result_event_id"]);
    assert_eq!(result["last_turn"]["id"], log.last().expect("an event")["turn_id"]);
    let path = format!("/sessions/{session}");
    owner.post(&format!("{path}/messages"), json!({ "text": "go on" })).await.ok();
    owner.settled(&session, 2).await;
    let turns = owner.get(&format!("{path}/turns")).await.ok();
    assert_eq!(data(&turns).len(), 2);
    assert_eq!(data(&turns)[1], result["last_turn"], "newest first");
    let newest = owner.get(&format!("{path}/turns/{}", id(&data(&turns)[0]))).await.ok();
    assert_eq!(newest, data(&turns)[0]);
    let steps = owner.get(&format!("{path}/steps")).await.ok();
    let of_turns: Vec<_> = data(&steps).iter().map(|step| step["turn_id"].clone()).collect();
    assert_eq!(of_turns, [data(&turns)[1]["id"].clone(), data(&turns)[0]["id"].clone()], "in order");
    let session = owner.get(&path).await.ok();
    assert_eq!((&session["usage"]["steps"], &session["status"]), (&json!(2), &json!("idle")));
    world.end().await;
}

#[tokio::test]
async fn what_a_tool_wrote_never_keeps_a_session_open() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a", "input": "x" })).await.ok());
    // A turn in the middle of a call whose sibling wrote a U+0000.
    let mut superuser = world.ground.database.superuser().await;
    sqlx::raw_sql(
        r#"update turn set state = 'running', started_at = now(), attempt = 1;
           update session set status = 'running', running_turn_id = queued_turn_id, queued_turn_id = null, head = 5,
                              input_cursor = 2;
           insert into event (org_id, session_id, seq, event_id, ts, type, level, actor, turn_id, body, body_bytes)
           select e.org_id, e.session_id, 2 + n, gen_random_uuid(), now(), kind, 2, '{"type":"agent"}', e.turn_id, v.body::json, 9
           from event e,
                (values (1, 'tool.call', '{"call_id":"c1","tool":"bash","input":{"command":"\u0000"}}'),
                        (2, 'tool.result', '{"call_id":"c1","tool":"bash","output":"\u0000"}'),
                        (3, 'tool.call', '{"call_id":"c2","tool":"bash","input":{"command":"\u0000"}}'))
                    as v (n, kind, body)
           where e.seq = 2"#,
    )
    .execute(&mut superuser)
    .await
    .expect("a turn that runs");
    let archived = owner.post(&format!("/sessions/{session}/archive"), json!({})).await.ok();
    assert_eq!(archived["status"], "archived");
    let log = owner.get(&format!("/sessions/{session}/events?after=5")).await.ok();
    let types: Vec<_> = data(&log).iter().map(|event| event["type"].clone()).collect();
    assert_eq!(types, ["tool.result", "turn.completed", "session.status_changed"]);
    let body = &data(&log)[0]["body"];
    assert_eq!((&body["call_id"], &body["outcome"]), (&json!("c2"), &json!("unknown")));
    drop(superuser);
    world.end().await;
}
