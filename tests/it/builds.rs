//! Builds of root file systems that one organization may request on a node.

use sojourn::{
    base::{
        Id,
        limit::{ROOTFS_BUILDS_PER_HOUR_MAX, ROOTFS_PER_ORGANIZATION_MAX},
    },
    domain::{
        OrgId,
        rootfs::{Packages, RootFs},
    },
};
use uuid::Uuid;

use crate::{jobs::open, support::service::Ground};

fn rootfs(n: i64) -> RootFs {
    let packages = Packages { apt: vec![format!("package{n}")], ..Packages::default() };
    RootFs { image: "debian".to_owned(), packages }
}

#[tokio::test]
async fn an_organization_has_a_share_of_the_builds_of_a_node() {
    let ground = Ground::new().await;
    // It grants access to the tables.
    ground.serve(&["--role=api"]).await.stop().await;
    let store = open(&ground);
    let org = || -> OrgId { Id::from_uuid(Uuid::new_v4()) };
    let (node, greedy, other) = (Uuid::new_v4(), org(), org());
    let ask = async |org, n| store.request_rootfs_on_node(node, org, &rootfs(n)).await.expect("a database");
    for n in 0..ROOTFS_PER_ORGANIZATION_MAX {
        assert!(ask(greedy, n).await.is_some(), "{n}");
    }
    assert_eq!(ask(greedy, 100).await, None, "too many are open");
    assert!(ask(greedy, 0).await.is_some() && ask(other, 100).await.is_some());

    for n in 0..ROOTFS_BUILDS_PER_HOUR_MAX {
        assert!(ask(greedy, n).await.is_some(), "{n}");
        store.record_rootfs_building(node, &rootfs(n), "").await.expect("a database");
        store.record_rootfs_built(node, &rootfs(n), "", None).await.expect("a database");
    }
    assert_eq!(ask(greedy, 101).await, None, "too many within the hour");
    assert_eq!(ask(greedy, 0).await, None, "one that was removed is a build again");
    let again = ask(other, 0).await.expect("the share of another organization");
    assert_eq!(again.state, sojourn::domain::rootfs::State::Building);
    assert!(ask(greedy, 0).await.is_some(), "it is built already");

    ground.sql("update rootfs set started_at = now() - interval '61 minutes'").await;
    assert!(ask(greedy, 101).await.is_some() && ask(greedy, 1).await.is_some());
    store.close().await;
}
