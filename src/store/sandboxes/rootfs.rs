//! Root file systems requested on nodes, and their build state.

use std::time::Duration;

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{
    Error, Result, Store, Tx,
    column::{from_json, json},
};
use crate::{
    base::{
        Timestamp,
        limit::{
            ROOTFS_BUILDS_PER_HOUR_MAX, ROOTFS_FAILURE_TTL, ROOTFS_MAX_IDLE, ROOTFS_PER_ORGANIZATION_MAX,
        },
    },
    domain::{
        OrgId,
        rootfs::{Build, RootFs, State},
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
        Ok((self.rootfs_key, Build { state, log, error, started_at, completed_at }))
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
            "select distinct on (rootfs_key) rootfs_key, state, log, error, started_at, completed_at
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
                 requested_by = case when (select is_over from known) then $4 else rootfs.requested_by end
             returning rootfs_key, state, log, error, started_at, completed_at",
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

    /// Returns the root file systems that a node must build, oldest request first.
    ///
    /// Includes builds started by a process that died.
    pub async fn pending_rootfs(&self, node: Uuid, limit: i64) -> Result<Vec<RootFs>> {
        let rows: Vec<String> = sqlx::query_scalar(
            "select spec::text
             from rootfs
             where node_id = $1 and state in ('requested', 'building')
             order by requested_at
             limit $2",
        )
        .bind(node)
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        rows.iter().map(|text| from_json(text)).collect()
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

    /// Records the end of a build with its whole log: success, or the error. An empty log keeps the recorded one.
    pub async fn record_rootfs_built(
        &self,
        node: Uuid,
        rootfs: &RootFs,
        log: &str,
        error: Option<&str>,
    ) -> Result<()> {
        sqlx::query(
            "update rootfs
             set state = case when $3::text is null then 'ready' else 'failed' end,
                 error = $3, log = coalesce(nullif($4, ''), log), completed_at = now()
             where node_id = $1 and rootfs_key = $2",
        )
        .bind(node)
        .bind(rootfs.key())
        .bind(error.map(|error| error.replace('\0', "")))
        .bind(log.replace('\0', ""))
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
