//! Organizations and their data keys.

use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::{Error, Result, Store, Tx};
use crate::{
    base::{
        Id, Origin, Timestamp,
        limit::{HOUSEKEEPING_BATCH, PURGE_AGAIN_FOR},
        seal::{DataKey, MasterKey},
    },
    domain::OrgId,
};

/// An organization, without its key.
#[derive(Clone, Debug)]
pub struct Organization {
    pub id: OrgId,
    pub name: String,
    /// Days after which an archived session is deleted; none keeps it.
    pub retention_days: Option<i32>,
    pub suspended_at: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
    /// Turns that may run at once; none is the deployment's `ORG_JOBS_MAX`.
    pub concurrency: Option<i32>,
    /// Turns that run for each one of an organization of weight 1, when both have work.
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

/// What changes of how much an organization may do at once; an absent field stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// Within, none is the deployment's.
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
    /// Makes an organization with a data key of its own; returns whether there was none.
    pub async fn create_org(&self, org: OrgId, name: &str, origin: &Origin) -> Result<bool> {
        let wrapped = self.master.wrap(&DataKey::generate(origin), &org.to_string(), origin);
        let sql = "insert into org (org_id, name, data_key) values ($1, $2, $3) on conflict do nothing";
        let done = sqlx::query(sql).bind(org.uuid()).bind(name).bind(wrapped).execute(&self.system).await?;
        Ok(done.rows_affected() > 0)
    }

    /// The oldest organization: the one that the first start makes.
    pub async fn first_org(&self) -> Result<Option<OrgId>> {
        // A handful of rows, once per start: no index.
        let row: Option<(uuid::Uuid,)> = sqlx::query_as(
            "select org_id from org where deleted_at is null order by created_at, org_id limit 1",
        )
        .fetch_optional(&self.system)
        .await?;
        Ok(row.map(|(org,)| Id::from_uuid(org)))
    }

    /// Whether any session was ever created here.
    pub async fn has_sessions(&self) -> Result<bool> {
        let (found,): (bool,) =
            sqlx::query_as("select exists (select from session)").fetch_one(&self.system).await?;
        Ok(found)
    }

    /// The key that opens an organization's secrets, for the service's own work.
    pub async fn data_key(&self, org: OrgId) -> Result<DataKey> {
        let (wrapped,): (Vec<u8>,) = sqlx::query_as("select data_key from org where org_id = $1")
            .bind(org.uuid())
            .fetch_one(&self.system)
            .await?;
        unwrap(&self.master, &wrapped, org)
    }
}

impl Store {
    /// Every organization, oldest first; for the operator.
    pub async fn organizations(&self) -> Result<Vec<Organization>> {
        self.organizations_after(None, i64::MAX).await
    }

    /// A page of them, by the primary key.
    pub async fn organizations_after(&self, after: Option<OrgId>, limit: i64) -> Result<Vec<Organization>> {
        let rows: Vec<Row> =
            sqlx::query_as(organizations!("where $1::uuid is null or org_id > $1 order by org_id limit $2"))
                .bind(after.map(Id::uuid))
                .bind(limit)
                .fetch_all(&self.system)
                .await?;
        Ok(rows.into_iter().map(Organization::from).collect())
    }

    /// One of them, for the operator.
    pub async fn organization(&self, org: OrgId) -> Result<Organization> {
        let row: Row = sqlx::query_as(organizations!("where org_id = $1"))
            .bind(org.uuid())
            .fetch_one(&self.system)
            .await?;
        Ok(row.into())
    }

    /// Changes how much an organization may do at once.
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

