//! Both adapters against endpoints that are as strict as the real ones.

mod faults;
mod headers;
mod sendable;
mod strict;

use std::sync::Arc;

use serde_json::json;
use sojourn::{
    domain::{
        Answer, Block, Message, StopReason,
        conversation::{Effort, ModelApi, ModelOptions, ModelRequest, Thinking},
        tool::{Replay, ToolResult, ToolSpec},
    },
    model::{Connection, Delta, Http, Model, Providers, Settings, trusted_client},
    net,
};

use crate::{
    fake::{
        Dialect, Fake, Request, Said, Step, Used, anthropic::Anthropic, openai::OpenAi, resolver::Script,
        responses::Responses,
    },
    support::wait::WAIT_MAX,
};

/// Setting that names the address of a fake.
pub trait Named: Dialect + Default {
    const PROVIDER: &'static str;
    const API: ModelApi = API;

    fn settings(base_url: &str) -> Settings;
}

impl Named for Anthropic {
    const PROVIDER: &'static str = "anthropic";

    fn settings(base_url: &str) -> Settings {
        Settings { anthropic_base_url: base_url.parse().expect("an address"), ..Settings::default() }
    }
}

impl Named for OpenAi {
    const PROVIDER: &'static str = "openai";

    fn settings(base_url: &str) -> Settings {
        let url = format!("{base_url}/v1").parse().expect("an address");
        Settings { openai_base_url: url, ..Settings::default() }
    }
}

impl Named for Responses {
    const PROVIDER: &'static str = "openai";
    const API: ModelApi = ModelApi::Responses;

    fn settings(base_url: &str) -> Settings {
        OpenAi::settings(base_url)
    }
}

/// The API of a model without options.
pub const API: ModelApi = ModelApi::ChatCompletions;

pub fn http() -> Http {
    Http::new(trusted_client(), None)
}

pub fn connect<D: Named>(fake: &Fake<D>, http: Http, key: &str) -> Arc<dyn Model> {
    let name = format!("{}/m-1", D::PROVIDER).parse().expect("a model's name");
    let credential = Connection {
        provider: D::PROVIDER.to_owned(),
        base_url: None,
        key: key.into(),
        key_header: None,
        headers: Vec::new(),
    };
    Providers::new(http, D::settings(&fake.base_url))
        .model(&name, D::API, Some(&credential))
        .expect("a model")
}

pub fn user(text: &str) -> Message {
    Message::user(text)
}

pub fn request(history: Vec<Message>) -> ModelRequest {
    let spec = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: format!("The tool {name}."),
        input_schema: json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}),
        replay: Replay::Unsafe,
    };
    ModelRequest {
        model: "claude-sonnet-4-5".to_owned(),
        system: "You repair things.".to_owned(),
        tools: vec![spec("bash"), spec("read")],
        history,
        max_tokens: 4_096,
        options: ModelOptions::default(),
        files: std::collections::HashMap::new(),
    }
}

pub fn remember(history: &mut Vec<Message>, model: &dyn Model, answer: &Answer) {
    let provider = model.provider().to_owned();
    history.push(Message::Assistant { provider, raw: answer.raw.clone(), blocks: answer.blocks.clone() });
}

pub fn results(answer: &Answer) -> Message {
    let result = |call: &sojourn::domain::tool::ToolCall| ToolResult {
        call_id: call.call_id.clone(),
        output: format!("{} ran", call.tool),
        is_error: false,
        content: Vec::new(),
    };
    Message::Results { results: answer.tool_calls().map(result).collect() }
}

fn thinking_then_tools() -> Step {
    Step::default()
        .and(Said::Thinking("Where is the bug?".to_owned()))
        .and(Said::Redacted("hidden".to_owned()))
        .and(Said::Text("I look — now.".to_owned()))
        .and_tool("bash", json!({"command": "ls"}))
        .and_tool("read", json!({"command": "a \"quoted\" word"}))
        .using(Used { input: 7, output: 42, cache_write: 5, cache_read: 90 })
}

/// Plays two turns, the first with a tool loop; returns the first answer.
async fn two_turns(model: &dyn Model, options: ModelOptions) -> (Answer, String) {
    let mut history = vec![user("Fix it.")];
    let mut grown = String::new();
    let ask = |history: &[Message]| ModelRequest { options: options.clone(), ..request(history.to_vec()) };
    let take = &mut |delta| match delta {
        Delta::Text { text, .. } => grown.push_str(&text),
        Delta::Thinking { .. } | Delta::Input { .. } | Delta::Used(_) => {}
    };
    let first = model.answer(&ask(&history), take).await.expect("the first answer");
    remember(&mut history, model, &first);
    history.push(results(&first));
    let second = model.answer(&ask(&history), &mut |_| {}).await.expect("the second answer");
    remember(&mut history, model, &second);
    history.push(user("Thanks. And now?"));
    model.answer(&ask(&history), &mut |_| {}).await.expect("the third answer");
    (first, grown)
}

