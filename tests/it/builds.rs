//! Builds of root file systems that one organization may request on a node.

use sojourn::{
    base::{
        Id,
        limit::{ROOTFS_BUILDS_PER_HOUR_MAX, ROOTFS_PER_ORGANIZATION_MAX},
    },
    domain::{
        OrgId,
        rootfs::{Packages, RootFs, StoredRootFs},
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
        store.record_rootfs_built(node, &rootfs(n), "", Ok(None)).await.expect("a database");
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

#[tokio::test]
async fn root_file_systems_count_while_they_are_there_and_the_longest_unused_are_surplus() {
    let ground = Ground::new().await;
    ground.serve(&["--role=api"]).await.stop().await;
    let store = open(&ground);
    let org = || -> OrgId { Id::from_uuid(Uuid::new_v4()) };
    let (node, own, other) = (Uuid::new_v4(), org(), org());
    for (n, org) in [(0, own), (1, own), (2, own), (3, other)] {
        store.request_rootfs_on_node(node, org, &rootfs(n)).await.expect("a database").expect("a share");
        store.record_rootfs_built(node, &rootfs(n), "", Ok(Some(10))).await.expect("a database");
    }
    let failed = store.request_rootfs_on_node(node, own, &rootfs(4)).await.expect("a database");
    assert_eq!(failed.expect("a share").bytes, None);
    let pending = store.pending_rootfs(node, 10).await.expect("a database");
    assert_eq!(pending, [(rootfs(4), own)]);
    store.record_rootfs_built(node, &rootfs(4), "", Err("no")).await.expect("a database");

    let beside = async |node, n| store.rootfs_bytes_beside(node, own, &rootfs(n)).await.expect("a database");
    assert_eq!((beside(node, 4).await, beside(node, 1).await), (30, 20));
    assert_eq!(beside(Uuid::new_v4(), 4).await, 0, "of another node");
    let used = async |n, stored| store.record_rootfs_use(node, &rootfs(n), stored).await.expect("a database");
    ground.sql("update rootfs set requested_at = now() - interval '5 hours'").await;
    for (n, hours) in [(0, 2), (1, 0), (2, 3)] {
        used(n, Some(StoredRootFs { bytes: 10, idle_seconds: hours * 3_600 })).await;
    }
    let surplus = async |kept| store.surplus_rootfs(node, own, kept).await.expect("a database");
    assert_eq!(surplus(0).await, [rootfs(2), rootfs(0), rootfs(1)]);
    assert_eq!((surplus(19).await, surplus(20).await), (vec![rootfs(2), rootfs(0)], vec![rootfs(2)]));
    assert!(surplus(30).await.is_empty());

    // The node has removed it.
    used(2, None).await;
    assert_eq!((beside(node, 4).await, surplus(10).await), (20, vec![rootfs(0)]));
    assert_eq!(store.counted_rootfs(node).await.expect("a database").len(), 3);
    let again = store.request_rootfs_on_node(node, other, &rootfs(0)).await.expect("a database");
    assert_eq!(again.expect("a share").bytes, None, "it is missing, or nobody had asked");
    assert_eq!(beside(node, 4).await, 10);
    store.close().await;
}
