//! Root file systems requested on nodes, and their build state.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    column::{count, from_json, json, uncount},
};
use crate::{
    base::{
        Id, Timestamp,
        limit::{
            ROOTFS_BUILDS_PER_HOUR_MAX, ROOTFS_DERIVED_MAX, ROOTFS_FAILURE_TTL, ROOTFS_MAX_IDLE,
            ROOTFS_PER_ORGANIZATION_MAX,
        },
    },
    domain::{
        OrgId,
        rootfs::{Build, RootFs, State, StoredRootFs},
    },
};

/// Whether an organization has a share of a node left for one more build. It has none while too many of its
/// builds are open, or were started within the last hour: removal of unused ones begins after that hour.
/// Parameters: the node, the organization, and both limits.
macro_rules! has_share {
    ($node:literal, $org:literal, $open_max:literal, $hour_max:literal) => {
        concat!(
            "(select count(*) filter (where state in ('requested', 'building')) < ",
            $open_max,
            " and count(*) < ",
            $hour_max,
            " from rootfs r where r.node_id = ",
            $node,
            " and r.requested_by = ",
            $org,
            " and (r.state in ('requested', 'building') or r.started_at > now() - interval '1 hour'))"
        )
    };
}

#[derive(FromRow)]
struct Row {
    rootfs_key: String,
    state: String,
    log: String,
    error: Option<String>,
    bytes: Option<i64>,
    started_at: Option<Timestamp>,
    completed_at: Option<Timestamp>,
}

impl Row {
    fn build(self) -> Result<(String, Build)> {
        let state = match self.state.as_str() {
            "requested" | "building" => State::Building,
            "ready" => State::Ready,
            "failed" => State::Failed,
            other => return Err(Error::Corrupt(format!("a root file system is {other}"))),
        };
        let Self { log, error, started_at, completed_at, .. } = self;
        let bytes = self.bytes.map(uncount);
        Ok((self.rootfs_key, Build { state, log, error, bytes, started_at, completed_at }))
    }
}

impl Tx {
    /// Requests a root file system on every live node.
    ///
    /// Does nothing on a node where the organization has used its share of builds. With `again`, also requests one
    /// that failed.
    pub async fn request_rootfs(&mut self, rootfs: &RootFs, again: bool) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(concat!(
            "insert into rootfs (node_id, rootfs_key, spec, requested_by)
             select n.node_id, $1, $2::json, $3
             from node n
             where n.seen_at > now() - interval '1 minute' and ",
            has_share!("n.node_id", "$3", "$5", "$6"),
            "on conflict (node_id, rootfs_key) do update
             set requested_at = now(),
                 state = case when rootfs.state = 'failed' and $4 then 'requested' else rootfs.state end,
                 requested_by = case when rootfs.state = 'failed' and $4 then $3 else rootfs.requested_by end",
        ))
        .bind(rootfs.key())
        .bind(json(rootfs))
        .bind(org)
        .bind(again)
        .bind(ROOTFS_PER_ORGANIZATION_MAX)
        .bind(ROOTFS_BUILDS_PER_HOUR_MAX)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Returns the build state of root file systems.
    ///
    /// Each state is from the node where the build is most advanced.
    pub async fn rootfs_builds(&mut self, keys: &[String]) -> Result<Vec<(String, Build)>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select distinct on (rootfs_key) rootfs_key, state, log, error, bytes, started_at, completed_at
             from rootfs
             where rootfs_key = any ($1)
             order by rootfs_key, array_position(array['ready', 'building', 'requested', 'failed'], state),
                      requested_at desc",
        )
        .bind(keys)
        .fetch_all(self.connection())
        .await?;
        rows.into_iter().map(Row::build).collect()
    }
}

