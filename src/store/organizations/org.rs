//! Organizations and their data keys.

use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Error, Result, Store, Tx};
use crate::{
    base::{
        Id, Origin, Timestamp,
        limit::{HOUSEKEEPING_BATCH, ORG_PURGE_REPEAT_FOR},
        seal::{DataKey, MasterKey},
    },
    domain::OrgId,
};

/// An organization, without its key.
#[derive(Clone, Debug)]
pub struct Organization {
    pub id: OrgId,
    pub name: String,
    /// Days after which an archived session is deleted; `None` retains it.
    pub retention_days: Option<i32>,
    pub suspended_at: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
    /// Maximum number of concurrent turns; `None` is the deployment's `ORG_JOBS_MAX`.
    pub concurrency: Option<i32>,
    /// Turns that run for each turn of an organization of weight 1, when both have work.
    pub weight: i32,
    pub created_at: Timestamp,
}

impl Organization {
    /// `active`, `suspended` or `deleted`.
    pub fn state(&self) -> &'static str {
        match (self.deleted_at, self.suspended_at) {
            (Some(_), _) => "deleted",
            (None, Some(_)) => "suspended",
            (None, None) => "active",
        }
    }
}

/// A change of an organization's concurrency and weight; an absent field stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// The inner `None` is the deployment's default.
    pub concurrency: Option<Option<i32>>,
    pub weight: Option<i32>,
}

#[derive(FromRow)]
struct Row {
    org_id: Uuid,
    name: String,
    retention_days: Option<i32>,
    suspended_at: Option<Timestamp>,
    deleted_at: Option<Timestamp>,
    concurrency: Option<i32>,
    weight: i32,
    created_at: Timestamp,
}

impl From<Row> for Organization {
    fn from(row: Row) -> Self {
        Self {
            id: Id::from_uuid(row.org_id),
            name: row.name,
            retention_days: row.retention_days,
            suspended_at: row.suspended_at,
            deleted_at: row.deleted_at,
            concurrency: row.concurrency,
            weight: row.weight,
            created_at: row.created_at,
        }
    }
}

macro_rules! organizations {
    ($rest:literal) => {
        concat!(
            "select org_id, name, retention_days, suspended_at, deleted_at, concurrency, weight, created_at
             from org ",
            $rest
        )
    };
}

impl Store {
    /// Returns whether there is more than one organization.
    pub async fn has_many_orgs(&self) -> Result<bool> {
        let count: i64 = sqlx::query_scalar(
            "select count(*) from (select from org where deleted_at is null limit 2) first",
        )
        .fetch_one(&self.system)
        .await?;
        Ok(count > 1)
    }

    /// Creates an organization with its own data key; returns whether it is new.
    pub async fn create_org(&self, org: OrgId, name: &str, origin: &Origin) -> Result<bool> {
        let wrapped = self.master.wrap(&DataKey::generate(origin), &org.to_string(), origin);
        let sql = "insert into org (org_id, name, data_key) values ($1, $2, $3) on conflict do nothing";
        let done = sqlx::query(sql).bind(org.uuid()).bind(name).bind(wrapped).execute(&self.system).await?;
        Ok(done.rows_affected() > 0)
    }

    /// Returns the oldest organization, which the first start creates.
    pub async fn first_org(&self) -> Result<Option<OrgId>> {
        // A handful of rows, once per start: no index.
        let row: Option<(uuid::Uuid,)> = sqlx::query_as(
            "select org_id from org where deleted_at is null order by created_at, org_id limit 1",
        )
        .fetch_optional(&self.system)
        .await?;
        Ok(row.map(|(org,)| Id::from_uuid(org)))
    }

    /// Returns whether any session exists.
    pub async fn has_sessions(&self) -> Result<bool> {
        let (found,): (bool,) =
            sqlx::query_as("select exists (select from session)").fetch_one(&self.system).await?;
        Ok(found)
    }

    /// Unwraps an organization's data key, for the service's own work.
    pub async fn data_key(&self, org: OrgId) -> Result<DataKey> {
        let (wrapped,): (Vec<u8>,) = sqlx::query_as("select data_key from org where org_id = $1")
            .bind(org.uuid())
            .fetch_one(&self.system)
            .await?;
        unwrap(&self.master, &wrapped, org)
    }
}

