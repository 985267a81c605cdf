//! Images, packages and registries of environments.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Scene, assert_sound, ends, of, outputs, run};
use crate::{
    budgets::Operator,
    egress::Host,
    sandbox::image::installable,
    support::{
        images,
        service::{Caller, Ground},
    },
};

impl Scene {
    /// A service with the image `debian` and the registries of this machine.
    async fn with_images() -> Self {
        let ground = Ground::new().await;
        images::share(ground.data_dir.path());
        let settings = images::settings();
        let service = ground.serve(&settings.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let owner = service.owner();
        Self { ground, service, owner }
    }
}

/// Waits for the end of an environment's build; returns the environment.
pub async fn built(owner: &Caller, id: &str) -> Value {
    let until = Instant::now() + Duration::from_secs(250);
    loop {
        let environment = owner.get(&format!("/environments/{id}")).await.ok();
        let state = &environment["build"]["state"];
        // Null until a node is known, and a session needs it.
        if !state.is_null() && state != "building" {
            return environment["build"].clone();
        }
        assert!(Instant::now() < until, "it is not built in time: {environment}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

pub async fn stored(owner: &Caller, config: Value) -> String {
    let named = json!({ "name": "with packages", "config": config });
    owner.post("/environments", named).await.ok()["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn packages_are_there_before_the_first_turn_starts() {
    let scene = Scene::with_images().await;
    let owner = &scene.owner;
    let packages = json!({ "apt": ["tree"], "pip": ["six==1.16.0"], "npm": ["left-pad@1.3.0"] });
    let environment = stored(owner, json!({ "image": "debian", "packages": packages })).await;
    let script = json!([
        run("tree --version; python3 -c 'import six; print(six.__version__)'; \
             node -e 'console.log(require(\"left-pad\")(7, 3, 0))'; id -un; touch /usr/x"),
        { "text": "Done." },
    ]);
    let id = owner.play_in(script, json!(environment)).await;
    let build = built(owner, &environment).await;
    assert_eq!(build["state"], "ready", "{build}");
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    let said = outputs(&log)[0];
    for part in ["tree v", "1.16.0", "007", "agent", "Read-only file system"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let kinds: Vec<_> = log.iter().filter_map(|event| event["type"].as_str()).collect();
    let at = |kind: &str| kinds.iter().position(|one| *one == kind);
    if let Some(started) = at("environment.build_started") {
        assert!(Some(started) < at("environment.build_completed"), "{kinds:?}");
        assert!(at("environment.build_completed") < at("turn.started"), "{kinds:?}");
        let started = &of(&log, "environment.build_started")[0]["body"];
        assert_eq!((&started["image"], &started["packages"]), (&json!("debian"), &packages));
    }
    // The same packages in another order are already built, for every organization.
    let again = json!({ "image": "debian", "packages": packages });
    let id = owner.play_in(json!([run("tree --version"), { "text": "Done." }]), again).await;
    let log = owner.settled(&id, 1).await;
    assert!(of(&log, "environment.build_started").is_empty());
    scene.close().await;
}

#[tokio::test]
async fn a_package_that_is_none_ends_the_turn_and_is_tried_again_by_hand() {
    let scene = Scene::with_images().await;
    let owner = &scene.owner;
    let config = json!({ "image": "debian", "packages": { "apt": ["there-is-no-such-package"] } });
    let environment = stored(owner, config).await;
    let id = owner.play_in(json!([run("echo never"), { "text": "Never." }]), json!(environment)).await;
    let build = built(owner, &environment).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(ends(&log), ["error"]);
    let end = &of(&log, "turn.completed")[0]["body"]["error"];
    assert_eq!(end["code"], "environment_build_failed");
    assert_eq!(end["message"], "there is no Debian package there-is-no-such-package");
    assert_eq!(of(&log, "environment.build_failed").len(), 1);
    assert!(of(&log, "turn.started").is_empty() && of(&log, "sandbox.created").is_empty());
    assert_eq!(super::session(owner, &id).await["status"], "failed");
    assert_eq!((&build["state"], &build["error"]), (&json!("failed"), &end["message"]));
    assert!(build["log"].as_str().is_some_and(|log| log.contains("== apt: there-is-no-such-package")));
    let again = owner.post(&format!("/environments/{environment}/build"), json!({})).await;
    assert_eq!((again.status.as_u16(), &again.body["build"]["state"]), (202, &json!("building")));
    assert_eq!(built(owner, &environment).await["state"], "failed");
    // A caller's command waits in the same way, and fails with the same error.
    let sandbox_alone = owner.post("/sessions", json!({ "environment": environment })).await.ok();
    let path = format!("/sessions/{}/exec", sandbox_alone["session"]["id"].as_str().expect("an id"));
    let refused = owner.post(&path, json!({ "command": "true" })).await;
    let words = refused.body.to_string();
    assert!(words.contains("there is no Debian package"), "{words}");
    scene.close().await;
}

#[tokio::test]
async fn an_organization_has_a_share_of_the_disk_of_a_node_for_its_packages() {
    let (ground, images) = (Ground::new().await, tempfile::tempdir().expect("a directory"));
    installable(&images.path().join("tools"));
    let registered = format!("--images={}", images.path().display());
    let small = [&*registered, "--organization-max-images=1Mi"];
    let tools = |package: &str| json!({ "image": "tools", "packages": { "npm": [package] } });
    let is_refused = |build: &Value, why: &str| {
        assert_eq!((&build["state"], &build["bytes"]), (&json!("failed"), &Value::Null), "{build}");
        assert!(build["error"].as_str().is_some_and(|error| error.contains(why)), "{why}: {build}");
    };
    let taken = async |owner: &Caller| owner.get("/capacity").await.ok()["image_bytes"].clone();

    // Its result is larger than all that the organization may have.
    let service = ground.serve(&small).await;
    let owner = service.owner();
    let first = stored(&owner, tools("8")).await;
    let id = owner.play_in(json!([run("echo never"), { "text": "Never." }]), json!(first)).await;
    let build = built(&owner, &first).await;
    is_refused(&build, "may take only 1 MiB more");
    let log = owner.settled(&id, 1).await;
    let end = &of(&log, "turn.completed")[0]["body"]["error"];
    assert_eq!((&end["code"], &end["message"]), (&json!("environment_build_failed"), &build["error"]));
    assert_eq!(taken(&owner).await, json!({ "used": 0, "max": 1 << 20 }));
    service.stop().await;

    let service = ground.serve(&[&*registered, "--metrics-listen=127.0.0.1:0"]).await;
    let owner = service.owner();
    let again = format!("/environments/{first}/build");
    assert_eq!(owner.post(&again, json!({})).await.ok()["build"]["state"], "building");
    let build = built(&owner, &first).await;
    assert_eq!(build["state"], "ready", "{build}");
    let bytes = build["bytes"].as_u64().expect("a size");
    assert!(bytes > 8_000_000, "{bytes}");
    assert_eq!(taken(&owner).await, json!({ "used": bytes, "max": 20_u64 << 30 }));
    assert_eq!(service.metrics().await["sojourn_image_bytes"], bytes as f64);
    service.stop().await;

    // Nothing is left, and what there is was just made.
    let service = ground.serve(&small).await;
    let owner = service.owner();
    let named = json!({ "name": "second", "config": tools("9") });
    let second = owner.post("/environments", named).await.ok()["id"].as_str().expect("an id").to_owned();
    let sandbox_alone = owner.post("/sessions", json!({ "environment": second })).await.ok();
    let path = format!("/sessions/{}/exec", sandbox_alone["session"]["id"].as_str().expect("an id"));
    let why = "as much of the disk of this node as they may";
    let refused = owner.post(&path, json!({ "command": "true" })).await.body.to_string();
    assert!(refused.contains("sandbox_unavailable") && refused.contains(why), "{refused}");
    is_refused(&built(&owner, &second).await, why);
    assert_eq!(taken(&owner).await["used"], bytes);
    // After two hours without use it is removed for the next build.
    let script = "touch -d '2 hours ago' $0/images/trees/*+*/used";
    let touched = Command::new("bash").args(["-c", script]).arg(ground.data_dir.path()).status();
    assert!(touched.expect("bash").success());
    owner.post(&format!("/environments/{second}/build"), json!({})).await.ok();
    is_refused(&built(&owner, &second).await, "may take only 1 MiB more");
    assert_eq!(taken(&owner).await["used"], 0);
    service.stop().await;
}

#[tokio::test]
async fn nothing_is_built_for_a_turn_that_may_not_start() {
    let scene = Scene::with_images().await;
    let owner = &scene.owner;
    let operator = Operator::of(&scene.ground, owner).await;
    operator.store.set_balance(operator.org, Some(0)).await.expect("a balance");
    let packages = json!({ "image": "debian", "packages": { "apt": ["there-is-no-such-package"] } });
    let id = owner.play_in(json!([{ "text": "Never." }]), packages).await;
    let log = owner.settled(&id, 1).await;
    assert_sound(&log);
    assert_eq!(of(&log, "session.rejected")[0]["body"]["reason"], "payment_required");
    assert!(of(&log, "environment.build_started").is_empty());
    assert_eq!(scene.ground.count("select count(*) from rootfs").await, 0);
    scene.close().await;
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_where_it_is_named() {
    let scene = Scene::open(&[]).await;
    let owner = &scene.owner;
    for (config, param, code) in [
        (json!({ "image": "nobody-s" }), "image", Some("unknown_image")),
        (json!({ "packages": { "apt": ["jq"] } }), "packages", Some("packages_unavailable")),
        (
            json!({ "image": "host", "packages": { "pip": ["six"] } }),
            "packages",
            Some("packages_unavailable"),
        ),
    ] {
        for (path, body, within) in [
            ("/environments", json!({ "name": "x", "config": config }), "config"),
            ("/sessions", json!({ "environment": config }), "environment"),
        ] {
            let error = owner.post(path, body).await.error(400);
            assert_eq!(error["param"], format!("{within}.{param}"), "{error}");
            assert_eq!(error.get("code").and_then(Value::as_str), code, "{error}");
        }
    }
    for config in [
        json!({ "image": "../etc" }),
        json!({ "image": "/etc" }),
        json!({ "image": "debian", "packages": { "apt": ["--allow-unauthenticated"] } }),
        json!({ "image": "debian", "packages": { "pip": ["git+https://a.example/b"] } }),
        json!({ "image": "debian", "packages": { "npm": ["../../etc"] } }),
        json!({ "image": "debian", "packages": { "gem": ["rake"] } }),
    ] {
        owner.post("/environments", json!({ "name": "x", "config": config })).await.error(400);
    }
    scene.close().await;
}

#[tokio::test]
async fn package_managers_reach_their_registries_where_that_is_allowed() {
    let scene = Scene::with_images().await;
    let owner = &scene.owner;
    let ask =
        |url: &str| run(&format!("curl -s -o /dev/null -w '%{{http_connect}} %{{http_code}}' {url}; true"));
    let script = json!([
        ask("https://pypi.org/simple/six/"),
        ask("https://elsewhere.example/"),
        run("pip download -q --no-deps --no-cache-dir -d /tmp/p six==1.16.0 2>&1 | tail -3; ls /tmp/p"),
        { "text": "Done." },
    ]);
    let network = json!({ "image": "debian", "network": { "allow_package_managers": true } });
    let id = owner.play_in(script.clone(), network).await;
    let log = owner.settled(&id, 1).await;
    let said = outputs(&log);
    assert!(said[0].contains("200 200"), "{said:?}");
    assert!(said[1].contains("403 000"), "{said:?}");
    assert!(said[2].contains("six-1.16.0"), "{said:?}");
    let allowed: Vec<_> = of(&log, "egress.allowed").iter().map(|event| &event["body"]["host"]).collect();
    assert!(allowed.contains(&&json!("pypi.org")) && allowed.contains(&&json!("files.pythonhosted.org")));
    assert_eq!(of(&log, "egress.denied")[0]["body"]["host"], "elsewhere.example");
    scene.close().await;
}

#[tokio::test]
async fn a_private_mirror_is_reached_by_package_managers_and_by_no_rule() {
    let host = Host::start(false, "HTTP/1.1 200 OK\r\n").await;
    let mirror = format!("--npm-registry=http://localhost:{}", host.port);
    let scene = Scene::open(&[&mirror]).await;
    let owner = &scene.owner;
    let ask = format!("env -u NO_PROXY -u no_proxy curl -s http://localhost:{}/left-pad", host.port);
    let script = json!([run(&ask), { "text": "Done." }]);
    let rule = json!({ "allow": [{ "host": "localhost", "port": host.port }] });
    let id = owner.play_in(script.clone(), json!({ "network": rule })).await;
    let log = owner.settled(&id, 1).await;
    assert_eq!(of(&log, "egress.denied")[0]["body"]["reason"], "address_not_public");
    assert!(host.heads().is_empty());
    let id = owner.play_in(script, json!({ "network": { "allow_package_managers": true } })).await;
    let log = owner.settled(&id, 1).await;
    assert!(outputs(&log)[0].contains("GET /left-pad HTTP/1.1"), "{:?}", outputs(&log));
    assert_eq!(of(&log, "egress.allowed")[0]["body"]["host"], "localhost");
    scene.close().await;
}
