//! Deliveries as receivers see them: signatures, headers, and the outcome for each kind of receiver.

use std::sync::Arc;

use serde_json::{Map, Value, json, value::to_raw_value};
use sojourn::{
    base::{Origin, limit},
    domain::{DeliveryId, EventId, SessionId},
    net::{Client, Policy, SystemResolver},
    webhook::{Next, Outcome, Parts, Secret, SignedRequest, next, send, sign},
};
use url::Url;

use crate::fake::receiver::{Receiver, Reply};

fn client() -> Client {
    Client::new(Policy { allow_private: true, ..Policy::default() }, Arc::new(SystemResolver::default()))
}

fn metadata() -> Map<String, Value> {
    json!({ "threadKey": "C1/2", "snake_case": 1 }).as_object().expect("an object").clone()
}

fn delivery(url: &Url, secrets: &[Secret]) -> SignedRequest {
    let origin = Origin::system();
    let event = to_raw_value(&json!({ "seq": 7, "type": "turn.completed" })).expect("JSON");
    let parts = Parts {
        url,
        delivery: origin.id(),
        session: Some(origin.id()),
        metadata: &metadata(),
        event_id: origin.id(),
        event_type: "turn.completed",
        event: &event,
        secrets,
        at: origin.now(),
    };
    SignedRequest::write(parts)
}

async fn sent_to(script: Vec<Reply>) -> (Outcome, Receiver) {
    let receiver = Receiver::start(script).await;
    let secret = Secret::generate(&Origin::system());
    let outcome = send(&client(), &delivery(&receiver.url(), &[secret])).await;
    (outcome, receiver)
}

/// Computed by the published libraries for these inputs: the first two with `standardwebhooks` 1.1.0 of PyPI;
/// the third, whose secret that library does not accept, with an HMAC that `verifyWebhook` of npm's
/// `@opencomputer/sdk` 0.12.4 accepted. The latter accepted the first two as well.
#[test]
fn signatures_are_those_of_the_published_libraries() {
    for (secret, id, body, signature) in [
        (
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "dlv_01jbkz2j0e4d8t6wq3r5m7n9pa",
            r#"{"type":"turn.completed","n":1}"#,
            "v1,654PjOHDMxXbO2F5KDd8i8H3dSLvHtE9cMeUZXrwyFA=",
        ),
        (
            "whsec_c29qb3Vybi13ZWJob29rLXNlY3JldC1vZi0zMi1ieXQ=",
            "dlv_01jbkz2j0e4d8t6wq3r5m7n9pb",
            r#"{"text":"Zürich → 東京"}"#,
            "v1,dII8c6QS79nINN97+//CBQVkA0xzKDXeYMZVZ9ps+rU=",
        ),
        (
            "clé",
            "dlv_01jbkz2j0e4d8t6wq3r5m7n9pc",
            r#"{"type":"turn.completed","n":3}"#,
            "v1,GRCFkWEO8pgCmWRr4x6mu/8alGcjuaca3EZE/v93V5Q=",
        ),
    ] {
        let secret = Secret::parse(secret).expect("a secret");
        assert_eq!(sign(&[secret], id, 1_793_520_000, body.as_bytes()), signature);
    }
}

#[tokio::test]
async fn a_delivery_arrives_whole_and_signed() {
    let mut receiver = Receiver::start([]).await;
    let secret = Secret::generate(&Origin::system());
    let delivery = delivery(&receiver.url(), std::slice::from_ref(&secret));
    let outcome = send(&client(), &delivery).await;
    assert_eq!((outcome.status, outcome.error, outcome.retry_after), (Some(200), None, None));

    let received = receiver.next().await;
    let id = received.header("webhook-id");
    assert!(id.parse::<DeliveryId>().is_ok());
    assert_eq!(received.header("x-oc-delivery-id"), id);
    assert_eq!(received.header("content-type"), "application/json");
    assert!(received.header("user-agent").starts_with("sojourn/"));
    let timestamp = received.header("webhook-timestamp").parse().expect("seconds");
    assert_eq!(received.header("webhook-signature"), sign(&[secret], id, timestamp, &received.body));

    let body: Value = serde_json::from_slice(&received.body).expect("JSON");
    let keys: Vec<_> = body.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["type", "sessionId", "eventId", "metadata", "event"]);
    assert_eq!(body["type"], "turn.completed");
    assert!(body["sessionId"].as_str().expect("a string").parse::<SessionId>().is_ok());
    assert!(body["eventId"].as_str().expect("a string").parse::<EventId>().is_ok());
    assert_eq!(body["metadata"], Value::Object(metadata()));
    assert_eq!(body["event"], json!({ "seq": 7, "type": "turn.completed" }));
}