impl Store {
    /// Returns every organization, newest first; for the operator.
    pub async fn organizations(&self) -> Result<Vec<Organization>> {
        self.organizations_below(None, i64::MAX).await
    }

    /// Returns a page of organizations, newest first, by the primary key.
    pub async fn organizations_below(&self, below: Option<OrgId>, limit: i64) -> Result<Vec<Organization>> {
        let rows: Vec<Row> = sqlx::query_as(organizations!(
            "where $1::uuid is null or org_id < $1 order by org_id desc limit $2"
        ))
        .bind(below.map(Id::uuid))
        .bind(limit)
        .fetch_all(&self.system)
        .await?;
        Ok(rows.into_iter().map(Organization::from).collect())
    }

    /// Reads one organization, for the operator.
    pub async fn organization(&self, org: OrgId) -> Result<Organization> {
        let row: Row = sqlx::query_as(organizations!("where org_id = $1"))
            .bind(org.uuid())
            .fetch_one(&self.system)
            .await?;
        Ok(row.into())
    }

    /// Changes an organization's concurrency and weight.
    pub async fn set_share(&self, org: OrgId, share: Share) -> Result<Organization> {
        let done = sqlx::query(
            "update org
             set concurrency = case when $2 then $3 else concurrency end, weight = coalesce($4, weight)
             where org_id = $1 and deleted_at is null",
        )
        .bind(org.uuid())
        .bind(share.concurrency.is_some())
        .bind(share.concurrency.flatten())
        .bind(share.weight)
        .execute(&self.system)
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { self.organization(org).await }
    }

    /// Suspends or resumes an organization; other processes notice within `KEY_CACHE_TTL`.
    pub async fn suspend_org(&self, org: OrgId, is_suspended: bool) -> Result<()> {
        let done = sqlx::query(SUSPEND).bind(org.uuid()).bind(is_suspended).execute(&self.system).await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Deletes an organization: nobody can use it or its keys any more, nothing runs for it, and its secrets
    /// cannot be decrypted.
    ///
    /// Its row stays without a name, for the audit log. [`Store::purge_deleted_orgs`] deletes its other rows, and
    /// the workers remove data outside the database.
    pub async fn delete_org(&self, org: OrgId) -> Result<()> {
        let mut tx = self.system.begin().await?;
        let done = sqlx::query(
            "update org
             set name = 'deleted', data_key = '', retention_days = null, suspended_at = coalesce(suspended_at, now()),
                 deleted_at = now()
             where org_id = $1 and deleted_at is null",
        )
        .bind(org.uuid())
        .execute(&mut tx)
        .await?;
        if done.rows_affected() == 0 {
            return Err(Error::NotFound);
        }
        // Without a job, a worker loses the lease of a running turn at the next renewal.
        for sql in ["delete from api_key where org_id = $1", "delete from job where org_id = $1"] {
            sqlx::query(sql).bind(org.uuid()).execute(&mut tx).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Deletes the rows of deleted organizations, at most about `HOUSEKEEPING_BATCH`; returns how many.
    ///
    /// A request that was in progress, or whose key another process still cached, may write after the deletion
    /// of the organization. After `ORG_PURGE_REPEAT_FOR` no such write is possible, and the next purge that finds
    /// nothing is the last.
    pub async fn purge_deleted_orgs(&self) -> Result<u64> {
        // A handful of rows, and of the deleted ones only the latest: no index.
        let orgs: Vec<(Uuid,)> = sqlx::query_as(
            "select org_id from org where deleted_at is not null and purged_at is null order by deleted_at limit $1",
        )
        .bind(HOUSEKEEPING_BATCH)
        .fetch_all(&self.system)
        .await?;
        let mut deleted = 0;
        for (org,) in orgs {
            let org = Id::from_uuid(org);
            match self.purge_rows(org, HOUSEKEEPING_BATCH - deleted).await {
                Ok(rows) => deleted += rows,
                Err(error) => {
                    tracing::warn!(%error, org.id = %org, "a deleted organization could not be purged");
                }
            }
            if deleted >= HOUSEKEEPING_BATCH {
                break;
            }
        }
        Ok(deleted.unsigned_abs())
    }

    /// Deletes at most `rows_max` rows of a deleted organization; returns how many.
    pub async fn purge_rows(&self, org: OrgId, rows_max: i64) -> Result<i64> {
        let (rows,): (i64,) = sqlx::query_as("select sojourn_purge_rows($1, $2)")
            .bind(org.uuid())
            .bind(rows_max)
            .fetch_one(&self.system)
            .await?;
        if rows == 0 {
            sqlx::query(
                "update org
                 set purged_at = now()
                 where org_id = $1 and deleted_at < now() - $2 * interval '1 second'",
            )
            .bind(org.uuid())
            .bind(ORG_PURGE_REPEAT_FOR.as_secs_f64())
            .execute(&self.system)
            .await?;
        }
        Ok(rows)
    }

    /// Wraps every data key with the current master key.
    ///
    /// Returns the organizations whose key was wrapped with another one.
    pub async fn rewrap_data_keys(&self, origin: &Origin) -> Result<Vec<OrgId>> {
        let rows: Vec<(Uuid, Vec<u8>)> =
            sqlx::query_as("select org_id, data_key from org where deleted_at is null")
                .fetch_all(&self.system)
                .await?;
        let mut rewrapped = Vec::new();
        for (id, held) in rows {
            let org: OrgId = Id::from_uuid(id);
            if self.master.is_wrapped_by_present(&held, &org.to_string()) {
                continue;
            }
            let key = unwrap(&self.master, &held, org)?;
            let wrapped = self.master.wrap(&key, &org.to_string(), origin);
            // If another process rewrapped it first, its result is equally valid.
            let done = sqlx::query("update org set data_key = $2 where org_id = $1 and data_key = $3")
                .bind(id)
                .bind(wrapped)
                .bind(held)
                .execute(&self.system)
                .await?;
            rewrapped.extend((done.rows_affected() > 0).then_some(org));
        }
        Ok(rewrapped)
    }
}

impl Tx {
    /// Reads the organization of this transaction.
    pub async fn organization(&mut self) -> Result<Organization> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(organizations!("where org_id = $1"))
            .bind(org)
            .fetch_one(self.connection())
            .await?;
        Ok(row.into())
    }

    /// Reads this transaction's organization and locks it until the end.
    pub async fn lock_organization(&mut self) -> Result<Organization> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(organizations!("where org_id = $1 for no key update"))
            .bind(org)
            .fetch_one(self.connection())
            .await?;
        Ok(row.into())
    }

    /// Suspends or resumes this organization, for the operator.
    pub async fn suspend(&mut self, is_suspended: bool) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(SUSPEND).bind(org).bind(is_suspended).execute(self.connection()).await?;
        Ok(())
    }

