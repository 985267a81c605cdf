//! Metrics of a process as scraped, and the shipped monitoring files for operators.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::support::service::Ground;

/// A file of the repository, by its path.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs promtool (scripts/setup --test installs it); fails with its output.
fn promtool(words: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(words).current_dir(file("deploy/monitoring")).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed: run scripts/setup --test");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {words:?}: {}", String::from_utf8_lossy(&said));
}

/// Metrics that a text names; those of a histogram by its base name.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    let ours = words.filter(|word| word.starts_with("sojourn_") && word.len() > "sojourn_".len());
    ours.map(|name| {
        let bare = ["_bucket", "_count", "_sum"].into_iter().find_map(|end| name.strip_suffix(end));
        bare.unwrap_or(name).to_owned()
    })
    .collect()
}

/// All metrics that the process describes.
fn described() -> BTreeSet<String> {
    let source = fs::read_to_string(file("src/http/metrics.rs")).expect("the source");
    let (_, describe) = source.split_once("fn describe()").expect("it describes them");
    named(describe)
}

#[tokio::test]
async fn turn_metrics_have_no_label_values_from_organizations() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = service.owner();
    let usage = json!({ "input_tokens": 70, "output_tokens": 30 });
    let played = owner
        .play(json!([
            { "fault": { "kind": "overloaded", "retry_after_ms": 1 }, "usage": usage,
              "tools": [{ "tool": "a_tool_of_the_org", "input": {} }] },
            { "text": "done", "usage": usage },
        ]))
        .await;
    owner.settled(&played, 1).await;
    // A reader of future events.
    owner.post(&format!("/sessions/{played}/messages"), json!({ "text": "more" })).await.ok();
    owner.settled(&played, 2).await;

    let metrics = service.metrics().await;
    let one = |name: &str| metrics.get(name).copied().unwrap_or_else(|| panic!("{name}: {metrics:#?}"));
    assert_eq!(one("sojourn_turns_ended_total{reason=\"completed\"}"), 2.0);
    assert_eq!(one("sojourn_model_faults_total{code=\"model_unavailable\"}"), 1.0);
    // The second turn has no script; its usage is an estimate.
    assert!(one("sojourn_model_tokens_total{provider=\"scripted\",kind=\"input\"}") > 140.0);
    assert_eq!(one("sojourn_tool_calls_total{tool=\"other\",outcome=\"not_run\"}"), 1.0);
    assert!(one("sojourn_append_seconds_count") >= 4.0);
    assert_eq!(one("sojourn_http_seconds_count{method=\"POST\",route=\"/v3/sessions\",status=\"201\"}"), 1.0);
    assert_eq!(one("sojourn_cost_micros_total{part=\"model\"}"), 0.0);
    let scraped: String = metrics.keys().map(|name| format!("{name} ")).collect();
    let unknown: Vec<_> = named(&scraped).difference(&described()).cloned().collect();
    assert!(unknown.is_empty(), "metrics without a description: {unknown:?}");
    let text = format!("{metrics:?}");
    assert!(!text.contains("a_tool_of_the_org") && !text.contains(&played), "{text}");
    service.stop().await;
}

#[tokio::test]
async fn what_is_served_and_what_is_shipped_hold_before_promtool() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--metrics-listen=127.0.0.1:0"]).await;
    let owner = service.owner();
    let script = json!([{ "tools": [{ "tool": "glob", "input": { "pattern": "*" } }] }, { "delay_ms": 500 }]);
    let played = owner.play(script).await;
    // Its reader has received all events when the end arrives.
    owner.follow(&played, |event| event["type"] == "turn.completed").await;
    let lag = |name: &str| format!("sojourn_stream_lag_seconds_{name}");
    let metrics = service.metrics().await;
    assert!(
        metrics[&lag("count")] >= 1.0 && metrics[&lag("sum")] < 5.0 * metrics[&lag("count")],
        "{metrics:#?}"
    );
    promtool(&["check", "metrics"], &service.metrics_text().await);
    promtool(&["check", "rules", "alerts.yaml"], "");
    promtool(&["test", "rules", "alerts_test.yaml"], "");
    promtool(&["check", "config", "--syntax-only", "prometheus.yaml"], "");
    service.stop().await;
}

#[test]
fn every_query_of_the_dashboard_and_the_alerts_asks_for_what_there_is() {
    let dashboard = fs::read_to_string(file("deploy/monitoring/grafana.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let queries: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().expect("a query"))
        .collect();
    assert!(queries.len() >= panels.len() && panels.len() > 15, "{} panels", panels.len());
    // Each as a separate rule, so that promtool parses it.
    let rule = |(at, query): (usize, &&str)| {
        let query = query.replace("$__rate_interval", "5m");
        format!("      - {{ record: 'panel:{at}', expr: '{query}' }}\n")
    };
    let rules: String = queries.iter().enumerate().map(rule).collect();
    let rules = format!("groups:\n  - name: dashboard\n    rules:\n{rules}");
    let scratch = tempfile::tempdir().expect("a directory");
    let written = scratch.path().join("rules.yaml");
    fs::write(&written, rules).expect("it can be written");
    promtool(&["check", "rules", &written.to_string_lossy()], "");

    let described = described();
    let alerts = fs::read_to_string(file("deploy/monitoring/alerts.yaml")).expect("the alerts");
    let operations = fs::read_to_string(file("docs/operations.md")).expect("the page");
    for (place, text) in [("grafana.json", queries.join(" ")), ("alerts.yaml", alerts.clone())] {
        let unknown: Vec<_> = named(&text).difference(&described).cloned().collect();
        assert!(unknown.is_empty(), "{place} queries {unknown:?}, which no process exports");
    }
    // Each metric is in the dashboard or the documentation, and each alert has its section.
    let told = named(&format!("{} {operations}", queries.join(" ")));
    let untold: Vec<_> = described.difference(&told).cloned().collect();
    assert!(untold.is_empty(), "neither the dashboard nor docs/operations.md contains {untold:?}");
    for name in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(operations.contains(&format!("### {name}\n")), "docs/operations.md has no section {name}");
    }
}