#[tokio::test]
async fn a_tool_loop_with_thinking_is_accepted_by_both_versions_of_anthropic() {
    for version in crate::fake::anthropic::VERSIONS {
        let steps = [thinking_then_tools(), Step::text("Done."), Step::text("Nothing more.")];
        let fake = Fake::script(Anthropic::default(), steps).await;
        let settings =
            Settings { anthropic_version: version.to_owned(), ..Anthropic::settings(&fake.base_url) };
        let credential = Connection {
            provider: "anthropic".to_owned(),
            base_url: None,
            key: "sk-1".into(),
            key_header: None,
            headers: Vec::new(),
        };
        let name = "anthropic/claude-sonnet-4-5".parse().expect("a model's name");
        let model = Providers::new(http(), settings).model(&name, API, Some(&credential)).expect("a model");
        let options = ModelOptions {
            effort: Some(Effort::High),
            thinking: Some(Thinking { budget_tokens: 2_048 }),
            ..ModelOptions::default()
        };
        let (first, grown) = two_turns(&*model, options).await;
        assert_eq!((fake.calls(), fake.refusals()), (3, Vec::new()));
        assert_eq!((first.stop, grown.as_str()), (StopReason::ToolUse, "I look — now."));
        assert_eq!(first.blocks.len(), 5);
        let usage = first.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.tokens()), (7, 42, 144));
        let sent = fake.requests();
        assert_eq!(sent[0].headers["anthropic-version"], version);
        assert_eq!(sent[1].body["messages"][1]["content"], serde_json::to_value(&first.raw).expect("JSON"));
    }
}

#[tokio::test]
async fn a_tool_loop_is_accepted_by_chat_completions() {
    let steps = [thinking_then_tools(), Step::text("Done."), Step::text("Nothing more.")];
    let fake = Fake::script(OpenAi, steps).await;
    let options = ModelOptions { effort: Some(Effort::Medium), ..ModelOptions::default() };
    let (first, grown) = two_turns(&*connect(&fake, http(), "sk-1"), options).await;
    assert_eq!((fake.calls(), fake.refusals()), (3, Vec::new()));
    let peers: Vec<_> = fake.requests().iter().map(|request| request.peer).collect();
    assert!(peers.iter().all(|peer| *peer == peers[0]), "each step opened its own connection: {peers:?}");
    assert_eq!((first.stop, grown.as_str()), (StopReason::ToolUse, "I look — now."));
    assert!(matches!(&first.blocks[0], Block::Thinking { text } if text == "Where is the bug?hidden"));
    assert_eq!((first.usage.input_tokens, first.usage.cache_read_tokens), (12, 90));
    assert_eq!(fake.requests()[0].body["reasoning_effort"], json!("medium"));
}

#[tokio::test]
async fn a_tool_loop_is_accepted_by_the_responses_api() {
    for effort in [Some(Effort::Medium), None] {
        let steps = [thinking_then_tools(), Step::text("Done."), Step::text("Nothing more.")];
        let fake = Fake::script(Responses, steps).await;
        let thinking = effort.map(|_| Thinking { budget_tokens: 1_024 });
        let options = ModelOptions { effort, thinking, ..ModelOptions::default() };
        let (first, grown) = two_turns(&*connect(&fake, http(), "sk-1"), options).await;
        assert_eq!((fake.calls(), fake.refusals()), (3, Vec::new()), "{effort:?}");
        assert_eq!((first.stop, grown.as_str()), (StopReason::ToolUse, "I look — now."));
        assert!(matches!(&first.blocks[0], Block::Thinking { text } if text == "Where is the bug?"));
        assert_eq!((first.usage.input_tokens, first.usage.cache_read_tokens), (12, 90));
        let requests = fake.requests();
        assert_eq!(requests[0].body["reasoning"]["effort"], json!(effort.map(|_| "medium")));
        let sent_back = requests[1].body["input"].to_string().matches("encrypted_content").count();
        assert_eq!(
            sent_back,
            if effort.is_some() { 2 } else { 0 },
            "reasoning is sent back where it is sealed"
        );
    }
}

