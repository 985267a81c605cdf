//! The served dashboard and documentation: pages with their security policy, assets, and no hidden API route.
//!
//! The browser suite (`web/tests`) tests the pages themselves.

use std::collections::{BTreeMap, BTreeSet};

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

    // Neither a file outside the build nor an unknown route returns a page.
    for path in ["/assets/nothing.js", "/assets/..%2f.gitignore", "/.gitignore", "/index.html", "/sessions"] {
        let answer = get(path).await;
        assert_eq!(answer.status(), 404, "{path}");
        let body: serde_json::Value = answer.json().await.expect("an error body");
        assert_eq!(body["error"]["type"], "not_found", "{path}");
    }
    service.stop().await;
}

/// Addresses that a page links to.
fn links(html: &str) -> BTreeSet<String> {
    let links = html.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    links.map(str::to_owned).collect()
}

#[tokio::test]
async fn every_link_of_the_documentation_leads_to_what_it_names() {
    let ground = Ground::new().await;
    let service = ground.serve(&["--role=api"]).await;
    let root = service.base.trim_end_matches("/v3").to_owned();
    let (mut pages, mut open) = (BTreeMap::new(), vec!["/docs".to_owned()]);
    while let Some(path) = open.pop() {
        if pages.contains_key(&path) {
            continue;
        }
        let answer = Client::new().get(format!("{root}{path}")).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
        let headers = answer.headers().clone();
        assert!(
            headers["content-security-policy"]
                .to_str()
                .is_ok_and(|policy| policy.contains("default-src 'none'"))
        );
        let text = answer.text().await.expect("a page");
        if headers["content-type"] == "text/html; charset=utf-8" {
            assert!(!text.contains("<script") && !text.contains(" style="), "{path}");
            let below = links(&text).into_iter().filter(|link| link.starts_with("/docs"));
            open.extend(below.map(|link| link.split('#').next().expect("a path").to_owned()));
        }
        pages.insert(path, text);
    }
    let mut lost = Vec::new();
    for (path, text) in &pages {
        for link in links(text) {
            let (page, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let page = if page.is_empty() { path } else { page };
            let is_here = pages
                .get(page)
                .is_some_and(|text| anchor.is_empty() || text.contains(&format!("id=\"{anchor}\"")));
            let is_elsewhere = page == "/" || page.starts_with("https://") || page.starts_with("http://");
            if !is_here && !is_elsewhere {
                lost.push(format!("{path}: {link}"));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
    // Every page is reachable, and every operation is documented.
    for kind in crate::support::pages::EVENTS.keys() {
        assert!(pages.contains_key(&format!("/docs/events/{kind}")), "{kind}");
    }
    let reference: String = pages
        .iter()
        .filter(|(path, _)| path.starts_with("/docs/api/"))
        .map(|(_, text)| text.as_str())
        .collect();
    for operation in crate::support::contract::operations() {
        assert!(reference.contains(&format!("<h2 id=\"{}\">", operation.id)), "{}", operation.id);
    }
    assert!(pages["/docs/openapi.yaml"] == sojourn::http::document());
    for path in
        ["/docs/nothing", "/docs/README", "/docs/..%2fREADME", "/docs/%2e%2e/Cargo", "/docs/api/nothing"]
    {
        let answer = Client::new().get(format!("{root}{path}")).send().await.expect("an answer");
        assert_eq!(answer.status(), 404, "{path}");
    }
    service.stop().await;
}
