//! Credentials on the command line.

use serde_json::{Value, json};

use super::run;
use crate::support::service::Ground;

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_a_provider_are_given_replaced_and_removed() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let file = ground.data_dir.path().join("gateway-key");
    std::fs::write(&file, "secret-of-the-gateway\n").expect("a file");
    let gateway = format!("--header=x-gateway-key=@{}", file.display());
    let words = ["credential", "create", "--header=Anthropic-Beta=files-api", &gateway];
    let made = run(&service, &words, "sk-ant-first");
    assert!(made.status.success(), "{made:?}");
    let id = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let path = format!("/credentials/{id}");
    let headers = async || owner.get(&path).await.ok()["headers"].clone();
    assert_eq!(headers().await, json!(["anthropic-beta", "x-gateway-key"]));

    let rotated = run(&service, &["credential", "rotate", &id], "sk-ant-second");
    assert!(rotated.status.success(), "{rotated:?}");
    assert_eq!(headers().await, json!(["anthropic-beta", "x-gateway-key"]));
    let replaced = run(&service, &["credential", "rotate", &id, "--header=x-team=blue"], "sk-ant-third");
    assert!(replaced.status.success(), "{replaced:?}");
    assert_eq!(headers().await, json!(["x-team"]));
    let removed = run(&service, &["credential", "rotate", &id, "--no-headers"], "sk-ant-fourth");
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(headers().await, Value::Null);

    for (refused, words) in [
        ("given twice", ["credential", "create", "--header=x-team=a", "--header=x-team=b"]),
        ("set by the service", ["credential", "create", "--header=host=x", "--default"]),
    ] {
        let answer = run(&service, &words, "sk-ant-fifth");
        let told = String::from_utf8_lossy(&answer.stderr);
        assert!(!answer.status.success() && told.contains(refused), "{told}");
    }
    service.stop().await;
}
