//! Processes whose clocks are wrong by minutes: what they store is neither late nor early for others.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use sojourn::base::{Clock, Origin, Timestamp, clock::SystemClock, entropy::SystemEntropy};
use tokio::time::timeout;

use crate::{
    fake::receiver::{Receiver, Reply},
    support::{service::Ground, wait::wait_for},
    turns::{ends, of},
};

/// The clock of a machine that is ahead by this many minutes, or behind.
struct WrongClock(i64);

impl Clock for WrongClock {
    fn now(&self) -> Timestamp {
        SystemClock.now() + time::Duration::minutes(self.0)
    }
}

fn wrong(minutes: i64) -> Origin {
    Origin::new(Arc::new(WrongClock(minutes)), Arc::new(SystemEntropy))
}

#[tokio::test]
async fn a_process_whose_clock_is_wrong_delays_and_hurries_nothing() {
    for (api_minutes, worker_minutes) in [(10, -10), (-10, 10)] {
        let ground = Ground::new().await;
        let api = ground.serve_by(wrong(api_minutes), &["--role=api", "--metrics-listen=127.0.0.1:0"]).await;
        let worker = ground.serve_by(wrong(worker_minutes), &["--role=worker"]).await;
        let owner = api.owner();
        let mut receiver = Receiver::start([Reply::Status(500)]).await;
        let destination = json!({ "url": receiver.url().as_str(), "types": ["turn.completed"] });
        // The provider asks for a pause of a second between two attempts.
        let fault = json!({ "kind": "rate_limited", "times": 1, "retry_after_ms": 1_000 });
        let script = json!([{ "text": "Done.", "fault": fault }]);
        let started = tokio::time::Instant::now();
        let created = owner
            .post(
                "/sessions",
                json!({
                    "agent": owner.inline_agent().await,
                    "input": { "script": script },
                    "destinations": [destination],
                }),
            )
            .await
            .ok();
        let id = created["session"]["id"].as_str().expect("an id").to_owned();

        let token = owner.post(&format!("/sessions/{id}/client-tokens"), json!({ "ttl": 60 })).await.ok();
        let holder = api.caller(token["token"].as_str().expect("a token"));
        holder.get(&format!("/sessions/{id}/events")).await.ok();

        let log = owner.settled(&id, 1).await;
        assert_eq!(ends(&log), ["completed"]);
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
        let turn = |kind: &str| timestamp(&of(&log, kind)[0]["ts"]);
        let (asked, began) = (turn("user.message"), turn("turn.started"));
        assert!((began - asked).abs() < time::Duration::seconds(30), "{asked} {began}");

        let within = Duration::from_secs(60);
        timeout(within, receiver.next()).await.expect("the delivery is sent");
        timeout(within, receiver.next()).await.expect("it is sent again after 5 s");

        let measured = async || api.metrics().await.get("sojourn_clock_difference_seconds").copied();
        let difference = wait_for("the difference of the clocks", measured).await;
        assert!((difference.abs() - 600.0).abs() < 5.0, "{difference}");
        worker.stop().await;
        api.stop().await;
    }
}

fn timestamp(text: &Value) -> Timestamp {
    let text = text.as_str().expect("a time");
    Timestamp::parse(text, &time::format_description::well_known::Rfc3339).expect("RFC 3339")
}
