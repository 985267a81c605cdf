//! A database that has lost its last commits, as after a failover without synchronous replication: a process that
//! saw them goes on with what the database has.

use serde_json::json;

use crate::{
    fake::{Fake, Step, anthropic::Anthropic},
    support::{service::Ground, wait::wait_for},
    turns::{ask_model, ends, seqs, steer},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_does_not_contain_events_that_the_database_has_lost() {
    let ground = Ground::new().await;
    let fake = Fake::decide(Anthropic::default(), |_| Step::text("Heard.")).await;
    let base_url = format!("--anthropic-base-url={}", fake.base_url);
    let service = ground.serve(&[&base_url]).await;
    let owner = service.owner();
    let id = ask_model(&owner, "The first.").await;
    owner.settled(&id, 1).await;
    let is_back = async || {
        let path = format!("/sessions/{id}");
        wait_for("the service has connections again", async || {
            (owner.get(&path).await.status == 200).then_some(())
        })
        .await;
    };
    ground.database.save().await;
    is_back().await;
    steer(&owner, &id, "The lost one.").await;
    let lost = owner.settled(&id, 2).await;

    ground.database.restore_saved().await;
    is_back().await;
    assert_eq!(ends(&owner.settled(&id, 1).await), ["completed"]);
    // The log grows beyond the events that are lost before the next turn reads it.
    owner.post(&format!("/sessions/{id}/pause"), json!({})).await.ok();
    for word in ["The third.", "The fourth.", "The fifth.", "The sixth.", "The seventh."] {
        steer(&owner, &id, word).await;
    }
    let resumed = owner.post(&format!("/sessions/{id}/resume"), json!({})).await.ok();
    assert!(resumed["head"].as_u64() > Some(lost.len() as u64), "{resumed}");
    let log = owner.settled(&id, 2).await;
    let last = fake.requests().last().expect("a request").body.to_string();
    assert!(
        ["first", "third", "seventh"].iter().all(|word| last.contains(&format!("The {word}."))),
        "{last}"
    );
    assert!(!last.contains("The lost one."), "{last}");
    assert_eq!(fake.refusals(), Vec::<String>::new());
    assert_eq!(seqs(&log), (1..=log.len() as i64).collect::<Vec<_>>());
    assert!(!json!(log).to_string().contains("The lost one."));
    service.stop().await;
}
