//! Tests of source validation, and of inputs that git would misread.

use serde_json::json;

use super::*;

fn read(json: serde_json::Value) -> Result<PinnedSource, Problem> {
    serde_json::from_value::<Repository>(json).unwrap().pinned()
}

#[test]
fn an_address_says_the_name_and_the_path() {
    for (url, name) in [
        ("https://github.com/acme/app", "app"),
        ("https://github.com/acme/app.git", "app"),
        ("https://git.example:8443/a/b/c/", "c"),
        ("file:///srv/repositories/app.git", "app"),
    ] {
        let pinned = read(json!({ "url": url })).unwrap();
        assert_eq!(
            (pinned.name.as_str(), pinned.path),
            (name, format!("/workspace/sources/{name}")),
            "{url}"
        );
    }
    let pinned = read(json!({ "repo": "acme/app", "name": "mine", "path": "code/app/" })).unwrap();
    assert_eq!(pinned.url, "https://github.com/acme/app");
    assert_eq!((pinned.name.as_str(), pinned.path.as_str()), ("mine", "/workspace/code/app"));
}

#[test]
fn what_git_could_misread_is_refused() {
    let url = "https://github.com/acme/app";
    for (json, field) in [
        (json!({}), "url"),
        (json!({ "url": url, "repo": "acme/app" }), "url"),
        (json!({ "repo": "acme" }), "repo"),
        (json!({ "repo": "acme/-x" }), "repo"),
        (json!({ "repo": "acme/app/more" }), "repo"),
        (json!({ "url": "http://github.com/acme/app" }), "url"),
        (json!({ "url": "ssh://git@github.com/acme/app" }), "url"),
        (json!({ "url": "git@github.com:acme/app" }), "url"),
        (json!({ "url": "ext::sh -c id" }), "url"),
        (json!({ "url": "--upload-pack=id" }), "url"),
        (json!({ "url": "https://user:token@github.com/acme/app" }), "url"),
        (json!({ "url": "https://token@github.com/acme/app" }), "url"),
        (json!({ "url": "https://127.0.0.1/acme/app" }), "url"),
        (json!({ "url": "https://0x7f.1/acme/app" }), "url"),
        (json!({ "url": "https://[::1]/acme/app" }), "url"),
        (json!({ "url": "https://github.com" }), "url"),
        (json!({ "url": "https://github.com/a?b=c" }), "url"),
        (json!({ "url": "https://github.com/a#b" }), "url"),
        (json!({ "url": "https://github.com/a/%2e%2e%2fb" }), "url"),
        (json!({ "url": "https://github.com/a//b" }), "url"),
        (json!({ "url": "https://github.com/a\\b" }), "url"),
        (json!({ "url": "file://host/srv/app" }), "url"),
        (json!({ "url": "file:///" }), "url"),
        (json!({ "url": url, "ref": "--upload-pack=id" }), "ref"),
        (json!({ "url": url, "ref": "-b" }), "ref"),
        (json!({ "url": url, "ref": "a..b" }), "ref"),
        (json!({ "url": url, "ref": "a:b" }), "ref"),
        (json!({ "url": url, "ref": "a\nb" }), "ref"),
        (json!({ "url": url, "ref": "refs/heads/*" }), "ref"),
        (json!({ "url": url, "ref": "a/.b" }), "ref"),
        (json!({ "url": url, "ref": "a.lock" }), "ref"),
        (json!({ "url": url, "ref": "main@{1}" }), "ref"),
        (json!({ "url": url, "ref": "" }), "ref"),
        (json!({ "url": url, "sha": "main" }), "sha"),
        (json!({ "url": url, "sha": "A".repeat(40) }), "sha"),
        (json!({ "url": url, "name": "../x" }), "name"),
        (json!({ "url": url, "name": "-x" }), "name"),
        (json!({ "url": url, "name": ".git" }), "name"),
        (json!({ "url": url, "path": "../x" }), "path"),
        (json!({ "url": url, "path": "a/../../x" }), "path"),
        (json!({ "url": url, "path": "/etc" }), "path"),
        (json!({ "url": url, "path": "/workspace" }), "path"),
        (json!({ "url": url, "path": "/workspaces/x" }), "path"),
        (json!({ "url": url, "path": "." }), "path"),
        (json!({ "url": url, "path": "a/.GIT" }), "path"),
        (json!({ "url": url, "path": "a\0b" }), "path"),
        (json!({ "url": url, "depth": 0 }), "depth"),
        (json!({ "url": "file:///srv/app", "depth": 1 }), "depth"),
    ] {
        assert_eq!(read(json.clone()).map_err(|(field, _)| field), Err(field.to_owned()), "{json}");
    }
}

#[test]
fn dot_segments_are_resolved_before_they_are_judged() {
    // The URL standard resolves both to the repository /b.
    for url in ["https://github.com/a/../b", "https://github.com/a/%2e%2e/b"] {
        let Ok(RepositoryLocation::Host { path, .. }) = place(url) else { continue };
        assert_eq!(path, "/b", "{url}");
    }
}

#[test]
fn a_credential_goes_to_what_is_below_its_base() {
    let at = |url: &str| place(url).unwrap();
    for (base, url, fits) in [
        ("https://github.com", "https://github.com/acme/app", true),
        ("https://github.com/", "https://github.com/acme/app.git", true),
        ("https://github.com/acme", "https://github.com/acme/app", true),
        ("https://github.com/acme/", "https://GitHub.com/acme/app", true),
        ("https://github.com/acme/app", "https://github.com/acme/app.git", true),
        ("https://github.com/acme/app.git", "https://github.com/acme/app", true),
        ("https://github.com/acme", "https://github.com/acme-evil/app", false),
        ("https://github.com/acme/app", "https://github.com/acme/app2", false),
        ("https://github.com", "https://github.com.evil.example/acme/app", false),
        ("https://github.com", "https://github.com:8443/acme/app", false),
        ("https://github.com:8443", "https://github.com:8443/acme/app", true),
        ("http://github.com", "https://github.com/acme/app", false),
        ("https://github.com", "file:///srv/app", false),
        ("file:///srv", "file:///srv/app", false),
    ] {
        assert_eq!(covers(base, &at(url)), fits, "{base} {url}");
    }
}

#[test]
fn two_sources_never_meet() {
    let source = |name: &str, path: &str| {
        serde_json::from_value::<Repository>(
            json!({ "url": "https://a.example/x/y", "name": name, "path": path }),
        )
        .unwrap()
    };
    assert_eq!(problem(&[source("a", "a"), source("b", "ab")]), None);
    assert!(problem(&[source("a", "a"), source("a", "b")]).is_some());
    assert!(problem(&[source("a", "a"), source("b", "a")]).is_some());
    assert!(problem(&[source("a", "a/b"), source("b", "a")]).is_some());
    assert!(problem(&vec![Repository::default(); SOURCES_MAX + 1]).is_some());
    let merged = overridden_by(vec![source("a", "a"), source("b", "b")], &[source("a", "c")]);
    let paths: Vec<_> = merged.iter().map(|source| source.path.as_deref().unwrap()).collect();
    assert_eq!(paths, ["b", "c"]);
}