impl Store {
    /// Requests a missing root file system on one node; returns its build state.
    ///
    /// A failure is returned for `ROOTFS_FAILURE_TTL`; then the build is requested again. `None`
    /// while the organization has used its share of builds.
    pub async fn request_rootfs_on_node(
        &self,
        node: Uuid,
        org: OrgId,
        rootfs: &RootFs,
    ) -> Result<Option<Build>> {
        // One that is ready and missing was removed, so it is built again.
        let row: Option<Row> = sqlx::query_as(concat!(
            "with known as (
                 select state = 'ready'
                        or state = 'failed' and completed_at < now() - $5 * interval '1 second' as is_over
                 from rootfs
                 where node_id = $1 and rootfs_key = $2
             )
             insert into rootfs (node_id, rootfs_key, spec, requested_by)
             select $1, $2, $3::json, $4
             where exists (select from known where not is_over) or ",
            has_share!("$1", "$4", "$6", "$7"),
            "on conflict (node_id, rootfs_key) do update
             set requested_at = now(),
                 state = case when (select is_over from known) then 'requested' else rootfs.state end,
                 requested_by = case when (select is_over from known) then $4 else rootfs.requested_by end,
                 bytes = case when (select is_over from known) then null else rootfs.bytes end
             returning rootfs_key, state, log, error, bytes, started_at, completed_at",
        ))
        .bind(node)
        .bind(rootfs.key())
        .bind(json(rootfs))
        .bind(org.uuid())
        .bind(seconds(ROOTFS_FAILURE_TTL))
        .bind(ROOTFS_PER_ORGANIZATION_MAX)
        .bind(ROOTFS_BUILDS_PER_HOUR_MAX)
        .fetch_optional(&self.system)
        .await?;
        row.map(|row| row.build().map(|(_, build)| build)).transpose()
    }

    /// Returns the root file systems that a node must build, oldest request first, with the organizations for which
    /// they count.
    ///
    /// Includes builds started by a process that died.
    pub async fn pending_rootfs(&self, node: Uuid, limit: i64) -> Result<Vec<(RootFs, OrgId)>> {
        let rows: Vec<(String, Uuid)> = sqlx::query_as(
            "select spec::text, requested_by
             from rootfs
             where node_id = $1 and state in ('requested', 'building')
             order by requested_at
             limit $2",
        )
        .bind(node)
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        rows.iter().map(|(text, org)| Ok((from_json(text)?, Id::from_uuid(*org)))).collect()
    }

    /// Records that a node builds it, and the build log.
    pub async fn record_rootfs_building(&self, node: Uuid, rootfs: &RootFs, log: &str) -> Result<()> {
        sqlx::query(
            "update rootfs
             set state = 'building', log = $3, error = null, completed_at = null,
                 started_at = case when state = 'building' then started_at else now() end
             where node_id = $1 and rootfs_key = $2 and state in ('requested', 'building')",
        )
        .bind(node)
        .bind(rootfs.key())
        .bind(log.replace('\0', ""))
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Records the end of a build with its whole log: success, with the size if it counts for the organization, or the
    /// error. An empty log keeps the recorded one.
    pub async fn record_rootfs_built(
        &self,
        node: Uuid,
        rootfs: &RootFs,
        log: &str,
        built: std::result::Result<Option<u64>, &str>,
    ) -> Result<()> {
        sqlx::query(
            "update rootfs
             set state = case when $3::text is null then 'ready' else 'failed' end,
                 error = $3, log = coalesce(nullif($4, ''), log), bytes = $5, completed_at = now()
             where node_id = $1 and rootfs_key = $2",
        )
        .bind(node)
        .bind(rootfs.key())
        .bind(built.err().map(|error| error.replace('\0', "")))
        .bind(log.replace('\0', ""))
        .bind(built.ok().flatten().map(count))
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Returns the root file systems of a node that count for organizations.
    pub async fn counted_rootfs(&self, node: Uuid) -> Result<Vec<RootFs>> {
        // A part of the primary key, like the next two.
        let rows: Vec<String> =
            sqlx::query_scalar("select spec::text from rootfs where node_id = $1 and bytes is not null")
                .bind(node)
                .fetch_all(&self.system)
                .await?;
        rows.iter().map(|text| from_json(text)).collect()
    }

    /// Returns the size in bytes of those that count for an organization on a node, without one of them.
    pub async fn rootfs_bytes_beside(&self, node: Uuid, org: OrgId, rootfs: &RootFs) -> Result<u64> {
        let bytes: i64 = sqlx::query_scalar(
            "select coalesce(sum(bytes), 0)::bigint
             from rootfs
             where node_id = $1 and requested_by = $2 and rootfs_key <> $3",
        )
        .bind(node)
        .bind(org.uuid())
        .bind(rootfs.key())
        .fetch_one(&self.system)
        .await?;
        Ok(uncount(bytes))
    }

    /// Returns those that count for an organization on a node, the longest unused first, without the last used ones
    /// that together have at most `kept_bytes`.
    pub async fn surplus_rootfs(&self, node: Uuid, org: OrgId, kept_bytes: u64) -> Result<Vec<RootFs>> {
        let rows: Vec<String> = sqlx::query_scalar(
            "select spec::text
             from (
                 select spec, requested_at, sum(bytes) over (order by requested_at desc, rootfs_key) as bytes
                 from rootfs
                 where node_id = $1 and requested_by = $2 and bytes is not null
             ) counted
             where bytes > $3
             order by requested_at
             limit $4",
        )
        .bind(node)
        .bind(org.uuid())
        .bind(count(kept_bytes))
        // More are not stored for long, and each may have many packages.
        .bind(ROOTFS_DERIVED_MAX as i64)
        .fetch_all(&self.system)
        .await?;
        rows.iter().map(|text| from_json(text)).collect()
    }

    /// Records the size of a root file system that a node has, and its last use like a request. One that the node has no
    /// more does not count any longer.
    pub async fn record_rootfs_use(
        &self,
        node: Uuid,
        rootfs: &RootFs,
        stored: Option<StoredRootFs>,
    ) -> Result<()> {
        // A worker reads them every minute: a use is not written each time.
        sqlx::query(
            "update rootfs
             set bytes = $3, requested_at = greatest(requested_at, now() - $4 * interval '1 second')
             where node_id = $1 and rootfs_key = $2 and state = 'ready'
               and (
                   bytes is distinct from $3
                   or requested_at + interval '10 minutes' < now() - $4 * interval '1 second'
               )",
        )
        .bind(node)
        .bind(rootfs.key())
        .bind(stored.map(|stored| count(stored.bytes)))
        .bind(stored.map(|stored| seconds(Duration::from_secs(stored.idle_seconds))))
        .execute(&self.system)
        .await?;
        Ok(())
    }

    /// Deletes root file systems that nobody has requested on a node for `ROOTFS_MAX_IDLE`.
    pub async fn delete_unused_rootfs(&self, node: Uuid) -> Result<()> {
        sqlx::query(
            "delete from rootfs
             where node_id = $1 and requested_at < now() - $2 * interval '1 second'
               and state in ('ready', 'failed')",
        )
        .bind(node)
        .bind(seconds(ROOTFS_MAX_IDLE))
        .execute(&self.system)
        .await?;
        Ok(())
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
