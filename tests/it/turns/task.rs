//! A realistic task: a failing test suite is fixed in a real sandbox, by a model behind strict fakes of the
//! provider endpoints.

use serde_json::{Value, json};
use sojourn::domain::conversation::ModelApi;

use super::{Scene, assert_sound, ends, of, outputs, session};
use crate::{
    fake::{Fake, Step, Used, anthropic::Anthropic, openai::OpenAi, responses::Responses},
    model::Named,
    support::service::Caller,
};

/// A repository whose test suite fails: `median` does not sort.
const PUT: &str = r#"set -e
git init -q -b main repo && cd repo
echo __pycache__/ > .gitignore
git config user.name Sample && git config user.email sample@example.com
cat > stats.py <<'PY'
def median(values):
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle]
    return (values[middle - 1] + values[middle]) / 2
PY
cat > test_stats.py <<'PY'
import unittest
from stats import median

class Median(unittest.TestCase):
    def test_odd(self):
        self.assertEqual(median([3, 1, 2]), 2)

    def test_even(self):
        self.assertEqual(median([4, 1, 3, 2]), 2.5)

if __name__ == "__main__":
    unittest.main()
PY
git add -A && git commit -qm 'Add the median' && git log --oneline"#;
const TEST: &str = "cd repo && python3 -m unittest 2>&1";
const SORTED: &str = "def median(values):\n    values = sorted(values)\n    middle = len(values) // 2\n";

fn used() -> Used {
    Used { input: 900, output: 60, cache_write: 40, cache_read: 500 }
}

/// Explores, tests, edits, tests again, reads; then reports the result of the tests.
fn answers() -> Vec<Step> {
    let steps = vec![
        Step::text("I put the repository in place.").and_tool("bash", json!({ "command": PUT })),
        Step::text("I look around.")
            .and_tool("glob", json!({ "pattern": "repo/*.py" }))
            .and_tool("read", json!({ "path": "repo/stats.py" })),
        Step::default().and_tool("bash", json!({ "command": TEST })),
        Step::text("The values are not sorted.").and_tool(
            "edit",
            json!({ "path": "repo/stats.py", "old": "def median(values):\n    middle = len(values) // 2\n",
                "new": SORTED }),
        ),
        Step::default().and_tool("bash", json!({ "command": TEST })),
        Step::default().and_tool("read", json!({ "path": "/workspace/repo/stats.py" })).and_tool(
            "bash",
            json!({ "command": "cd repo && git commit -qam 'Sort before looking' && git status --short && git log --oneline | wc -l" }),
        ),
        Step::text("Both tests pass now: `median` sorts its values first."),
    ];
    steps.into_iter().map(|step| step.using(used())).collect()
}

async fn create(owner: &Caller, provider: &str, api: ModelApi) -> String {
    let mut agent = json!({ "name": "repair", "prompt": "You repair things.", "model": format!("{provider}/m-1"),
        "key": "sk-a-key-of-the-test", "model_options": { "max_tokens": 4096 } });
    if api == ModelApi::Responses {
        agent["model_options"]["api"] = json!("responses");
    }
    let agent = owner.post("/agents", agent).await.ok();
    let session = json!({ "agent": agent["id"], "input": "The tests of the repository fail. Repair it." });
    owner.post("/sessions", session).await.ok()["session"]["id"].as_str().expect("an id").to_owned()
}

fn assert_repaired(log: &[Value]) {
    assert_sound(log);
    assert_eq!(ends(log), ["completed"]);
    let outputs = outputs(log);
    assert!(outputs[0].contains("Add the median"), "{}", outputs[0]);
    assert!(
        outputs[1].contains("repo/stats.py") && outputs[1].contains("repo/test_stats.py"),
        "{}",
        outputs[1]
    );
    assert!(outputs[3].contains("FAILED (failures=2)"), "{}", outputs[3]);
    assert!(outputs[5].contains("Ran 2 tests") && outputs[5].contains("\nOK"), "{}", outputs[5]);
    for line in SORTED.lines() {
        assert!(outputs[6].contains(line), "{}", outputs[6]);
    }
    assert_eq!(outputs[7].trim(), "2", "the fix is committed and nothing else changed");
    let codes: Vec<_> =
        of(log, "exec.completed").iter().map(|event| event["body"]["exit_code"].clone()).collect();
    assert_eq!(codes, [0, 1, 0, 0].map(Value::from));
}

/// Runs the task through one provider's adapter.
async fn repair<D: Named>(setting: &str, path: &str) {
    let fake = Fake::script(D::default(), answers()).await;
    let scene = Scene::open(&[&format!("--{setting}={}{path}", fake.base_url)]).await;
    let id = create(&scene.owner, D::PROVIDER, D::API).await;
    let log = scene.owner.settled(&id, 1).await;
    assert_eq!(fake.refusals(), Vec::<String>::new());
    assert_eq!(fake.calls(), answers().len());
    assert_repaired(&log);
    let result = scene.owner.get(&format!("/sessions/{id}/result")).await.ok();
    assert_eq!(result["result"]["body"]["text"], "Both tests pass now: `median` sorts its values first.");
    let usage = session(&scene.owner, &id).await["usage"].clone();
    let steps = answers().len() as u64;
    assert_eq!((usage["steps"].as_u64(), usage["tool_calls"].as_u64()), (Some(steps), Some(8)));
    assert_eq!(usage["output_tokens"].as_u64(), Some(60 * steps));
    assert_eq!(usage["cache_read_tokens"].as_u64(), Some(500 * steps));
    assert_eq!(result["last_turn"]["usage"], usage);
    scene.close().await;
}

#[tokio::test]
async fn a_failing_suite_is_repaired_through_the_messages_api() {
    repair::<Anthropic>("anthropic-base-url", "").await;
}

#[tokio::test]
async fn a_failing_suite_is_repaired_through_chat_completions() {
    repair::<OpenAi>("openai-base-url", "/v1").await;
}

#[tokio::test]
async fn a_failing_suite_is_repaired_through_the_responses_api() {
    repair::<Responses>("openai-base-url", "/v1").await;
}
