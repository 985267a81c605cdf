//! What a claim reads, whatever the planner takes the tables to be like.

use std::time::Duration;

use serde_json::json;
use sojourn::{
    base::{Id, Origin, seal::MasterKey},
    domain::SessionKind,
    store::{Store, job::Claimant, pool::PoolSizes},
};
use uuid::Uuid;

use crate::support::service::Ground;

/// Rows of sessions that were read so far.
const READ: &str = "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables
                    where schemaname = 'public' and relname = 'session'";

#[tokio::test]
async fn a_claim_reads_the_sessions_it_takes_and_no_others() {
    let ground = Ground::new().await;
    let api = ground.serve(&["--role=api"]).await;
    let owner = api.owner();
    let agent = owner.inline_agent().await;
    owner.post("/sessions", json!({ "agent": agent })).await.ok();
    api.stop().await;
    // The statistics of a day on which many organizations had a session, and one had many jobs.
    ground.sql("alter table session set (autovacuum_enabled = false)").await;
    ground.sql("alter table job set (autovacuum_enabled = false)").await;
    ground
        .sql(
            "insert into tenant
             select (jsonb_populate_record(t, jsonb_build_object('tenant_id', gen_random_uuid()))).*
             from tenant t, generate_series(1, 40)",
        )
        .await;
    ground
        .sql(
            "insert into session
             select (jsonb_populate_record(s, jsonb_build_object('tenant_id', t.tenant_id))).*
             from session s join tenant t on t.tenant_id <> s.tenant_id",
        )
        .await;
    ground.sql("analyze session").await;
    ground
        .sql(
            "insert into session
             select (jsonb_populate_record(s, jsonb_build_object('session_id', gen_random_uuid()))).*
             from session s join agent using (tenant_id), generate_series(1, 3000)",
        )
        .await;
    let queue = "insert into job (tenant_id, session_id, kind, ready_at)
                 select tenant_id, session_id, 'turn', now() from session join agent using (tenant_id)";
    ground.sql(queue).await;
    ground.sql("analyze job").await;
    ground.sql("delete from job where session_id not in (select session_id from job limit 20)").await;

    let master = MasterKey::parse("a passphrase that is long enough for tests").expect("a master key");
    let store = Store::open(&ground.urls(), PoolSizes { app: 1, system: 1 }, master).expect("a store");
    let uuid = || Id::<SessionKind>::uuid(Origin::system().id());
    let lease = Duration::from_secs(60);
    let claimant = Claimant { worker: uuid(), node: uuid(), lease, node_silence: lease };
    let before = ground.count(READ).await;
    let mut taken = 0;
    for _ in 0..12 {
        taken += store.claim(claimant, false, Id::from_uuid(Uuid::nil()), 2).await.expect("an answer").len();
    }
    store.close().await;
    assert_eq!(taken, 20);
    let read = ground.count(READ).await - before;
    assert!((20..400).contains(&read), "{read} rows of sessions were read for {taken} jobs");
}
