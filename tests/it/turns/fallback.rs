//! Models that are called while the model of an agent is not available.

use serde_json::{Value, json};

use super::{Scene, assert_sound, ends, of, steer};
use crate::{
    fake::{Fake, Step, anthropic::Anthropic, openai::OpenAi},
    support::service::Caller,
};

const OPENAI_KEY: &str = "sk-openai-1234";

fn overloaded() -> Step {
    Step::status(529, "overloaded_error", "Overloaded")
}

/// Two providers, and an organization with a default credential for each.
struct Providers {
    scene: Scene,
    anthropic: Fake<Anthropic>,
    openai: Fake<OpenAi>,
}

impl Providers {
    async fn of(anthropic: Fake<Anthropic>, openai: Fake<OpenAi>) -> Self {
        let bases = [
            format!("--anthropic-base-url={}", anthropic.base_url),
            format!("--openai-base-url={}/v1", openai.base_url),
        ];
        let scene = Scene::open(&[&bases[0], &bases[1]]).await;
        for (provider, key) in [("anthropic", "sk-ant-1234"), ("openai", OPENAI_KEY)] {
            let body = json!({ "provider": provider, "key": key, "is_default": true });
            scene.owner.post("/credentials", body).await.ok();
        }
        Self { scene, anthropic, openai }
    }

    async fn session(&self, fallbacks: Value) -> String {
        self.session_of(fallbacks, "Hi").await
    }

    async fn session_of(&self, fallbacks: Value, input: &str) -> String {
        let agent = json!({
            "name": "a", "prompt": "p", "model": "anthropic/claude-one",
            "model_options": { "max_tokens": 2_000, "effort": "low" },
            "fallback_models": fallbacks,
        });
        let owner = &self.scene.owner;
        owner.post("/agents", agent).await.ok();
        let created = owner.post("/sessions", json!({ "agent": "a", "input": input })).await.ok();
        assert_eq!(created["session"]["agent_snapshot"]["fallback_models"], fallbacks);
        created["session"]["id"].as_str().expect("an id").to_owned()
    }

    async fn close(self) {
        assert_eq!((self.anthropic.refusals(), self.openai.refusals()), (Vec::new(), Vec::new()));
        self.scene.close().await;
    }
}

/// The models of a log's steps and failures, in order.
fn models(log: &[Value]) -> Vec<String> {
    let model = |event: &Value| match event["type"].as_str() {
        Some("step.completed") => {
            Some(format!("{}/{}", event["body"]["provider"].as_str()?, event["body"]["model"].as_str()?))
        }
        Some("error.model") => Some(format!("no {}", event["body"]["model"].as_str()?)),
        _ => None,
    };
    log.iter().filter_map(model).collect()
}

async fn log_at_rest(owner: &Caller, id: &str, turns: usize) -> Vec<Value> {
    let log = owner.settled(id, turns).await;
    assert_sound(&log);
    log
}

#[tokio::test]
async fn another_provider_answers_during_an_outage_until_the_end_of_the_turn() {
    let anthropic = Fake::decide(Anthropic::default(), |request| match request.call {
        1 | 2 => overloaded(),
        _ => Step::text("Back."),
    })
    .await;
    let openai = Fake::decide(OpenAi, |request| match request.call {
        1 => Step::text("Look.").and_tool("no_such_tool", json!({})),
        _ => Step::text("Done."),
    })
    .await;
    let providers = Providers::of(anthropic, openai).await;
    let owner = &providers.scene.owner;
    let id =
        providers.session(json!([{ "model": "anthropic/claude-two" }, { "model": "openai/gpt-x" }])).await;
    let log = log_at_rest(owner, &id, 1).await;
    let expected = ["no anthropic/claude-one", "no anthropic/claude-two", "openai/gpt-x", "openai/gpt-x"];
    assert_eq!((models(&log), ends(&log)), (expected.map(str::to_owned).to_vec(), vec!["completed"]));
    // The options of the agent go with its provider; another one gets only its bound of output.
    let asked: Vec<_> = providers.anthropic.requests();
    let of = |at: usize| (asked[at].body["model"].clone(), asked[at].body["output_config"]["effort"].clone());
    assert_eq!(of(0), (json!("claude-one"), json!("low")));
    assert_eq!(of(1), (json!("claude-two"), json!("low")));
    let other = &providers.openai.requests()[0];
    assert_eq!(
        (&other.body["model"], &other.body["max_completion_tokens"]),
        (&json!("gpt-x"), &json!(2_000))
    );
    let key = other.headers["authorization"].to_str().expect("text").to_owned();
    assert_eq!(key, format!("Bearer {OPENAI_KEY}"));

    // The next turn begins with the model of the agent, which reads what the other one said.
    steer(owner, &id, "And now?").await;
    let log = log_at_rest(owner, &id, 2).await;
    assert_eq!(models(&log).last().map(String::as_str), Some("anthropic/claude-one"));
    assert!(providers.anthropic.requests()[2].body["messages"].to_string().contains("Look."));
    providers.close().await;
}

#[tokio::test]
async fn a_fault_that_another_model_does_not_help_with_ends_the_turn() {
    let anthropic =
        Fake::decide(Anthropic::default(), |_| Step::status(400, "invalid_request_error", "No.")).await;
    let openai = Fake::decide(OpenAi, |_| Step::text("Never.")).await;
    let providers = Providers::of(anthropic, openai).await;
    let owner = &providers.scene.owner;
    let id =
        providers.session(json!([{ "model": "openai/gpt-x", "model_options": { "max_tokens": 9 } }])).await;
    let log = log_at_rest(owner, &id, 1).await;
    assert_eq!((ends(&log), providers.openai.calls()), (vec!["error"], 0));
    assert_eq!(of(&log, "error.model")[0]["body"]["model"], "anthropic/claude-one");
    providers.close().await;
}

