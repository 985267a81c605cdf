//! Repositories that exceed the size limit or the time limit.

use std::time::Duration;

use serde_json::json;

use super::{done, of, play, scene, session, told};
use crate::fake::git::GitHost;

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_is_too_large_is_not_retried() {
    let host = GitHost::start().await;
    // One is small until it is unpacked (git writes zeros as holes), the other is large in transfer.
    host.repository_of("open/same.git", &b"all the same\n".repeat(7 << 20));
    let mut bits = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bits.to_be_bytes()[0]
    })
    .take(90 << 20)
    .collect();
    host.repository_of("open/noise.git", &noise);
    let mut wanted = vec![("open/same.git", "source.too_large"), ("open/noise.git", "source.too_large")];
    // More than 1 GiB, and 10 minutes.
    if std::env::var_os("SOJOURN_TEST_FULL").is_some() {
        for (path, code) in [("huge/app.git", "source.too_large"), ("slow/app.git", "source.timeout")] {
            host.repository(path);
            wanted.push((path, code));
        }
    }
    let scene = scene(&host).await;
    let owner = &scene.owner;
    let small = json!({ "environment": { "disk": "64Mi" } });
    let tried = wanted.into_iter().map(async |(path, code)| {
        let id = play(owner, done("echo never"), json!([{ "url": host.url(path) }]), small.clone()).await;
        let is_open =
            async || matches!(session(owner, &id).await["status"].as_str(), Some("queued" | "running"));
        while code == "source.timeout" && is_open().await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let log = owner.settled(&id, 1).await;
        assert_eq!(told(&log), ["cloning", "failed"], "{path}: {log:#?}");
        let failed = &of(&log, "source.failed")[0]["body"];
        assert_eq!((&failed["code"], &failed["retryable"]), (&json!(code), &json!(false)), "{failed}");
        let end = &of(&log, "turn.completed")[0]["body"];
        assert_eq!(end["error"]["code"], "source_failed");
    });
    futures::future::join_all(tried).await;
    scene.close().await;
}
