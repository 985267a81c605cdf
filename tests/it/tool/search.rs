//! Search for files and lines, with the sandbox's own bash and grep.

use super::*;

fn tree() -> (std::sync::Arc<FakeSandbox>, SandboxHandle) {
    let fake = FakeSandbox::new();
    fake.put("src/main.rs", "fn main() {\n    run(42);\n}\n");
    fake.put("src/deep/a b.rs", "// TODO: nothing\n");
    fake.put("src/deep/style.css", "a { color: red }\n");
    fake.put(".github/ci.yaml", "run: 7\n");
    fake.put(".git/config", "run(1)\n");
    fake.put("node_modules/x/index.js", "run(2)\n");
    fake.put("data.bin", b"run(3)\0\n");
    let handle = fake.handle();
    (fake, handle)
}

#[tokio::test]
async fn glob_finds_what_fits_and_evaluates_nothing() {
    let (fake, handle) = tree();
    let found = async |pattern: &str, path: Option<&str>| {
        let done = run(&handle, "glob", json!({"pattern": pattern, "path": path})).await;
        assert!(!done.is_error, "{}", done.output);
        done.output
    };
    assert_eq!(found("**/*.{rs,css}", None).await, "src/deep/a b.rs\nsrc/deep/style.css\nsrc/main.rs");
    assert_eq!(found("*", Some("src")).await, "deep/\nmain.rs");
    assert_eq!(found(".github/*", None).await, ".github/ci.yaml");
    assert_eq!(found("src/main.rs", None).await, "src/main.rs");
    assert!(found("*.java", None).await.contains("No path below /workspace matches *.java."));
    assert!(found("$(touch owned)`touch owned`;touch owned", None).await.contains("No path"));
    assert!(!fake.on_host("/workspace/owned").exists());
    let missing = run(&handle, "glob", json!({"pattern": "*", "path": "nowhere"})).await;
    assert!(missing.is_error && missing.output.contains("nowhere"), "{}", missing.output);
}

#[tokio::test]
async fn glob_says_when_there_is_more() {
    let (_fake, handle) = tree();
    run(&handle, "bash", json!({"command": "for i in $(seq 600); do : > many$i.txt; done"})).await;
    let done = run(&handle, "glob", json!({"pattern": "many*.txt"})).await;
    assert!(done.output.ends_with("[There are more than 500. Narrow the pattern.]"), "{}", done.output);
    assert_eq!(done.output.lines().count(), 501);
}

#[tokio::test]
async fn grep_lists_lines_of_text_files_only() {
    let (fake, handle) = tree();
    let found = async |input: Value| {
        let done = run(&handle, "grep", input).await;
        assert!(!done.is_error, "{}", done.output);
        done.output
    };
    assert_eq!(found(json!({"pattern": r"run\(\d+\)"})).await, "src/main.rs:2:    run(42);");
    assert_eq!(
        found(json!({"pattern": "(?i)todo", "glob": "*.{rs,py}"})).await,
        "src/deep/a b.rs:1:// TODO: nothing"
    );
    assert_eq!(found(json!({"pattern": "fn|color", "glob": "src/**/*.css"})).await.lines().count(), 1);
    assert_eq!(found(json!({"pattern": "main", "path": "src/main.rs"})).await, "src/main.rs:1:fn main() {");
    assert!(found(json!({"pattern": "absent"})).await.contains("No line of . matches."));
    assert!(found(json!({"pattern": "-rf $(touch owned)"})).await.contains("No line"));
    assert!(!fake.on_host("/workspace/owned").exists());
    for input in [json!({"pattern": "("}), json!({"pattern": "x", "path": "nowhere"})] {
        let done = run(&handle, "grep", input).await;
        assert!(done.is_error && done.output.starts_with("grep failed:"), "{}", done.output);
    }
}

#[tokio::test]
async fn grep_stops_at_its_bound() {
    let (_fake, handle) = tree();
    run(&handle, "bash", json!({"command": "seq -f 'needle %g' 1 200000 > hay.txt"})).await;
    let done = run(&handle, "grep", json!({"pattern": "needle"})).await;
    assert!(!done.is_error && done.output.ends_with("[There are more than 300 lines. Narrow the search.]"));
    assert!(done.output.starts_with("hay.txt:1:needle 1\n"), "{}", &done.output[..40]);
}
