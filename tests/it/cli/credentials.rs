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

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_the_servers_of_a_file_and_a_credential_the_client_of_one() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let owner = service.owner();
    let write = |name: &str, content: Value| {
        let file = ground.data_dir.path().join(name);
        std::fs::write(&file, content.to_string()).expect("a file");
        file.display().to_string()
    };
    let client = json!({
        "token_url": "https://auth.example.com/token", "client_id": "sojourn", "refresh_token": "first-refresh-token",
    });
    let oauth = format!("--oauth={}", write("client", client.clone()));
    let words = ["credential", "create", "--provider=mcp", "--base-url=https://mcp.example.com", &oauth];
    let made = run(&service, &words, "");
    assert!(made.status.success(), "{made:?}");
    let id = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let shown = owner.get(&format!("/credentials/{id}")).await.ok();
    assert_eq!((&shown["oauth"]["client_id"], &shown["last4"]), (&json!("sojourn"), &json!("oken")));
    let rotated = run(&service, &["credential", "rotate", &id, &oauth], "");
    assert!(rotated.status.success(), "{rotated:?}");

    let servers = json!([{ "name": "library", "url": "https://mcp.example.com/mcp", "credential": id }]);
    let file = format!("--mcp-servers={}", write("servers", servers.clone()));
    let words = ["agent", "create", "--name=librarian", "--prompt=p", "--model=scripted/noop", &file];
    let made = run(&service, &words, "");
    assert!(made.status.success(), "{made:?}");
    let agents = owner.get("/agents").await.ok();
    assert_eq!(agents["data"][0]["mcp_servers"], servers);
    service.stop().await;
}