#[tokio::test]
async fn reasoning_that_another_key_received_is_left_out() {
    let decide = |request: &Request| match request.body.to_string().contains("encrypted_content\":") {
        true => {
            Step::status(400, "invalid_encrypted_content", "The encrypted content could not be verified.")
        }
        false => Step::text("Done."),
    };
    let fake = Fake::decide(Responses, decide).await;
    let model = connect(&fake, http(), "sk-1");
    let raw = crate::fake::dialect::raw(
        "openai/responses",
        &[Block::Thinking { text: "Hm.".to_owned() }, Block::Text { text: "Hello.".to_owned() }],
    );
    let blocks = vec![Block::Text { text: "Hello.".to_owned() }];
    let earlier = Message::Assistant { provider: model.provider().to_owned(), raw, blocks };
    let options = ModelOptions { effort: Some(Effort::Low), ..ModelOptions::default() };
    let request = ModelRequest { options, ..request(vec![user("Hi"), earlier, user("Go on.")]) };
    let answer = model.answer(&request, &mut |_| {}).await.expect("an answer");
    assert_eq!(answer.blocks, [Block::Text { text: "Done.".to_owned() }]);
    assert_eq!((fake.calls(), fake.refusals()), (2, Vec::new()));
}

#[tokio::test]
async fn a_paused_answer_goes_on_where_it_stopped() {
    let steps = [Step::text("One moment.").stopping("pause_turn"), Step::text("Here it is.")];
    let fake = Fake::script(Anthropic::default(), steps).await;
    let model = connect(&fake, http(), "sk-1");
    let mut history = vec![user("Search.")];
    for stop in [StopReason::Pause, StopReason::EndTurn] {
        let answer = model.answer(&request(history.clone()), &mut |_| {}).await.expect("an answer");
        assert_eq!(answer.stop, stop);
        remember(&mut history, &*model, &answer);
    }
    assert_eq!(fake.refusals(), Vec::<String>::new());
}

#[tokio::test]
async fn an_address_that_an_organization_named_is_reached_only_through_the_guard() {
    let echo = |request: &Request| Step::text(request.body["messages"][1]["content"].as_str().expect("text"));
    let fake = Fake::decide(OpenAi, echo).await;
    let base_url = Some(format!("{}/v1", fake.base_url).parse().expect("an address"));
    let credential = Connection {
        provider: "groq".to_owned(),
        base_url,
        key: "sk-1".into(),
        key_header: None,
        headers: Vec::new(),
    };
    let name = "groq/llama".parse().expect("a model's name");
    let ask = async |http: Http| {
        let model =
            Providers::new(http, Settings::default()).model(&name, API, Some(&credential)).expect("a model");
        model.answer(&request(vec![user("Hi")]), &mut |_| {}).await
    };
    let off = ask(http()).await.expect_err("no guard");
    let refusing =
        Arc::new(|url: &url::Url| Err(format!("{} is private", url.host_str().unwrap_or_default())));
    let refused = ask(Http::new(trusted_client(), Some(refusing))).await.expect_err("refused");
    assert_eq!(fake.calls(), 0, "{off}");
    assert!(refused.to_string().contains("127.0.0.1 is private"), "{refused}");
    let client = trusted_client();
    let vetting = Arc::new(move |url: &url::Url| Ok(client.post(url.clone())));
    let answer = ask(Http::new(trusted_client(), Some(vetting))).await.expect("an answer");
    assert_eq!(answer.blocks, [Block::Text { text: "Hi".to_owned() }]);
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_address_is_not_connected_to() {
    let fake = Fake::decide(OpenAi, |_| Step::text("Hello.")).await;
    let guarded = net::Client::new(net::Policy::default(), Script::new(&["127.0.0.1"]));
    let guard = Arc::new(move |url: &url::Url| {
        guarded.request(reqwest::Method::POST, url).map_err(|refused| refused.to_string())
    });
    let port = fake.base_url.rsplit(':').next().expect("a port");
    for (base_url, wanted) in
        [("https://inner.example:PORT/v1", "no connection: inner.example"), ("http://127.0.0.1:PORT/v1", "")]
    {
        let base_url = Some(base_url.replace("PORT", port).parse().expect("an address"));
        let credential = Connection {
            provider: "inner".to_owned(),
            base_url,
            key: "sk-1".into(),
            key_header: None,
            headers: Vec::new(),
        };
        let providers = Providers::new(Http::new(trusted_client(), Some(guard.clone())), Settings::default());
        let model =
            providers.model(&"inner/x".parse().expect("a name"), API, Some(&credential)).expect("a model");
        let fault =
            model.answer(&request(vec![user("Hi")]), &mut |_| {}).await.expect_err("a private address");
        assert!(fault.to_string().contains(wanted), "{fault}");
    }
    assert_eq!(fake.calls(), 0);
}

#[tokio::test]
async fn dropping_a_call_hangs_up() {
    let fake = Fake::script(Anthropic::default(), [Step::fault(crate::fake::Fault::StallAfter(700))]).await;
    let model = connect(&fake, http(), "sk-1");
    let request = request(vec![user("Hi")]);
    let mut ignore = |_| {};
    let call = model.answer(&request, &mut ignore);
    tokio::select! {
        answer = call => panic!("a stalled response arrived: {answer:?}"),
        () = fake.called(1) => {}
    }
    tokio::time::timeout(WAIT_MAX, fake.hung_up(1)).await.expect("the connection was dropped");
}