    /// Suspends an organization or lets it go on; other processes notice within
    /// `KEY_CACHE_TTL`.
    pub async fn suspend_org(&self, org: OrgId, is_suspended: bool) -> Result<()> {
        let done = sqlx::query(
            "update org
             set suspended_at = case when $2 then coalesce(suspended_at, now()) end
             where org_id = $1 and deleted_at is null",
        )
        .bind(org.uuid())
        .bind(is_suspended)
        .execute(&self.system)
        .await?;
        if done.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Destroys all that an organization has and the key that its secrets hang on.
    ///
    /// Its row stays without a name, for the audit log; what lies outside the database
    /// is left to the workers.
    pub async fn delete_org(&self, org: OrgId) -> Result<()> {
        let mut tx = self.system.begin().await?;
        let done = sqlx::query(
            "update org
             set name = 'deleted', data_key = '', retention_days = null, suspended_at = coalesce(suspended_at, now()),
                 deleted_at = now()
             where org_id = $1 and deleted_at is null",
        )
        .bind(org.uuid())
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() == 0 {
            return Err(Error::NotFound);
        }
        purge(&mut tx, org.uuid()).await?;
        Ok(tx.commit().await?)
    }

    /// Purges deleted organizations again: a request that was under way, or whose key
    /// another process still knew, may have written after the first time. Once a minute
    /// has passed nothing can any more, and that purge is the last.
    pub async fn purge_deleted_orgs(&self) -> Result<usize> {
        // A handful of rows, and of the deleted ones only the latest: no index.
        let rows: Vec<(Uuid,)> = sqlx::query_as(
            "select org_id from org where deleted_at is not null and purged_at is null limit $1",
        )
        .bind(HOUSEKEEPING_BATCH)
        .fetch_all(&self.system)
        .await?;
        for (org,) in &rows {
            let mut tx = self.system.begin().await?;
            purge(&mut tx, *org).await?;
            sqlx::query(
                "update org
                 set purged_at = now()
                 where org_id = $1 and deleted_at < now() - $2 * interval '1 second'",
            )
            .bind(org)
            .bind(PURGE_AGAIN_FOR.as_secs_f64())
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
        }
        Ok(rows.len())
    }

    /// Wraps every data key under the present master key; returns whose were not.
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
            // Where another did it first, its wrapping is as good.
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
    /// The organization that this transaction speaks for.
    pub async fn organization(&mut self) -> Result<Organization> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(organizations!("where org_id = $1"))
            .bind(org)
            .fetch_one(self.connection())
            .await?;
        Ok(row.into())
    }

    /// The same, locked until the transaction ends.
    pub async fn lock_organization(&mut self) -> Result<Organization> {
        let org = self.org.uuid();
        let row: Row = sqlx::query_as(organizations!("where org_id = $1 for no key update"))
            .bind(org)
            .fetch_one(self.connection())
            .await?;
        Ok(row.into())
    }

    /// Suspends this organization or lets it go on, for the operator.
    pub async fn suspend(&mut self, is_suspended: bool) -> Result<()> {
        let org = self.org.uuid();
        sqlx::query(
            "update org
             set suspended_at = case when $2 then coalesce(suspended_at, now()) end
             where org_id = $1",
        )
        .bind(org)
        .bind(is_suspended)
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Writes what its owner may change of a locked organization.
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

    /// The key that opens this organization's secrets.
    pub async fn data_key(&mut self, master: &MasterKey) -> Result<DataKey> {
        let org = self.org;
        let (wrapped,): (Vec<u8>,) = sqlx::query_as("select data_key from org where org_id = $1")
            .bind(org.uuid())
            .fetch_one(self.connection())
            .await?;
        unwrap(master, &wrapped, org)
    }
}

/// Deletes every row of an organization, and notes what lies outside the database.
async fn purge(tx: &mut PgConnection, org: Uuid) -> Result<()> {
    sqlx::query(
        "insert into purged_session_blobs (org_id, session_id)
         select org_id, session_id from session where org_id = $1
         on conflict do nothing",
    )
    .bind(org)
    .execute(&mut *tx)
    .await?;
    sqlx::query("select sojourn_purge($1, null)").bind(org).execute(&mut *tx).await?;
    Ok(())
}

pub(super) fn unwrap(master: &MasterKey, wrapped: &[u8], org: OrgId) -> Result<DataKey> {
    if wrapped.is_empty() {
        // The organization is deleted, and whoever asks has not heard of it yet.
        return Err(Error::NotFound);
    }
    master
        .unwrap(wrapped, &org.to_string())
        .map_err(|error| Error::Corrupt(format!("data key of {org}: {error}")))
}
