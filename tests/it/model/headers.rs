//! The header of the key, and the further headers of a credential.

use std::sync::Arc;

use sojourn::model::{Connection, Providers, Settings, trusted_client};

use super::{API, Http, Named, request, user};
use crate::fake::{
    Fake, Fault, Request, Step,
    anthropic::Anthropic,
    openai::{Azure, OpenAi},
    provider::{Dialect, header},
};
/// An organization's address of the fake, with the key in `key_header`.
fn connection<D: Dialect>(fake: &Fake<D>, key_header: Option<&str>) -> Connection {
    let path = D::PATH.strip_suffix("/chat/completions").expect("a path of chat completions");
    Connection {
        provider: "azure".to_owned(),
        base_url: Some(format!("{}{path}", fake.base_url).parse().expect("an address")),
        key: "the-key-of-azure".into(),
        key_header: key_header.map(str::to_owned),
        headers: Vec::new(),
    }
}

fn guarded() -> Http {
    let client = trusted_client();
    Http::new(trusted_client(), Some(Arc::new(move |url: &url::Url| Ok(client.post(url.clone())))))
}

#[tokio::test]
async fn the_key_is_in_the_header_that_the_credential_names() {
    let name = "azure/gpt-5".parse().expect("a model's name");
    let fake = Fake::decide(Azure, |_| Step::text("Done.")).await;
    for (key_header, is_accepted) in [(Some("api-key"), true), (None, false), (Some("x-api-key"), false)] {
        let credential = connection(&fake, key_header);
        let model = Providers::new(guarded(), Settings::default())
            .model(&name, API, Some(&credential))
            .expect("a model");
        let answer = model.answer(&request(vec![user("Hi")]), &mut |_| {}).await;
        assert_eq!(answer.is_ok(), is_accepted, "{key_header:?}: {answer:?}");
    }
    let fake = Fake::decide(OpenAi, |_| Step::text("Done.")).await;
    let credential = connection(&fake, Some("authorization"));
    let model =
        Providers::new(guarded(), Settings::default()).model(&name, API, Some(&credential)).expect("a model");
    model.answer(&request(vec![user("Hi")]), &mut |_| {}).await.expect("a bearer token");
}

#[tokio::test]
async fn a_header_replaces_that_of_the_adapter_and_no_error_shows_its_value() {
    let echo = |request: &Request| {
        let value = header(request, "x-gateway-key").unwrap_or_default();
        Step::status(400, "invalid_request_error", &format!("the gateway refused {value} and sk-1"))
    };
    let fake = Fake::decide(Anthropic::default(), echo).await;
    let credential = Connection {
        provider: "anthropic".to_owned(),
        base_url: None,
        key: "sk-1".into(),
        key_header: None,
        headers: vec![
            ("anthropic-version".to_owned(), "2026-10-21".into()),
            ("x-gateway-key".to_owned(), "secret-of-the-gateway".into()),
        ],
    };
    let name = "anthropic/m-1".parse().expect("a model's name");
    let model = Providers::new(super::http(), Anthropic::settings(&fake.base_url))
        .model(&name, API, Some(&credential))
        .expect("a model");
    let fault = model.answer(&request(vec![user("Hi")]), &mut |_| {}).await.expect_err("refused").to_string();
    assert!(fault.contains("the gateway refused [key] and [key]"), "{fault}");
    let sent = &fake.requests()[0];
    let versions: Vec<_> = sent.headers.get_all("anthropic-version").iter().collect();
    assert_eq!(versions, ["2026-10-21"]);
}

#[tokio::test]
async fn an_error_in_a_stream_shows_no_value_of_a_header_also_not_as_json() {
    // Plain, and as a part of a JSON text.
    const TOLD: &str = r#"the gateway has {"key": "secret"} and {\"key\": \"secret\"}"#;
    let value = r#"{"key": "secret"}"#;
    let event = |_: &Request| Step::fault(Fault::ErrorEvent { kind: "invalid_request_error", message: TOLD });
    let fake = Fake::decide(Anthropic::default(), event).await;
    let credential = Connection {
        provider: "anthropic".to_owned(),
        base_url: None,
        key: "sk-1".into(),
        key_header: None,
        headers: vec![("x-gateway-config".to_owned(), value.into())],
    };
    let name = "anthropic/m-1".parse().expect("a model's name");
    let model = Providers::new(super::http(), Anthropic::settings(&fake.base_url))
        .model(&name, API, Some(&credential))
        .expect("a model");
    let fault = model.answer(&request(vec![user("Hi")]), &mut |_| {}).await.expect_err("refused").to_string();
    assert!(fault.contains("the gateway has [key] and [key]") && !fault.contains("secret"), "{fault}");
}
