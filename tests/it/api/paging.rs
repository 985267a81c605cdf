//! Paging: no gaps, no duplicates, and a cursor is valid for one list only.

use serde_json::json;

use super::{World, data, id, noop};
use crate::support::service::Caller;

/// Reads a list to its end, `limit` rows at a time.
async fn walk(caller: &Caller, path: &str, mut each_page: impl AsyncFnMut()) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = caller.get(&format!("{path}{cursor}")).await.ok();
        ids.extend(data(&page).iter().map(id));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
        each_page().await;
    }
}

#[tokio::test]
async fn paging_has_no_gap_and_no_double_while_rows_arrive() {
    let world = World::still().await;
    let owner = &world.owner;
    let mut made = Vec::new();
    for _ in 0..13 {
        made.push(id(&owner.post("/sessions", json!({})).await.ok()));
    }
    made.reverse();
    let read = walk(owner, "/sessions?limit=3", async || {
        owner.post("/sessions", json!({})).await.ok();
    });
    assert_eq!(read.await, made, "the rows from before, each once, newest first");
    let one_page = walk(owner, "/sessions?limit=17", async || {}).await;
    assert_eq!(one_page.len(), 17, "a full last page has no next cursor");
    for (path, body) in [("/agents", None), ("/credentials", Some(json!({ "key": "sk-1234" })))] {
        for n in 0..5 {
            owner.post(path, body.clone().unwrap_or_else(|| noop(&format!("a{n}")))).await.ok();
        }
        let mut read = walk(owner, &format!("{path}?limit=2"), async || {}).await;
        assert_eq!(read.len(), 5);
        read.dedup();
        assert!(read.len() == 5 && read.is_sorted_by(|a, b| a > b), "{read:?}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_cursor_is_bound_to_org_list_and_filters() {
    let world = World::still().await;
    let (owner, stranger) = (&world.owner, &world.stranger);
    for caller in [owner, stranger] {
        for n in 0..3 {
            caller.post("/sessions", json!({ "metadata": { "n": "1" } })).await.ok();
            caller.post("/agents", noop(&format!("a{n}"))).await.ok();
        }
    }
    let page = owner.get("/sessions?limit=1").await.ok();
    let cursor = page["next_cursor"].as_str().expect("there is more");
    owner.get(&format!("/sessions?limit=2&cursor={cursor}")).await.ok();
    for (caller, path) in [
        (stranger, "/sessions?limit=1"),
        (owner, "/agents?limit=1"),
        (owner, "/sessions?limit=1&status=idle"),
        (owner, "/sessions?limit=1&metadata[n]=1"),
    ] {
        assert_eq!(caller.get(&format!("{path}&cursor={cursor}")).await.error(400)["param"], "cursor");
    }
    let mut forged = cursor.to_owned();
    forged.replace_range(0..1, if cursor.starts_with('A') { "B" } else { "A" });
    owner.get(&format!("/sessions?cursor={forged}")).await.error(400);
    world.end().await;
}

#[tokio::test]
async fn a_log_is_paged_by_seq_and_by_its_next_cursor() {
    let world = World::still().await;
    let owner = &world.owner;
    owner.post("/agents", noop("a")).await.ok();
    let session = id(&owner.post("/sessions", json!({ "agent": "a" })).await.ok());
    for n in 0..6 {
        owner.post(&format!("/sessions/{session}/messages"), json!({ "text": format!("{n}") })).await.ok();
    }
    let (mut after, mut seqs) = ("0".to_owned(), Vec::new());
    loop {
        let page = owner.get(&format!("/sessions/{session}/events?limit=2&after={after}")).await.ok();
        seqs.extend(data(&page).iter().map(|event| event["seq"].as_i64().expect("a seq")));
        let Some(next) = page["next_cursor"].as_str() else { break };
        after = next.to_owned();
    }
    assert_eq!(seqs, (1..=7).collect::<Vec<_>>());
    for (list, first) in [("events", 1), ("messages", 2)] {
        let (mut query, mut seqs) = (String::new(), Vec::new());
        loop {
            let page = owner.get(&format!("/sessions/{session}/{list}?limit=2&after=0{query}")).await.ok();
            seqs.extend(data(&page).iter().map(|event| event["seq"].as_i64().expect("a seq")));
            let Some(next) = page["next_cursor"].as_str() else { break };
            query = format!("&cursor={next}");
        }
        assert_eq!(seqs, (first..=7).collect::<Vec<_>>(), "{list} by next_cursor");
        let path = format!("/sessions/{session}/{list}?limit=1");
        for (query, seq) in [("after=5&cursor=3", 6), ("after=3&cursor=5", 6)] {
            let page = owner.get(&format!("{path}&{query}")).await.ok();
            assert_eq!(data(&page)[0]["seq"], seq, "{list}?{query}");
        }
        for bad in ["x", "-1", "", "99999999999999999999"] {
            assert_eq!(owner.get(&format!("{path}&cursor={bad}")).await.error(400)["param"], "cursor");
        }
    }
    world.end().await;
}
