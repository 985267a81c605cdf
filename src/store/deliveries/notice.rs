//! Notices to an organization's webhooks, through the outbox.

use uuid::Uuid;

use crate::store::{Result, Tx, connection::Connection};
use crate::{
    base::Id,
    domain::{DeliveryId, DestinationId, Notice, OrgId},
};

/// Inserts deliveries of these notices for every matching webhook of the organization except `except`.
pub(in crate::store) async fn tell(
    connection: &mut Connection,
    org: OrgId,
    notices: &[Notice],
    except: Option<DestinationId>,
) -> Result<()> {
    sqlx::query(
        "insert into delivery (
            org_id, delivery_id, session_id, destination_id, event_id, type, notice, status, ready_at
         )
         select $1, gen_random_uuid(), n.session_id, d.destination_id, n.event_id, n.type, n.notice::json, 'pending', now()
         from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[]) as n (session_id, event_id, type, notice)
         join destination d on d.org_id = $1
         where d.session_id is null
           and d.enabled
           and d.deleted_at is null
           and d.destination_id is distinct from $6
           and (d.types is null or exists (
               select from unnest(d.types) wanted
               where wanted = n.type or (right(wanted, 2) = '.*' and starts_with(n.type, left(wanted, -1)))
           ))",
    )
    .bind(org.uuid())
    .bind(notices.iter().map(|notice| notice.session.map(Id::uuid)).collect::<Vec<_>>())
    .bind(notices.iter().map(|notice| notice.id.uuid()).collect::<Vec<_>>())
    .bind(notices.iter().map(Notice::kind).collect::<Vec<_>>())
    .bind(notices.iter().map(|notice| notice.event().to_string()).collect::<Vec<_>>())
    .bind(except.map(Id::uuid))
    .execute(connection)
    .await?;
    Ok(())
}

impl Tx {
    /// Inserts deliveries of these notices for every matching webhook of this organization.
    pub async fn tell(&mut self, notices: &[Notice]) -> Result<()> {
        let org = self.org;
        tell(self.connection(), org, notices, None).await
    }

    /// Inserts a delivery for one destination, ignoring its filter; returns the delivery.
    pub async fn insert_notice_delivery(
        &mut self,
        destination: DestinationId,
        notice: &Notice,
    ) -> Result<DeliveryId> {
        let org = self.org.uuid();
        let (id,): (Uuid,) = sqlx::query_as(
            "insert into delivery (
                org_id, delivery_id, session_id, destination_id, event_id, type, notice, status, ready_at
             )
             values ($1, gen_random_uuid(), $2, $3, $4, $5, $6::json, 'pending', now())
             returning delivery_id",
        )
        .bind(org)
        .bind(notice.session.map(Id::uuid))
        .bind(destination.uuid())
        .bind(notice.id.uuid())
        .bind(notice.kind())
        .bind(notice.event().to_string())
        .fetch_one(self.connection())
        .await?;
        Ok(Id::from_uuid(id))
    }
}
