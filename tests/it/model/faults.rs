//! Faults of a provider, in the form that the harness receives.

use std::time::{Duration, Instant};

use sojourn::model::Fault;

use super::{API, Named, connect, http, request, user};
use crate::fake::{
    Fake, Fault as Played, Step,
    anthropic::{self, Anthropic},
    openai::{self, OpenAi},
};

async fn ask<D: Named>(step: Step, key: &str) -> Fault {
    let fake = Fake::script(D::default(), [step]).await;
    let model = connect(&fake, http(), key);
    model.answer(&request(vec![user("Hi")]), &mut |_| {}).await.expect_err("a fault")
}

/// A short name for the kind of a fault, for readable tables.
fn word(fault: &Fault) -> &'static str {
    match fault {
        Fault::Unavailable { .. } => "unavailable",
        Fault::ContextTooLong { .. } => "context too long",
        Fault::Unauthorized { .. } => "unauthorized",
        Fault::PaymentRequired { .. } => "payment required",
        Fault::FilesRefused { .. } => "files_refused",
        Fault::Refused { .. } => "refused",
    }
}

#[tokio::test]
async fn refusals_of_anthropic_say_what_to_do() {
    for (status, kind, message, wanted) in [
        (429, "rate_limit_error", "Number of request tokens has exceeded your rate limit", "unavailable"),
        (529, "overloaded_error", "Overloaded", "unavailable"),
        (500, "api_error", "Internal server error", "unavailable"),
        (504, "timeout_error", "Timed out", "unavailable"),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 210000 tokens > 200000 maximum",
            "context too long",
        ),
        (413, "request_too_large", "Request exceeds the maximum size", "context too long"),
        (401, "authentication_error", "invalid x-api-key", "unauthorized"),
        (403, "permission_error", "not allowed", "unauthorized"),
        (402, "billing_error", "pay", "payment required"),
        (404, "not_found_error", "model: claude-0", "refused"),
        (302, "", "moved", "refused"),
    ] {
        let fault = ask::<Anthropic>(Step::status(status, kind, message), "sk-1").await;
        assert_eq!(word(&fault), wanted, "{status} {kind}: {fault:?}");
        assert!(fault.to_string().contains(message), "{fault}");
    }
    let fault = ask::<Anthropic>(Step::text("x"), anthropic::BAD_KEY).await;
    assert_eq!(word(&fault), "unauthorized");
}

#[tokio::test]
async fn refusals_of_chat_completions_say_what_to_do() {
    for (status, kind, wanted) in [
        (429, "rate_limit_exceeded", "unavailable"),
        (503, "server_error", "unavailable"),
        (429, "insufficient_quota", "payment required"),
        (400, "context_length_exceeded", "context too long"),
        (403, "unsupported_country_region_territory", "unauthorized"),
        (404, "model_not_found", "refused"),
    ] {
        let fault = ask::<OpenAi>(Step::status(status, kind, "the reason"), "sk-1").await;
        assert_eq!(word(&fault), wanted, "{status} {kind}: {fault:?}");
    }
    let fault = ask::<OpenAi>(Step::text("x"), openai::BAD_KEY).await;
    assert_eq!(word(&fault), "unauthorized");
}

#[tokio::test]
async fn the_time_to_come_back_is_read_from_the_refusal() {
    let headers = vec![("retry-after", "17".to_owned())];
    let (kind, message) = ("overloaded_error", "Overloaded".to_owned());
    let busy = Step::fault(Played::Status { status: 529, headers, kind, message });
    let fault = ask::<Anthropic>(busy, "sk-1").await;
    let wait = Some(Duration::from_secs(17));
    assert!(matches!(fault, Fault::Unavailable { retry_after, .. } if retry_after == wait), "{fault:?}");
}

#[tokio::test]
async fn a_key_in_a_providers_error_is_redacted() {
    let key = "sk-very-secret-0123456789";
    let leak = Step::status(401, "authentication_error", &format!("invalid x-api-key {key}"));
    let fault = ask::<Anthropic>(leak, key).await.to_string();
    assert!(!fault.contains(key) && fault.contains("[key]"), "{fault}");
}

#[tokio::test]
async fn an_error_in_mid_stream_voids_the_answer() {
    for (kind, wanted) in [("overloaded_error", "unavailable"), ("billing_error", "payment required")] {
        let step = Step::fault(Played::ErrorEvent { kind, message: "no" });
        assert_eq!(word(&ask::<Anthropic>(step, "sk-1").await), wanted, "{kind}");
    }
    let step = Step::fault(Played::ErrorEvent { kind: "server_error", message: "no" });
    assert_eq!(word(&ask::<OpenAi>(step, "sk-1").await), "unavailable");
}

#[tokio::test]
async fn a_stream_that_was_cut_is_no_answer() {
    for bytes in [0, 1, 60, 500, 1_000] {
        let fault = ask::<Anthropic>(Step::fault(Played::CutAfter(bytes)), "sk-1").await;
        assert_eq!(word(&fault), "unavailable", "after {bytes}: {fault:?}");
        let fault = ask::<OpenAi>(Step::fault(Played::CutAfter(bytes.min(800))), "sk-1").await;
        assert_eq!(word(&fault), "unavailable", "after {bytes}: {fault:?}");
    }
}

#[tokio::test]
async fn a_provider_that_stalls_is_given_up_in_time() {
    for fault in [Played::Stall, Played::StallAfter(0), Played::StallAfter(700)] {
        let fake = Fake::script(Anthropic::default(), [Step::fault(fault.clone())]).await;
        let short = Duration::from_millis(80);
        let model = connect(&fake, http().with_timeouts(short, short), "sk-1");
        let start = Instant::now();
        let given_up = model.answer(&request(vec![user("Hi")]), &mut |_| {}).await.expect_err("a stall");
        assert_eq!(word(&given_up), "unavailable", "{fault:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "{fault:?} took {:?}", start.elapsed());
        fake.hung_up(1).await;
    }
}

#[tokio::test]
async fn nobody_at_the_address_is_unavailable() {
    let fake = Fake::script(Anthropic::default(), []).await;
    let model = connect(&fake, http(), "sk-1");
    // A port that was just released: nothing listens on it.
    let free =
        tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let settings = Anthropic::settings(&format!("http://{free}"));
    let credential = sojourn::model::Connection {
        provider: "anthropic".into(),
        base_url: None,
        key: "k".into(),
        key_header: None,
        headers: Vec::new(),
    };
    let name = "anthropic/x".parse().expect("a model's name");
    let nobody = sojourn::model::Providers::new(http(), settings)
        .model(&name, API, Some(&credential))
        .expect("a model");
    let fault = nobody.answer(&request(vec![user("Hi")]), &mut |_| {}).await.expect_err("nobody");
    assert_eq!(word(&fault), "unavailable", "{fault:?}");
    // The fake's script is empty: it answers with an error in the provider's format.
    let fault = model.answer(&request(vec![user("Hi")]), &mut |_| {}).await.expect_err("no steps");
    assert_eq!(word(&fault), "refused", "{fault:?}");
}

#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    let fault = ask::<OpenAi>(Step::text(&"endless ".repeat(130_000)), "sk-1").await;
    assert!(fault.to_string().contains("longer than"), "{fault}");
}