#[tokio::test]
async fn what_only_a_fallback_model_refuses_does_not_end_the_turn() {
    let anthropic = Fake::decide(Anthropic::default(), |request| match request.call {
        1 => overloaded(),
        _ => Step::text("Back."),
    })
    .await;
    let openai =
        Fake::decide(OpenAi, |_| Step::status(400, "invalid_request_error", "No images, please.")).await;
    let providers = Providers::of(anthropic, openai).await;
    let owner = &providers.scene.owner;
    // The history does not fit the first one of them.
    let small =
        json!({ "model": "openai/gpt-s", "model_options": { "max_tokens": 1_000, "context_tokens": 2_000 } });
    let session = json!([small, { "model": "openai/gpt-x" }]);
    let text = "A long story. ".repeat(2_000);
    let id = providers.session_of(session, &text).await;
    let log = log_at_rest(owner, &id, 1).await;
    let expected = ["no anthropic/claude-one", "no openai/gpt-x", "anthropic/claude-one"];
    assert_eq!((models(&log), ends(&log)), (expected.map(str::to_owned).to_vec(), vec!["completed"]));
    providers.close().await;
}

#[tokio::test]
async fn a_fallback_model_without_a_price_is_not_called_where_cost_is_limited() {
    let anthropic = Fake::decide(Anthropic::default(), |request| match request.call {
        1 | 3 => overloaded(),
        _ => Step::text("Back."),
    })
    .await;
    let openai = Fake::decide(OpenAi, |_| Step::text("Never.")).await;
    let providers = Providers::of(anthropic, openai).await;
    let owner = &providers.scene.owner;
    let agent = json!({
        "name": "a", "prompt": "p", "model": "anthropic/claude-haiku-4-5",
        "fallback_models": [{ "model": "openai/gpt-x" }],
    });
    let agent = owner.post("/agents", agent).await.ok()["id"].as_str().expect("an id").to_owned();
    let limited = json!({ "agent": agent, "input": "Hi", "limits": { "cost_micros": 1_000_000 } });
    let created = owner.post("/sessions", limited).await.ok();
    let log = log_at_rest(owner, created["session"]["id"].as_str().expect("an id"), 1).await;
    let own = ["no anthropic/claude-haiku-4-5", "anthropic/claude-haiku-4-5"];
    assert_eq!((models(&log), ends(&log)), (own.map(str::to_owned).to_vec(), vec!["completed"]));

    // A spend cap refuses the call of the other model, and the turn goes on.
    owner.patch(&format!("/agents/{agent}"), json!({ "spend_caps": { "days_1": 1_000_000 } })).await.ok();
    let created = owner.post("/sessions", json!({ "agent": agent, "input": "Hi" })).await.ok();
    let log = log_at_rest(owner, created["session"]["id"].as_str().expect("an id"), 1).await;
    let expected = ["no anthropic/claude-haiku-4-5", "no openai/gpt-x", "anthropic/claude-haiku-4-5"];
    assert_eq!((models(&log), ends(&log)), (expected.map(str::to_owned).to_vec(), vec!["completed"]));
    assert_eq!(of(&log, "error.model")[1]["body"]["code"], "payment_required");
    assert_eq!(providers.openai.calls(), 0);
    providers.close().await;
}

#[tokio::test]
async fn fallback_models_are_checked_and_changed() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    let agent = |fallbacks: Value| json!({ "name": "a", "prompt": "p", "model": "scripted/noop", "fallback_models": fallbacks });
    for (fallbacks, param) in [
        (json!([{ "model": "nobody" }]), "fallback_models[0].model"),
        (json!([{ "model": "scripted/noop" }, { "model": "scripted/none" }]), "fallback_models[1].model"),
        (
            json!([{ "model": "anthropic/m", "model_options": { "api": "responses" } }]),
            "fallback_models[0].model_options.api",
        ),
        (json!([{ "model": "anthropic/m", "model_options": { "max_tokens": 0 } }]), "fallback_models[0]"),
        (json!([{ "model": "anthropic/m", "tools": [] }]), "fallback_models[0].tools"),
        (json!(vec![json!({ "model": "scripted/noop" }); 5]), "fallback_models"),
        (json!(vec![json!({ "model": "scripted/noop" }); 2]), "fallback_models[1].model"),
    ] {
        let refused = owner.post("/agents", agent(fallbacks)).await.error(400);
        assert_eq!(refused["param"], param, "{refused}");
    }
    let other = json!([{ "model": "anthropic/m" }]);
    owner.post("/agents", agent(other.clone())).await.ok();
    // Nothing could call the model of the other provider.
    let refused = owner.post("/sessions", json!({ "agent": "a" })).await.error(422);
    assert_eq!(refused["code"], "no_credential");
    let created = owner.post("/sessions", json!({ "agent": "a", "fallback_models": [] })).await.ok();
    let path = format!("/sessions/{}", created["session"]["id"].as_str().expect("an id"));
    let refused = owner.patch(&path, json!({ "fallback_models": other })).await.error(422);
    assert_eq!(refused["code"], "no_credential");
    let own = json!([{ "model": "scripted/inline" }]);
    let changed = owner.patch(&path, json!({ "fallback_models": own })).await.ok();
    assert_eq!(changed["agent_snapshot"]["fallback_models"], own);
    let acts = owner.get("/audit").await.ok();
    let is_it = |act: &&Value| act["action"] == "session.fallback_models_changed";
    let act = acts["data"].as_array().expect("a page").iter().find(is_it).expect("an act");
    assert_eq!(act["details"], json!({ "fallback_models": ["scripted/inline"] }));
    scene.close().await;
}