#[tokio::test]
async fn while_a_secret_is_replaced_either_one_verifies() {
    let mut receiver = Receiver::start([]).await;
    let origin = Origin::system();
    let secrets = [Secret::generate(&origin), Secret::generate(&origin)];
    send(&client(), &delivery(&receiver.url(), &secrets)).await;
    let received = receiver.next().await;
    let (id, timestamp) = (received.header("webhook-id"), received.header("webhook-timestamp"));
    let timestamp = timestamp.parse().expect("seconds");
    let signatures: Vec<_> = received.header("webhook-signature").split(' ').collect();
    let expected = secrets.map(|secret| sign(&[secret], id, timestamp, &received.body));
    assert_eq!(signatures, expected);
}

#[tokio::test]
async fn only_a_2xx_is_success() {
    let origin = Origin::system();
    for (status, delivered) in
        [(200, true), (204, true), (304, false), (400, false), (404, false), (500, false)]
    {
        let (outcome, _receiver) = sent_to(vec![Reply::Status(status)]).await;
        assert_eq!(outcome.status, Some(status));
        assert_eq!(outcome.error.is_none(), delivered, "{status}");
        assert_eq!(next(1, &outcome, &origin) == Next::Delivered, delivered, "{status}");
    }
    let (outcome, _receiver) = sent_to(vec![Reply::Status(410)]).await;
    assert_eq!(next(1, &outcome, &origin), Next::DisableDestination);
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let other = Receiver::start([]).await;
    let (outcome, _receiver) = sent_to(vec![Reply::Redirect(other.url())]).await;
    assert_eq!(outcome.status, Some(307));
    assert!(outcome.error.expect("a failure").contains("redirects are not followed"));
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn a_receiver_that_asks_for_time_gets_it() {
    let (outcome, _receiver) = sent_to(vec![Reply::RetryAfter(429, "900")]).await;
    match next(1, &outcome, &Origin::system()) {
        Next::Retry { after } => assert_eq!(after, std::time::Duration::from_secs(900)),
        Next::Delivered | Next::Dead | Next::DisableDestination => panic!("a 429 is retried"),
    }
}

#[tokio::test]
async fn a_receiver_that_hangs_is_given_up_after_the_timeout() {
    let mut receiver = Receiver::start([Reply::Hang]).await;
    let secret = Secret::generate(&Origin::system());
    let delivery = delivery(&receiver.url(), &[secret]);
    let sending = tokio::spawn(async move { send(&client(), &delivery).await });
    receiver.next().await;
    // The delivery has arrived and nothing more will be sent: the clock may advance.
    tokio::time::pause();
    let outcome = sending.await.expect("sending does not panic");
    assert_eq!(outcome.status, None);
    assert!(outcome.duration >= limit::WEBHOOK_TIMEOUT, "{:?}", outcome.duration);
    assert_eq!(outcome.error.as_deref(), Some("the receiver did not answer within 15 s"));
}

#[tokio::test]
async fn a_connection_that_drops_before_the_answer_is_a_failure() {
    let (outcome, mut receiver) = sent_to(vec![Reply::Drop]).await;
    assert_eq!(outcome.status, None);
    assert!(outcome.error.expect("a failure").starts_with("the connection to the receiver broke"));
    assert!(!receiver.next().await.body.is_empty(), "the delivery arrived: it will arrive twice");
}

#[tokio::test]
async fn a_status_counts_whatever_becomes_of_the_body() {
    for reply in [Reply::Cut, Reply::Endless] {
        let (outcome, _receiver) = sent_to(vec![reply.clone()]).await;
        assert_eq!((outcome.status, outcome.error), (Some(200), None), "{reply:?}");
    }
}

#[tokio::test]
async fn a_receiver_that_is_away_is_a_failure() {
    let receiver = Receiver::start([]).await;
    let url = receiver.url();
    receiver.stop().await;
    let secret = Secret::generate(&Origin::system());
    let delivery = delivery(&url, &[secret]);
    let outcome = send(&client(), &delivery).await;
    assert_eq!(outcome.status, None);
    assert!(outcome.error.expect("a failure").starts_with("no connection to the receiver"));
}

#[tokio::test]
async fn a_url_that_may_not_be_called_fails_with_the_reason() {
    let receiver = Receiver::start([]).await;
    let guarded = Client::new(Policy::default(), Arc::new(SystemResolver::default()));
    let secret = Secret::generate(&Origin::system());
    let outcome = send(&guarded, &delivery(&receiver.url(), &[secret])).await;
    assert_eq!((outcome.status, outcome.error.as_deref()), (None, Some("only https URLs are allowed")));
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn deliveries_to_one_receiver_share_a_connection() {
    let mut receiver = Receiver::start([]).await;
    let client = client();
    let secret = Secret::generate(&Origin::system());
    for _ in 0..5 {
        send(&client, &delivery(&receiver.url(), std::slice::from_ref(&secret))).await;
        receiver.next().await;
    }
    assert_eq!(receiver.connections(), 1);
}
