//! The dashboard's door: a page with its policy, assets, and nothing of the API hidden.
//!
//! What the page does is the browser suite's to show (`web/tests`).

use reqwest::{Client, header};

use crate::support::service::Ground;

#[tokio::test]
async fn the_first_page_is_the_dashboard_and_hides_no_route() {
    let ground = Ground::new().await;
    let service = ground.serve(&[]).await;
    let root = service.base.trim_end_matches("/v3").to_owned();
    let get = async |path: &str| Client::new().get(format!("{root}{path}")).send().await.expect("an answer");

    let page = get("/").await;
    assert_eq!(page.status(), 200);
    assert_eq!(page.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
    let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str().expect("ASCII").to_owned();
    for rule in ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(page.headers()["x-request-id"].to_str().is_ok_and(|id| id.starts_with("req_")));
    assert!(page.text().await.expect("a page").contains("<title>Sojourn</title>"));

    // Neither a file outside the build nor a route that is not there answers with a page.
    for path in ["/assets/nothing.js", "/assets/..%2f.gitignore", "/.gitignore", "/index.html", "/sessions"] {
        let answer = get(path).await;
        assert_eq!(answer.status(), 404, "{path}");
        let body: serde_json::Value = answer.json().await.expect("an error body");
        assert_eq!(body["error"]["type"], "not_found", "{path}");
    }
    service.stop().await;
}
