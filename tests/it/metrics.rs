//! What a process counts of its own work, as a scrape reads it.

use serde_json::json;

use crate::support::service::Ground;

#[tokio::test]
async fn what_turns_do_is_counted_by_words_that_no_tenant_chose() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = service.owner();
    let usage = json!({ "input_tokens": 70, "output_tokens": 30 });
    let played = owner
        .play(json!([
            { "fault": { "kind": "overloaded", "retry_after_ms": 1 }, "usage": usage,
              "tools": [{ "tool": "a_tool_of_the_tenant", "input": {} }] },
            { "text": "done", "usage": usage },
        ]))
        .await;
    owner.settled(&played, 1).await;
    // A reader of what is still to come.
    owner.post(&format!("/sessions/{played}/messages"), json!({ "text": "more" })).await.ok();
    owner.settled(&played, 2).await;

    let metrics = service.metrics().await;
    let one = |name: &str| metrics.get(name).copied().unwrap_or_else(|| panic!("{name}: {metrics:#?}"));
    assert_eq!(one("sojourn_turns_ended_total{reason=\"completed\"}"), 2.0);
    assert_eq!(one("sojourn_model_faults_total{code=\"model_unavailable\"}"), 1.0);
    // The second turn has no script; its usage is an estimate.
    assert!(one("sojourn_model_tokens_total{provider=\"scripted\",kind=\"input\"}") > 140.0);
    assert_eq!(one("sojourn_tool_calls_total{tool=\"\",outcome=\"not_run\"}"), 1.0);
    assert!(one("sojourn_append_seconds_count") >= 4.0);
    assert_eq!(one("sojourn_http_seconds_count{method=\"POST\",route=\"/v3/sessions\",status=\"201\"}"), 1.0);
    let text = format!("{metrics:?}");
    assert!(!text.contains("a_tool_of_the_tenant") && !text.contains(&played), "{text}");
    service.stop().await;
}
