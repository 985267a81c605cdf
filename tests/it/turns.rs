//! A session from its creation to its result, over HTTP.

use serde_json::json;

use crate::support::service::Ground;

#[tokio::test]
async fn a_session_runs_its_turn_and_has_a_result() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let session = owner.play(json!([{ "text": "All done." }])).await;
    let log = owner.settled(&session, 1).await;
    let seqs: Vec<_> = log.iter().map(|event| event["seq"].as_i64().expect("a seq")).collect();
    assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
    let result = owner.get(&format!("/sessions/{session}/result")).await.ok();
    assert_eq!(result["last_turn"]["yield_reason"], "completed");
    assert_eq!(result["result"]["body"]["text"], "All done.");
    service.stop().await;
}
