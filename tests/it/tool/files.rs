//! Reading, writing and editing files.

use super::*;

#[tokio::test]
async fn a_file_is_read_with_its_lines_numbered_and_in_pages() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    fake.put("a.txt", "one\r\ntwo\n\nfour");
    let all = run(&handle, "read", json!({"path": "a.txt"})).await;
    assert_eq!(
        (all.output.as_str(), all.is_error),
        ("     1\tone\n     2\ttwo\n     3\t\n     4\tfour\n", false)
    );
    let page = run(&handle, "read", json!({"path": "./a.txt", "offset": 2, "limit": 2})).await;
    assert_eq!(page.output, "     2\ttwo\n     3\t\n[There is more. Continue with offset 4.]");
    let beyond = run(&handle, "read", json!({"path": "/workspace/a.txt", "offset": 9})).await;
    assert_eq!(beyond.output, "/workspace/a.txt has only 4 lines.");
}

#[tokio::test]
async fn a_large_file_is_passed_over_to_the_wanted_line() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let lines: String = (1..=400_000).map(|line| format!("line {line}\n")).collect();
    fake.put("large.txt", lines);
    let page = run(&handle, "read", json!({"path": "large.txt", "offset": 399_999})).await;
    assert_eq!(page.output, "399999\tline 399999\n400000\tline 400000\n");
    let first = run(&handle, "read", json!({"path": "large.txt"})).await;
    assert!(
        first.output.contains("Continue with offset ") && first.output.len() <= 30_000,
        "{}",
        first.output.len()
    );
}

#[tokio::test]
async fn a_line_that_is_too_long_is_cut_with_its_length() {
    let fake = FakeSandbox::new();
    fake.put("min.js", format!("{}\nnext\n", "é".repeat(300_000)));
    let done = run(&fake.handle(), "read", json!({"path": "min.js"})).await;
    assert!(done.output.contains(" [… 599000 bytes more]\n     2\tnext\n"), "{}", &done.output[900..]);
}

#[tokio::test]
async fn what_is_no_text_is_named() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    fake.put("image", b"\x89PNG\0\0");
    fake.put("empty", "");
    let told = async |path: &str| {
        let done = run(&handle, "read", json!({"path": path})).await;
        (done.output, done.is_error)
    };
    assert!(told("image").await.0.contains("binary file of 6 bytes"));
    assert_eq!(told("empty").await, ("/workspace/empty is empty.".to_owned(), false));
    assert_eq!(told("nothing").await, ("/workspace/nothing: no such file".to_owned(), true));
    assert!(told(".").await.1);
}

#[tokio::test]
async fn an_edit_shows_what_it_changed() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    fake.put("a.txt", "1\n2\n3\n4\nold\n6\n7\n8\n9\n");
    let done = run(&handle, "edit", json!({"path": "a.txt", "old": "old", "new": "new\nlines"})).await;
    let shown =
        "     2\t2\n     3\t3\n     4\t4\n     5\tnew\n     6\tlines\n     7\t6\n     8\t7\n     9\t8\n";
    assert_eq!(done.output, format!("Changed /workspace/a.txt.\n{shown}"));
    assert_eq!(fake.text("a.txt"), "1\n2\n3\n4\nnew\nlines\n6\n7\n8\n9\n");
}

#[tokio::test]
async fn an_edit_that_is_not_clear_changes_nothing_and_says_why() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let before = "if x:\n\treturn 1\nif y:\n\treturn 1\n";
    fake.put("a.py", before);
    fake.put("binary", b"\xFF\xFE");
    let told = async |path: &str, old: &str, new: &str| {
        let done = run(&handle, "edit", json!({"path": path, "old": old, "new": new})).await;
        assert!(done.is_error, "{}", done.output);
        done.output
    };
    assert!(told("a.py", "return 1", "return 2").await.contains("2 times"));
    assert!(told("a.py", "if x:\n    return 1", "").await.contains("other white space"));
    assert!(told("a.py", "return 3", "").await.contains("may have changed"));
    assert!(told("a.py", "if", "if").await.contains("are equal"));
    assert!(told("binary", "x", "y").await.contains("not UTF-8"));
    assert!(told("missing", "x", "y").await.contains("missing: no such file"));
    assert_eq!(fake.text("a.py"), before);
    let all = json!({"path": "a.py", "old": "return 1", "new": "return 2", "replace_all": true});
    assert!(run(&handle, "edit", all).await.output.contains("in 2 places"));
    assert_eq!(fake.text("a.py"), before.replace('1', "2"));
}

#[tokio::test]
async fn what_is_too_large_for_a_call_is_refused_with_advice() {
    let fake = FakeSandbox::new();
    let handle = fake.handle();
    let large = "x".repeat(limit::TOOL_FILE_BYTES_MAX + 1);
    let done = run(&handle, "write", json!({"path": "x", "content": large})).await;
    assert!(done.is_error && done.output.contains("in parts with `bash`"), "{}", done.output);
    fake.put("large", &large);
    let done = run(&handle, "edit", json!({"path": "large", "old": "x", "new": "y"})).await;
    assert!(done.is_error && done.output.contains("with `bash`"), "{}", done.output);
}
