//! Balances and prices of organizations, set on the command line.

use std::process::{Command, Output};

use serde_json::json;

use super::{Operator, limits::a_micro_each};
use crate::{
    support::service::Ground,
    turns::{Scene, session},
};

/// Runs `sojourn admin` on the database of this ground.
fn admin(ground: &Ground, words: &[&str]) -> Output {
    let urls = ground.urls();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sojourn"));
    command
        .arg("admin")
        .args(words)
        .arg(format!("--data-dir={}", ground.data_dir.path().display()))
        .arg(format!("--database-url={}", urls.app))
        .arg(format!("--owner-database-url={}", urls.owner))
        .arg(format!("--system-database-url={}", urls.system))
        .arg("--master-key=a passphrase that is long enough for tests");
    command.output().expect("the binary runs")
}

#[track_caller]
fn done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn refused(output: &Output, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(words), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn balances_and_prices_are_the_operators() {
    let scene = Scene::open(&[]).await;
    let (ground, owner) = (&scene.ground, &scene.owner);
    let org = Operator::of(ground, owner).await.org.to_string();
    done(&admin(ground, &["top-up", &org, "7000"]));
    done(&admin(ground, &["top-up", &org, "-2000"]));
    assert_eq!(owner.get("/budget").await.ok()["balance_micros"], 5_000);
    done(&admin(ground, &["unlimited", &org]));
    assert!(owner.get("/budget").await.ok()["balance_micros"].is_null());

    let file = ground.data_dir.path().join("prices.json");
    let name = file.to_str().expect("UTF-8");
    std::fs::write(&file, a_micro_each().to_string()).expect("a file");
    done(&admin(ground, &["set-prices", &org, name]));
    let id =
        owner.play(json!([{ "text": "Hi.", "usage": { "input_tokens": 41, "output_tokens": 1 } }])).await;
    owner.settled(&id, 1).await;
    assert_eq!(session(owner, &id).await["usage"]["cost"]["total_micros"], 42);
    for (list, words) in [
        (json!({ "version": "x", "modells": {} }), "not a price list"),
        (json!({ "version": "" }), "needs a non-empty `version`"),
        (json!({ "version": "x", "fee": { "turn": u64::MAX } }), "is implausible"),
    ] {
        std::fs::write(&file, list.to_string()).expect("a file");
        refused(&admin(ground, &["set-prices", &org, name]), words);
    }
    done(&admin(ground, &["set-prices", &org]));
    assert!(owner.get("/prices").await.ok()["own"].is_null());
    let audit = owner.get("/audit").await.ok();
    let rows = audit["data"].as_array().expect("a page").iter();
    let money = rows.filter(|row| row["actor"]["display"] == "operator");
    let money = money.filter(|row| {
        !["key.created", "organization.created"].contains(&row["action"].as_str().expect("a word"))
    });
    let acts: Vec<_> = money.map(|row| (row["action"].as_str().expect("a word"), &row["details"])).collect();
    assert_eq!(
        acts,
        [
            ("prices.changed", &json!({ "version": null })),
            ("prices.changed", &json!({ "version": "one" })),
            ("balance.changed", &json!({ "balance_micros": null })),
            ("balance.changed", &json!({ "added_micros": -2_000, "balance_micros": 5_000 })),
            ("balance.changed", &json!({ "added_micros": 7_000, "balance_micros": 7_000 })),
        ]
    );

    let nobody = "org_01jd0000000000000000000000";
    refused(&admin(ground, &["top-up", nobody, "1"]), "does the organization exist");
    scene.close().await;
}
