//! `sojourn doctor --production`, held against its page.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use serde_json::Value;

use crate::support::pages;

/// Lines of `doctor --production` and whether each is met.
fn production(more: &[&str], environment: &[(&str, &str)]) -> Vec<(String, bool)> {
    let checks = |words: &[&str]| -> Vec<(String, bool)> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
        command.args(["doctor", "--json"]).args(words).args(more);
        let output = command.envs(environment.iter().copied()).output().expect("the binary runs");
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let all = said["checks"].as_array().expect("checks").iter();
        all.map(|check| (check["check"].as_str().expect("a name").to_owned(), check["ok"] == true)).collect()
    };
    let ordinary = checks(&[]).len();
    checks(&["--production"]).split_off(ordinary)
}

#[test]
fn the_production_checklist_is_that_of_the_page() {
    let page = pages::text("docs/operations.md");
    let section = page.split("## Production checklist").nth(1).expect("the section");
    let rows =
        section.split("\n## ").next().expect("its end").lines().filter_map(|line| line.strip_prefix("| "));
    let told: Vec<_> = rows.skip(1).map(|row| row.split(" |").next().expect("a cell").to_owned()).collect();
    let url = "postgres://sojourn_app@127.0.0.1:1/none";
    let bad = [
        "--allow-private-egress=on",
        "--local-sources=/tmp",
        "--metrics-listen=203.0.113.1:9464",
        "--bootstrap-api-key=a-key-of-some-length",
    ];
    let found = production(&bad, &[]);
    let names: Vec<_> = found.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, told);
    // Whether the tests are root or not.
    assert!(found.iter().all(|(name, is_met)| !is_met || name == "user"), "{found:?}");
    let system = "postgres://sojourn_system@127.0.0.1:1/none";
    let good = [
        "--role=worker",
        "--sandbox-runtime=runsc",
        "--node-memory=512Mi",
        "--node-disk=1Gi",
        "--organization-max-sandboxes=10",
        "--organization-max-memory=20Gi",
        "--organization-max-checkpoints=100Gi",
        "--scripted=off",
    ];
    let secrets = [
        ("DATABASE_URL", url),
        ("SOJOURN_SYSTEM_DATABASE_URL", system),
        ("SOJOURN_MASTER_KEY", "a passphrase that is long enough for tests"),
    ];
    let unmet = |more: &[&str], environment: &[(&str, &str)]| -> Vec<String> {
        let found = production(&[&good[..], more].concat(), environment).into_iter();
        found.filter(|(name, is_met)| !is_met && name != "user").map(|(name, _)| name).collect()
    };
    assert_eq!(unmet(&[], &secrets), [""; 0]);
    // A worker decides who may share the machine of its node agent.
    let of_agent = ["--node=unix:/run/sojourn/none.sock", "--allow-shared-host=on"];
    assert_eq!(unmet(&of_agent, &secrets), ["kernel"]);
    // The same role at another address.
    let same_role = [secrets[0], (secrets[1].0, "postgres://sojourn_app@127.0.0.1:1/none?x=1"), secrets[2]];
    assert_eq!(unmet(&[], &same_role), ["database roles"]);
}

/// The service would stay root there.
#[test]
fn a_data_directory_that_is_no_place_for_two_users_is_told() {
    let private = tempfile::Builder::new().prefix("sojourn-it-").tempdir().expect("a directory");
    fs::set_permissions(private.path(), fs::Permissions::from_mode(0o700)).expect("permissions");
    let data_dir = format!("--data-dir={}", private.path().join("data").display());
    let user = |data_dir: &str| {
        let found = production(&["--user=nobody", data_dir], &[]);
        found.iter().find(|(name, _)| name == "user").unwrap_or_else(|| panic!("{found:?}")).1
    };
    if rustix::process::geteuid().is_root() {
        assert!(!user(&data_dir), "nobody cannot enter a directory with mode 0700");
        fs::set_permissions(private.path(), fs::Permissions::from_mode(0o711)).expect("permissions");
        assert!(user(&data_dir), "only root can replace what is in it");
    } else {
        assert!(user(&data_dir), "an ordinary user leaves nothing to an agent");
    }
}