    /// Updates the columns of a locked organization that its owner may change.
    pub async fn update_organization(&mut self, organization: &Organization) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query("update org set name = $2, retention_days = $3 where org_id = $1")
            .bind(org)
            .bind(&organization.name)
            .bind(organization.retention_days)
            .execute(self.connection())
            .await?;
        Ok(())
    }

    /// Unwraps this organization's data key.
    pub async fn data_key(&mut self, master: &MasterKey) -> Result<DataKey> {
        let org = self.org;
        let (wrapped,): (Vec<u8>,) = sqlx::query_as("select data_key from org where org_id = $1")
            .bind(org.uuid())
            .fetch_one(self.connection())
            .await?;
        unwrap(master, &wrapped, org)
    }
}

pub(in crate::store) fn unwrap(master: &MasterKey, wrapped: &[u8], org: OrgId) -> Result<DataKey> {
    if wrapped.is_empty() {
        // The organization was deleted, and the caller does not know it yet.
        return Err(Error::NotFound);
    }
    master
        .unwrap(wrapped, &org.to_string())
        .map_err(|error| Error::Corrupt(format!("data key of {org}: {error}")))
}

/// Suspends or resumes an organization. One that is resumed has its jobs made ready again: claims read what became ready
/// recently.
const SUSPEND: &str = "
with changed as (
    update org
    set suspended_at = case when $2 then coalesce(suspended_at, now()) end
    where org_id = $1 and deleted_at is null
    returning org_id
), resumed as (
    update job j
    set ready_at = now()
    from changed
    where j.org_id = changed.org_id and not $2
      and j.worker_id is null and not j.is_scheduled and j.ready_at <= now()
)
select from changed";
