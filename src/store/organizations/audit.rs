//! Audit log: actions on an organization and their actors. Append-only.

use std::slice;

use serde_json::Value;
use sqlx::FromRow;
use uuid::Uuid;

use crate::store::{Result, Store, Tx, column::json, connection::Connection};
use crate::{
    base::{Id, Timestamp},
    domain::{Actor, AuditId, OrgId},
};

/// An action to record.
#[derive(Clone, Debug)]
pub struct Act<'a> {
    pub id: AuditId,
    pub actor: &'a Actor,
    /// Dotted name, for example `key.created`.
    pub action: &'static str,
    /// Id of the object that was changed.
    pub target: Option<String>,
    /// Never contains a secret.
    pub details: Value,
}

/// One stored row.
#[derive(Clone, Debug, FromRow)]
pub struct AuditRow {
    pub audit_id: Uuid,
    pub at: Timestamp,
    /// JSON, verbatim.
    pub actor: String,
    pub action: String,
    pub target: Option<String>,
    /// JSON, verbatim.
    pub details: String,
}

/// Filter for a listing; an absent field matches every row.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// An exact action, or `prefix.*`.
    pub action: Option<String>,
    pub target: Option<String>,
    pub after: Option<Timestamp>,
    pub before: Option<Timestamp>,
    /// Page position: only rows older than this one.
    pub below: Option<AuditId>,
}

pub(in crate::store) async fn record_acts(
    connection: &mut Connection,
    org: OrgId,
    acts: &[Act<'_>],
) -> Result<()> {
    sqlx::query(
        "insert into audit (org_id, audit_id, actor, action, target, details)
         select $1, audit_id, actor::json, action, target, details::json
         from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[])
             as act (audit_id, actor, action, target, details)",
    )
    .bind(org.uuid())
    .bind(acts.iter().map(|act| act.id.uuid()).collect::<Vec<_>>())
    .bind(acts.iter().map(|act| json(act.actor)).collect::<Vec<_>>())
    .bind(acts.iter().map(|act| act.action).collect::<Vec<_>>())
    .bind(acts.iter().map(|act| act.target.clone()).collect::<Vec<_>>())
    .bind(acts.iter().map(|act| act.details.to_string()).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

impl Tx {
    /// Records an action in the transaction that performs it.
    pub async fn record_audit(&mut self, act: &Act<'_>) -> Result<()> {
        self.record_acts(slice::from_ref(act)).await
    }

    /// Records several actions in the transaction that performs them.
    pub async fn record_acts(&mut self, acts: &[Act<'_>]) -> Result<()> {
        let org = self.org;
        record_acts(self.connection(), org, acts).await
    }

    /// Returns a page of the audit log, newest first, by its primary key.
    pub async fn audit(&mut self, filter: &Filter, limit: i64) -> Result<Vec<AuditRow>> {
        let org = self.org.uuid();
        let rows = sqlx::query_as(
            "select audit_id, at, actor::text, action, target, details::text
             from audit
             where org_id = $1
               and ($2::uuid is null or audit_id < $2)
               and ($3::text is null or action = $3
                    or (right($3, 2) = '.*' and starts_with(action, left($3, -1))))
               and ($4::text is null or target = $4)
               and ($5::timestamptz is null or at > $5)
               and ($6::timestamptz is null or at < $6)
             order by audit_id desc
             limit $7",
        )
        .bind(org)
        .bind(filter.below.map(Id::uuid))
        .bind(&filter.action)
        .bind(&filter.target)
        .bind(filter.after)
        .bind(filter.before)
        .bind(limit)
        .fetch_all(self.connection())
        .await?;
        Ok(rows)
    }
}

impl Store {
    /// Records an action of the operator.
    pub async fn record_audit(&self, org: OrgId, act: &Act<'_>) -> Result<()> {
        let mut connection = self.system.acquire().await?;
        record_acts(&mut connection, org, slice::from_ref(act)).await
    }
}
